"""What a trainer does between two steps: read what the process group agreed on, and obey it."""

from __future__ import annotations

import torch

from ..distributed.channel import Channel
from ..distributed.host_copy import value_of
from ..sentinel.guard import Guard
from ..sentinel.shell import Sentinel
from ..step.replay import Replay
from ..step.scaler import LossScaler
from ..step.stats import Totals, TrainingStats
from ..step.steps import Boundary, ModeChange, Sent, StepRecord
from ..step.update import Updated
from ..step.weights import WeightCheck
from ..values.levels import Diagnosis, Finding, Level, Verdict
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from .mode_control import ModeControl


class Boundaries:
    """Sends off what steps came to, reads it later, and gives it to whoever learns from it.

    A process that is alone on a CPU knows at once what a step came to. A good step of which nothing can come is not sent
    there: the way through the channel costs more than all that is learned from it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        channel: Channel,
        control: ModeControl,
        *,
        sentinel: Sentinel | None,
        log: JsonLog,
        rank: int,
        alone: bool,
    ) -> None:
        """``alone``: this process has no peers, and its numbers lie on the host."""
        self._channel, self._control, self._sentinel = channel, control, sentinel
        self._log, self._rank = log, rank
        self._weights = WeightCheck(model, Guard(log))
        """Where there is no sentinel."""
        self._totals = Totals()
        self._last_norms: torch.Tensor | None = None
        self._alone = alone
        self._one = torch.ones_like(channel.telemetry[0])
        self._passed: list[tuple[StepRecord, torch.Tensor | None]] = []
        """Of steps that were not sent, since the last boundary: usually one. With the norms of what was measured."""

    def send(
        self,
        step: int,
        message: list[torch.Tensor],
        updated: Updated,
        scale: torch.Tensor | None,
        replay: Replay | None,
    ) -> None:
        """Send off what a step came to.

        Args:
            step: its number.
            message: averaged over the ranks, in pieces: [WIDTH] together, or the loss alone (Channel.quiet).
            updated: what its update came to.
            scale: the loss scale, 0-dim; None where no scaler runs.
            replay: see Sent.
        """
        control = self._control
        if self._alone and updated.skipped is False and self._channel.quiet and self._channel.idle:
            norm = None if updated.norm is None else value_of(updated.norm)
            scaled = 1.0 if scale is None else value_of(scale)
            record = StepRecord(step, control.mode, control.generation, value_of(message[0]), False, scaled, norm)
            if self._passes(record):
                self._passed.append((record, updated.norms))
                return
        number = self._sentinel.sent() if self._sentinel is not None else 0
        sent = Sent(number, step, control.mode, control.generation, updated.norms, updated.gradients, replay)
        measured = [] if updated.norm is None else [updated.norm]
        self._channel.put(sent, [*message, updated.found_inf, self._one if scale is None else scale, *measured])

    def _passes(self, record: StepRecord) -> bool:
        """Take in a step that was not skipped, if nothing can come of it."""
        if record.loss - record.loss != 0.0:
            return False
        if self._sentinel is None:
            self._weights.observe(record)
        elif not self._sentinel.passes(record):
            return False
        self._totals.observe(record)
        return True

    def _take_passed(self) -> list[StepRecord]:
        records: list[StepRecord] = []
        for record, norms in self._passed:
            records.append(record)
            self._last_norms = self._last_norms if norms is None else norms
        self._passed.clear()
        return records

    def read(self, step: int, *, keep: int) -> Boundary:
        """The boundary before ``step``; the records of the last ``keep`` steps stay on their way."""
        control, sentinel = self._control, self._sentinel
        change: ModeChange | None = control.take_undone()
        records = self._take_passed()
        if records and change is None and self._channel.idle:
            return Boundary(step, tuple(records), None, checkpoint=False, stop=False)
        carried = stop = checkpoint = rewind = False
        for sent, agreed, record in self._channel.read(keep):
            if sentinel is None:
                record = self._weights.observe(record)
            self._totals.observe(record)
            records.append(record)
            if sent.norms is not None:
                self._last_norms = sent.norms
            if sentinel is not None:
                sentinel.observe(record, sent)
            if agreed is None:
                continue
            carried = True
            stop = stop or agreed.stop
            if agreed.diagnosis is not None:
                self._learn(agreed.diagnosis, record)
            if sentinel is not None and agreed.verdict is not None and sentinel.obey(agreed.verdict, sent):
                rewind = rewind or agreed.verdict.level is Level.REWIND
            if agreed.request is not None and agreed.request.generation > control.newest:
                if control.failed(agreed.request.mode):
                    control.tell_refused(agreed.request.mode, agreed.request, "when it was tried before")
                    continue
                change = control.apply(agreed.request, step)
                checkpoint = checkpoint or agreed.request.checkpoint
                rewind = rewind or agreed.request.rewind
        if carried:
            change = control.settle(step) or change
        return Boundary(step, tuple(records), change, checkpoint, stop, rewind)

    def message(self) -> tuple[Verdict | None, Finding | None]:
        """What this rank has to say in the step about to run."""
        return self._sentinel.message() if self._sentinel is not None else (None, self._weights.message())

    def rewound(self) -> None:
        """The weights are other ones now (store/checkpointer.py)."""
        self._weights.restart()
        if self._sentinel is not None:
            self._sentinel.rewound()

    def layer_norms(self) -> dict[str, float]:
        """See :meth:`ExtendedFP16Trainer.layer_norms`."""
        if self._last_norms is None or self._sentinel is None:
            return {}
        return self._sentinel.layers.norms(self._last_norms.tolist()) or {}

    def stats(self, scaler: LossScaler, *, allow_tf32: bool) -> TrainingStats:
        """Totals of this process up to the last step tried; waits for the device."""
        totals = self._totals.copy()
        for record in self._channel.peek():
            totals.observe(self._weights.mark(record))
        mode, sentinel = self._control.mode, self._sentinel
        return {
            "fp16_enabled_runtime": mode is not PrecisionMode.FP32,
            "precision_mode": mode.wire,
            "requested_mode": self._control.requested.wire,
            "generation": self._control.generation,
            "training_steps": totals.tried,
            "fp16_steps": totals.low,
            "overflow_steps": totals.overflows,
            "overflow_rate": totals.overflow_rate,
            "nonfinite_steps": totals.nonfinite,
            "current_scale": float(scaler.scale_value.item()) if mode.uses_scaler else 1.0,
            "scale_history": list(totals.scale_history),
            "allow_tf32": allow_tf32,
            "sentinel_level": sentinel.level.label if sentinel is not None else "off",
            "pinned_layers": sentinel.pinned if sentinel is not None else [],
        }

    def _learn(self, diagnosis: Diagnosis, record: StepRecord) -> None:
        if self._sentinel is not None:
            self._sentinel.learn(diagnosis, record)
        elif self._weights.learn(weights_finite=diagnosis.weights_finite) and self._rank == 0:
            self._log.error(
                "weights_not_finite",
                "expected finite weights, found inf or NaN: no loss scale helps, and every step is skipped; go back to a "
                'healthy checkpoint ("rewind":true in a request), or let the sentinel do it (PRECISION_SENTINEL)',
                step=record.step,
            )
