"""What a trainer does between two steps: read what the process group agreed on, and change its mode.

In force is the mode requested, or a safer one where the sentinel says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ..distributed.channel import Channel
from ..sentinel.shell import Sentinel
from ..step.scaler import LossScaler
from ..step.stats import Totals, TrainingStats, collect
from ..step.steps import Boundary, ModeChange, StepRecord
from ..step.weights import WeightCheck
from ..values.config import ExtendedFP16Config
from ..values.levels import Diagnosis, Finding, Level, Verdict
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.request import NOT_ALLOWED, PrecisionRequest
from .preflight import Trial


class Boundaries:
    """The trainer's side between two steps. Holds what a change of mode touches: weights and optimizer are FP32 in all."""

    config: ExtendedFP16Config

    mode: PrecisionMode
    """In force."""
    requested_mode: PrecisionMode
    scaler: LossScaler
    sentinel: Sentinel | None
    log: JsonLog
    rank: int
    step: int
    """Number of the step about to begin."""
    applied: PrecisionRequest | None
    """The last request applied; None before any."""
    on_refused: Callable[[str, str], None] | None
    """Told, on rank 0, of a request that was refused because the model fails in its mode: reason and message."""
    _trial: Trial | None
    """Set while the mode in force has yet to be proven, by the first micro-batch in it."""
    _proven: set[PrecisionMode]
    _failed: set[PrecisionMode]
    """Modes the model failed in, on some rank; the same on all."""
    _declined: int
    """Highest generation of a request that was refused."""
    _undone: ModeChange | None
    """Back from a mode that failed; for the next boundary."""
    _channel: Channel
    _weights: WeightCheck
    """Where there is no sentinel."""
    _totals: Totals
    _last_norms: torch.Tensor | None

    @property
    def generation(self) -> int:
        """Generation of the last applied request; 0 before any."""
        return self.applied.generation if self.applied else 0

    @property
    def mode_is_proven(self) -> bool:
        """A micro-batch was computed in the mode in force, or there is no other to go back to."""
        return self._trial is None

    def apply(self, request: PrecisionRequest) -> ModeChange:
        """Change the mode here and now, on this rank. Only at a boundary, and only with something all ranks agreed on."""
        trial = self._trial or Trial(self.mode, self.requested_mode, self.applied)
        self.applied = request
        self.requested_mode = request.mode
        if self.sentinel is not None:
            self.sentinel.requested(self.step)
        change = self._change("request", trial)
        self.tune(request)
        return change

    def tune(self, request: PrecisionRequest) -> None:
        """What a request asks of the loss scaler; nothing in a mode that has none (the reporter says so)."""
        if request.tunes and request.mode.uses_scaler:
            self.scaler.tune(request.loss_scale_factor, request.growth_interval)

    def settle(self) -> ModeChange | None:
        """Enter the mode that the sentinel allows, if another is in force; at boundaries, and after loading its state."""
        if self.sentinel is None or self._wanted() is self.mode:
            return None
        return self._change("sentinel", self._trial or Trial(self.mode, self.requested_mode, self.applied))

    def _wanted(self) -> PrecisionMode:
        """What the request and the sentinel come to, or the next safer mode that the model does not fail in."""
        wanted = self.sentinel.allowed(self.requested_mode) if self.sentinel is not None else self.requested_mode
        if wanted in self._failed and wanted is PrecisionMode.MIXED_FP16:
            wanted = PrecisionMode.MIXED_BF16
        if wanted in self._failed:
            wanted = PrecisionMode.FP32
        return self.mode if wanted in self._failed else wanted

    def _change(self, source: str, trial: Trial) -> ModeChange:
        before = self.mode
        self.mode = self._wanted()
        self._trial = None if self.mode in self._proven else trial
        if self.mode.uses_scaler and not before.uses_scaler:
            self.scaler.thaw()
        return ModeChange(before, self.mode, self.applied, self.step, time.time(), source)

    def _refuse(self, trial: Trial, reasons: list[str]) -> None:
        """The mode in force failed: all ranks go back to the one before, in the middle of the step."""
        failed, self._trial = self.mode, None
        self._failed.add(failed)
        # Whatever comes now is not tried again: there is nothing left to go back to.
        self._proven.update({trial.mode, PrecisionMode.FP32} - self._failed)
        request = self.applied if self.applied is not trial.applied else None
        self.mode, self.requested_mode, self.applied = trial.mode, trial.requested, trial.applied
        if request is None:  # the sentinel's own step towards FP32: the next mode that works
            self.mode = self._wanted()
        if self.mode.uses_scaler:
            self.scaler.thaw()
        self._undone = ModeChange(failed, self.mode, self.applied, self.step, time.time(), "preflight")
        self._tell_refused(failed, request, "; ".join(reasons))

    def _tell_refused(self, failed: PrecisionMode, request: PrecisionRequest | None, reasons: str) -> None:
        if request is not None:
            self._declined = max(self._declined, request.generation)
        if self.rank:
            return
        asked = f"request {request.generation} for {failed.wire}" if request is not None else failed.wire
        message = (
            f"{asked} refused: the model failed in it: {reasons}; training goes on in {self.mode.wire}; keep the layer in "
            "FP32 (PRECISION_FP32_MODULES, fp32_modules) and restart, or ask for another mode"
        )
        if self.on_refused is not None:
            self.on_refused(NOT_ALLOWED, message)
        else:
            self.log.warning("request_refused", message, reason=NOT_ALLOWED)

    def rewound(self) -> None:
        """The weights are other ones now (store/checkpointer.py)."""
        self._weights.restart()
        if self.sentinel is not None:
            self.sentinel.rewound()

    def _message(self) -> tuple[Verdict | None, Finding | None]:
        """What this rank has to say in the step about to run."""
        return self.sentinel.message() if self.sentinel is not None else (None, self._weights.message())

    def drain(self) -> Boundary:
        """Wait for all steps tried so far and read them: before a checkpoint or the end. All ranks must call it."""
        return self._read(keep=0)

    def _read(self, keep: int) -> Boundary:
        records: list[StepRecord] = []
        change, self._undone = self._undone, None
        carried = stop = checkpoint = rewind = False
        sentinel = self.sentinel
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
            if agreed.request is not None and agreed.request.generation > max(self.generation, self._declined):
                if agreed.request.mode in self._failed:
                    self._tell_refused(agreed.request.mode, agreed.request, "when it was tried before")
                    continue
                change = self.apply(agreed.request)
                checkpoint = checkpoint or agreed.request.checkpoint
                rewind = rewind or agreed.request.rewind
        if carried:
            change = self.settle() or change
        return Boundary(self.step, tuple(records), change, checkpoint, stop, rewind)

    def _learn(self, diagnosis: Diagnosis, record: StepRecord) -> None:
        if self.sentinel is not None:
            self.sentinel.learn(diagnosis, record)
        elif self._weights.learn(weights_finite=diagnosis.weights_finite) and self.rank == 0:
            self.log.error(
                "weights_not_finite",
                "expected finite weights, found inf or NaN: no loss scale helps, and every step is skipped; go back to a "
                'healthy checkpoint ("rewind":true in a request), or let the sentinel do it (PRECISION_SENTINEL)',
                step=record.step,
            )

    # --- what it came to ----------------------------------------------------------------------------------------------

    def layer_norms(self) -> dict[str, float]:
        """Gradient norm by layer in the last step read that was measured (with clipping: every one), unscaled, before
        clipping; empty before one, or without a sentinel.

        Waits for the device: a tool for a person, not for every step.
        """
        if self._last_norms is None or self.sentinel is None:
            return {}
        return self.sentinel.layers.norms(self._last_norms.tolist()) or {}

    def get_stats(self) -> TrainingStats:
        """Totals of this process up to the last step tried; waits for the device."""
        totals = self._totals.copy()
        for record in self._channel.peek():
            totals.observe(self._weights.mark(record))
        return collect(self, totals)
