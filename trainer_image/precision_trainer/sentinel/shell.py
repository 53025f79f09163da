"""The sentinel of one rank: gathers readings from step records, carries out what rank 0 decided, says why.

Every rank watches, since every rank must look into a bad step at the same boundary; rank 0 alone judges. Its verdict and all
ranks' findings travel in the telemetry parameter (gang/agreement.py), so that all obey at one boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..errors import DivergedError
from ..precision.modes import PrecisionMode
from ..precision.scaler import LossScaler
from ..precision.steps import Sent, StepRecord
from ..telemetry.logs import Field, JsonLog
from .detectors import Baseline, Cusum
from .diagnose import diagnose
from .islands import Islands
from .layers import Layers
from .levels import SERIALS, Diagnosis, Finding, Level, Reason, Verdict, safer
from .machine import SETTLE_STEPS, Sample, SentinelConfig, State, Transition, cleared, judge
from .probe import Probe, ProbeReading
from .signals import ScaleTrend, Spikes, Window

_LOWERED = 2.0**-4
"""What LOWER_SCALE multiplies the scale by."""
_BURST = 3
"""Overflows in a window that are worth looking into; one or two are a scale that grew too far."""
_STEEP = -4.0
"""log2(scale) per 1000 steps: a warning. Ordinary training has about 0."""
_MAX_ORIGINS = 8
"""Bad steps a window whose norms are read on the host."""

Observer = Callable[[Transition, str | None], None]
"""Told of each change of level, with the name of the pinned layer, on every rank."""


class Sentinel:
    """See the module's text. Its public methods are the trainer's to call, between steps; the attributes are for anyone."""

    def __init__(
        self,
        config: SentinelConfig,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: LossScaler,
        *,
        device: torch.device,
        rank: int,
        log: JsonLog,
        order: Callable[[], str],
    ) -> None:
        """Watch ``model``; ``order`` names the request in force, as something that another request would not be named."""
        self.config = config
        self.layers = Layers(model, optimizer)
        self.can_rewind = False
        """Set by whoever can load the last healthy checkpoint (job/train.py)."""
        self.observer: Observer | None = None
        self.reading: ProbeReading | None = None
        """What the last probe measured; None before one."""
        self.drift = False
        """The loss has left its FP32 baseline."""
        self._model, self._scaler, self._device = model, scaler, device
        self._judges, self._log, self._order = rank == 0, log, order
        self._islands = Islands(self.layers, device)
        self._probe = Probe(self.layers, config.probe_steps)
        self._state = State()
        self._applied = Level.NOMINAL
        self._serial = self._obeyed = 0
        self._messages = self._deaf_until = 0
        self._pending: Verdict | None = None
        self._finding: Finding | None = None
        self._next_diagnosis = self._diagnosed = 0
        self._clock = self._look_at = 0
        self._waiting: list[StepRecord] = []
        self._mode: PrecisionMode | None = None
        self._window = Window()
        self._streak = 0
        self._loss_spikes, self._norm_spikes = Spikes(), Spikes()
        self._trend = ScaleTrend()
        self._baseline = Baseline(50, Cusum)

    @property
    def level(self) -> Level:
        """In force on this rank."""
        return self._applied

    @property
    def pinned(self) -> list[str]:
        """Names of the layers that compute in FP32."""
        return [self.layers.names[index] for index in self._islands.pinned]

    @property
    def baseline_loss(self) -> float | None:
        """Mean loss at the end of the last FP32 stretch of this process; None before one that was long enough."""
        return self._baseline.level

    def allowed(self, requested: PrecisionMode) -> PrecisionMode:
        """The safer of what is requested and what the level allows."""
        return safer(requested, self._applied.cap)

    # --- watching: every rank, every step ---------------------------------------------------------------------------

    def observe(self, record: StepRecord, sent: Sent) -> None:
        """Take a step in; look into it, if it was bad. All ranks see the same record."""
        self._clock += 1
        bad = record.skipped or record.loss - record.loss != 0.0
        if not bad and self._clock < self._look_at and record.mode is self._mode:
            # Nothing can come of it before the window ends: good steps are taken in together, at a fraction of the cost.
            self._waiting.append(record)
            return
        self._catch_up()
        if record.mode is not self._mode:
            self._mode, self._window = record.mode, Window()
            self._trend.reset()
        if bad:
            self._window.tried += 1
            self._bad(record, sent)
        else:
            self._waiting.append(record)
            self._catch_up()
        if self._clock == self._probe.read_at:
            self._read_probe(record)
        if self._window.tried >= self.config.window_steps or self._streak == self.config.diverged_steps:
            self._close(record)
        self._look_at = self._clock + self.config.window_steps - self._window.tried
        if self._probe.read_at > self._clock:
            self._look_at = min(self._look_at, self._probe.read_at)

    def _catch_up(self) -> None:
        """Take in the good steps that wait, all of one mode and one window."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        window, fp32 = self._window, self._mode is PrecisionMode.FP32
        window.tried += len(waiting)
        self._streak = 0
        for record in waiting:
            loss, norm = record.loss, record.grad_norm
            window.loss_sum += loss
            window.losses += 1
            window.max_loss_z = max(window.max_loss_z, self._loss_spikes.observe(loss))
            if norm is not None:
                window.max_norm_z = max(window.max_norm_z, self._norm_spikes.observe(norm))
            if self._baseline.observe(loss, fp32=fp32):
                self.drift = True

    def _bad(self, record: StepRecord, sent: Sent) -> None:
        window = self._window
        window.skipped += record.overflow
        window.nonfinite += record.nonfinite
        self._streak = self._streak + 1 if record.nonfinite else 0
        if self._judges and len(window.origins) < _MAX_ORIGINS:
            origin = self.layers.origin(sent.gradient_norms())
            if origin is not None:
                window.origins.append(origin)
        # One overflow with a finite loss is how a scale finds its place.
        suspicious = record.nonfinite or record.loss - record.loss != 0.0 or window.skipped >= _BURST
        if suspicious and self._clock >= self._next_diagnosis and sent.replays:
            self._next_diagnosis = self._clock + self.config.window_steps
            self._diagnosed = record.step
            self._finding = diagnose(self._model, self.layers, sent.replays, record.mode, self._device)

    def message(self) -> tuple[Verdict | None, Finding | None]:
        """What this rank has to say in the step about to run."""
        return self._pending, self._finding

    def sent(self) -> int:
        """The message is on its way: a finding is said once, a verdict until it is obeyed. Returns the message's number."""
        self._finding = None
        self._messages += 1
        return self._messages

    # --- deciding: rank 0 -------------------------------------------------------------------------------------------

    def learn(self, diagnosis: Diagnosis, record: StepRecord) -> None:
        """All ranks' findings about a bad step have arrived."""
        window = self._window
        window.fp32_finite = diagnosis.fp32_finite
        window.weights_finite = diagnosis.weights_finite
        window.forward_overflow = window.forward_overflow or diagnosis.forward_overflow
        if diagnosis.origin is not None:
            # The forward pass was watched layer by layer: worth more than what norms suggest.
            window.origins += [diagnosis.origin] * (len(window.origins) + 1)
        self._say(
            "sentinel_diagnosis",
            step=self._diagnosed,
            mode=record.mode.wire,
            finite_in_fp32=diagnosis.fp32_finite,
            weights_finite=diagnosis.weights_finite,
            layer=self.layers.name(diagnosis.origin),
        )
        if diagnosis.fp32_finite is False and diagnosis.weights_finite:
            self._warn(Reason.DATA_FAULT, record, "the batch is not finite in FP32 either; look at the data")
        if not diagnosis.weights_finite:
            self._close(record)

    def _close(self, record: StepRecord) -> None:
        """End the window; rank 0 judges it."""
        self._catch_up()
        window, self._window = self._window, Window()
        if not self._judges:
            return
        self._warn_early(window, record)
        floor = max(2.0 * self._scaler.floor, 2.0**-24)
        sample = Sample(
            clock=self._clock,
            mode=record.mode,
            tried=window.tried,
            skipped=window.skipped,
            nonfinite=window.nonfinite,
            nonfinite_streak=self._streak,
            at_floor=record.mode.uses_scaler and record.loss_scale <= floor,
            forward_overflow=window.forward_overflow,
            fp32_finite=window.fp32_finite,
            weights_finite=window.weights_finite,
            guilty=window.guilty(len(self.layers)),
            drift=self.drift,
            can_rewind=self.can_rewind,
        )
        self._state, transition = judge(self.config, self._state, sample)
        if transition is not None:
            self._serial = self._serial % SERIALS + 1
            self._pending = Verdict(self._serial, transition.after, transition.reason, transition.pin)

    def _warn_early(self, window: Window, record: StepRecord) -> None:
        if Spikes.is_spike(window.max_loss_z):
            self._warn(Reason.LOSS_SPIKE, record, "loss far above its average", sigmas=round(window.max_loss_z, 1))
        if Spikes.is_spike(window.max_norm_z):
            self._warn(
                Reason.GRADIENT_SPIKE, record, "gradient norm far above average", sigmas=round(window.max_norm_z, 1)
            )
        if record.mode.uses_scaler:
            slope = self._trend.observe(self._clock, record.loss_scale)
            if slope is not None and slope < _STEEP:
                self._warn(
                    Reason.SCALE_FALLING, record, "the loss scale is collapsing", log2_per_1000_steps=round(slope, 2)
                )

    # --- obeying: every rank, at one boundary -----------------------------------------------------------------------

    def obey(self, verdict: Verdict, sent: Sent) -> Transition | None:
        """Carry out a verdict that came with ``sent``; None if it was carried out before, or a request overtook it.

        Raises:
            DivergedError: the verdict is to give up.
        """
        if verdict.serial == self._obeyed or sent.number <= self._deaf_until:
            return None
        self._obeyed, self._pending = verdict.serial, None
        pins = (*self._islands.pinned, verdict.pin) if verdict.pin is not None else self._islands.pinned
        transition = Transition(self._applied, verdict.level, verdict.reason, verdict.pin)
        self._enter(verdict.level, pins if verdict.level >= Level.PIN else ())
        self._tell(transition, sent.step)
        if verdict.level is Level.EXIT:
            raise DivergedError(
                f"the sentinel gives up at step {sent.step} ({verdict.reason.value}): training cannot go on from these "
                "weights, and there is no healthy checkpoint to go back to, or going back did not help; look at the data "
                "and the learning rate, then resume from an older checkpoint"
            )
        return transition

    def requested(self, step: int) -> None:
        """A request with a higher generation was applied: it clears the level, and what is on its way with it."""
        self._catch_up()
        self._pending = None
        self._deaf_until = self._messages
        self._state, _ = cleared(self._state, self._clock)
        self.drift = False
        if self._applied is not Level.NOMINAL:
            transition = Transition(self._applied, Level.NOMINAL, Reason.REQUESTED)
            self._enter(Level.NOMINAL, ())
            self._tell(transition, step)

    def rewound(self) -> None:
        """The weights are other ones now (state/keeper.py): what was found about the old ones must not be said of them."""
        self._catch_up()
        self._finding = self._pending = None
        self._deaf_until = self._messages
        self._window, self._streak, self.drift = Window(), 0, False
        # A level that rank 0 found necessary for the old weights, and that nobody entered yet, is void.
        self._state = replace(self._state, level=self._applied, pins=tuple(self._islands.pinned))

    def _enter(self, level: Level, pins: tuple[int, ...]) -> None:
        self._catch_up()
        self._applied, self._window, self.drift, self._streak = level, Window(), False, 0
        self._next_diagnosis = self._clock + SETTLE_STEPS  # whether this helped is worth knowing soon
        self._islands.set(pins)
        if level is Level.NOMINAL:
            self._scaler.release()
        elif level is Level.LOWER_SCALE and not self._scaler.limited:
            self._scaler.lower(_LOWERED)

    def _tell(self, transition: Transition, step: int) -> None:
        layer = self.layers.name(transition.pin)
        self._say(
            "sentinel_transition",
            step=step,
            reason=transition.reason.value,
            layer=layer,
            pinned=self.pinned,
            strikes=self._state.strikes,
            **{"from": transition.before.label, "to": transition.after.label},
        )
        if self.observer is not None:
            self.observer(transition, layer)

    def _say(self, event: str, **fields: Field) -> None:
        if self._judges:
            self._log.event(event, at=None, **fields)

    def _warn(self, reason: Reason, record: StepRecord, message: str, **fields: Field) -> None:
        if self._judges:
            self._log.warning(
                "sentinel_warning", message, reason=reason.value, step=record.step, mode=record.mode.wire, **fields
            )

    # --- measuring: rank 0, one step in many ------------------------------------------------------------------------

    def begin_probe(self, mode: PrecisionMode) -> bool:
        """Before the last micro-batch of a step: measure it, if one is due. True: :meth:`end_probe` must follow."""
        return self._judges and mode is not PrecisionMode.FP32 and self._probe.attach_if_due(self._clock)

    def end_probe(self) -> None:
        """The measured step's backward pass is done."""
        self._probe.detach(self._clock)
        self._look_at = min(self._look_at, self._probe.read_at)

    def _read_probe(self, record: StepRecord) -> None:
        self.reading = reading = self._probe.read()
        if reading is not None and record.mode.uses_scaler and reading.headroom_log2 < 1:
            self._warn(
                Reason.LOW_HEADROOM,
                record,
                "the largest activation gradient is within a factor 2 of what FP16 holds",
                headroom_log2=round(reading.headroom_log2, 2),
                recommended_scale=reading.recommended_scale(record.loss_scale),
            )

    # --- what outlives the process ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """Level, pinned layers by name, relapses, and the order they stand under; plain values, for a checkpoint."""
        return {
            "level": int(self._applied),
            "pinned": self.pinned,
            "strikes": self._state.strikes,
            "order": self._order(),
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Go on where the process before this one was; the trainer's mode follows with its ``settle``.

        What is missing or unreadable counts as never seen. Where somebody has ordered anew since, the level is clear;
        relapses are remembered all the same.
        """
        level, pinned, strikes = state.get("level"), state.get("pinned"), state.get("strikes")
        if not isinstance(level, int) or not isinstance(pinned, list) or not isinstance(strikes, int):
            return
        self._state = State(strikes=max(strikes, 0), fell=strikes > 0)
        if state.get("order") != self._order() or not Level.NOMINAL < level < Level.EXIT:
            return
        reached = Level.FP32 if level >= Level.FP32 else Level(level)
        pins = tuple(self.layers.names.index(name) for name in pinned if name in self.layers.names)
        self._state = replace(self._state, level=reached, pins=pins, fell=False)
        self._enter(reached, pins)
