"""The sentinel of one rank: gathers readings from step records, carries out what rank 0 decided, says why.

Every rank watches, since every rank must look into a bad step at the same boundary; rank 0 alone judges. Its verdict and all
ranks' findings travel in the telemetry parameter (distributed/agreement.py), so that all obey at one boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import torch

from ..errors import DivergedError
from ..step.replay import Replay
from ..step.scaler import LossScaler
from ..step.steps import Sent, StepRecord
from ..values.levels import SERIALS, Diagnosis, Finding, Level, Reason, Verdict, safer
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.sentinel import SentinelConfig
from .diagnose import diagnose
from .guard import Guard
from .islands import Islands
from .layers import Layers
from .machine import SETTLE_STEPS, Sample, SentinelState, Transition, cleared, is_unexplained, judge
from .measure import Measurements
from .voice import Voice
from .watch import StepWatch

_LOWERED = 2.0**-4
"""What LOWER_SCALE multiplies the scale by."""
_BURST = 3
"""Overflows in a window that are worth looking into; one or two are a scale that grew too far."""
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
        buffers: Collection[str] = (),
    ) -> None:
        """Watch ``model``, and whether ``buffers`` stay finite, by name.

        ``order`` names the request in force, as something that another request would not be named.
        """
        self.config = config
        self.layers = Layers(model, optimizer)
        self.can_rewind = False
        """Set by whoever can load the last healthy checkpoint (job/train.py)."""
        self.can_exit = False
        """Set by whoever wants training ended where nothing helps (job/train.py); a script may know a way of its own."""
        self.observer: Observer | None = None
        self._model, self._scaler, self._device, self._buffers = model, scaler, device, buffers
        self._judges, self._order = rank == 0, order
        self._voice, self._guard = Voice(log, speaks=self._judges), Guard(log)
        self._watch = StepWatch(config.window_steps, config.diverged_steps, self._guard)
        self.measurements = Measurements(
            config, model, self.layers, device=device, measures=self._judges, voice=self._voice, guard=self._guard
        )
        self._islands = Islands(self.layers, device, self._guard)
        self._state = SentinelState()
        self._applied = Level.NOMINAL
        self._serial = self._obeyed = 0
        self._messages = self._ignored_until = 0
        self._pending: Verdict | None = None
        self._finding: Finding | None = None
        self._next_diagnosis = self._diagnosed = 0
        self._unseen = False
        """A step was suspicious while a diagnosis was too recent for another."""
        self._drift_told = False
        self._poison_told = False
        """That the weights are not finite; True until a step is good, or they are found to be finite."""
        self._watches = True

    @property
    def level(self) -> Level:
        """In force on this rank."""
        return self._applied

    @property
    def pinned(self) -> list[str]:
        """Names of the layers that compute in FP32."""
        return [self.layers.names[index] for index in self._islands.pinned]

    def allowed(self, requested: PrecisionMode) -> PrecisionMode:
        """The safer of what is requested and what the level allows."""
        return safer(requested, self._applied.cap)

    # --- watching: every rank, every step ---------------------------------------------------------------------------

    def passes(self, record: StepRecord) -> bool:
        """Take a good step in, if nothing can come of it; one that does not pass is to be observed."""
        return not self._watches or self._watch.passes(record)

    def observe(self, record: StepRecord, sent: Sent) -> None:
        """Take a step in; look into it, if it was bad. All ranks see the same record. Never raises."""
        watch = self._watch
        if not self._watches:
            return
        try:  # not through the guard: a call for every step
            if not watch.observe(record):
                return
            bad = record.bad
            if bad:
                self._look_into(record, sent)
            elif self._unseen:
                self._look_at_weights(record)
            self.measurements.look(record, sent, watch.clock, good=not bad)
            if watch.full:
                all_bad = watch.window.tried == watch.window.skipped + watch.window.nonfinite
                self._close(record)
                self._poison_told = self._poison_told and all_bad
            watch.look_again(self._next_look())
        except Exception as error:  # noqa: BLE001  (whatever it is: it must not end training)
            self._watches = False
            self._guard.switch_off("watch over steps", error)

    def _next_look(self) -> int:
        clock = self._watch.clock
        at = self.measurements.next_at(clock)
        return min(at, max(self._next_diagnosis, clock + 1)) if self._unseen else at

    def _look_into(self, record: StepRecord, sent: Sent) -> None:
        window, clock = self._watch.window, self._watch.clock
        if self._judges and len(window.origins) < _MAX_ORIGINS:
            origin = self._guard("gradient norms of a bad step", lambda: self.layers.origin(sent.gradient_norms()))
            if origin is not None:
                window.origins.append(origin)
        # One overflow with a finite loss is how a scale finds its place.
        suspicious = record.nonfinite or record.loss - record.loss != 0.0 or window.skipped >= _BURST
        if not suspicious:
            return
        if clock < self._next_diagnosis:
            self._unseen = True
            return
        self._next_diagnosis = clock + self.config.window_steps
        self._diagnose(record, sent.replay)

    def _look_at_weights(self, record: StepRecord) -> None:
        """After a good step: what an earlier one did to them, which nobody looked at then."""
        if self._watch.clock >= self._next_diagnosis:
            self._diagnose(record, None)

    def _diagnose(self, record: StepRecord, replay: Replay | None) -> None:
        self._unseen = False
        self._diagnosed = record.step
        # Where nothing can give buffers back they change nothing here: batch norm, for one, learns on without its running
        # statistics, and the layer before it that overflowed is still to be found.
        # The same once a rewind was asked for, also in vain: what follows is the end, which they are not worth.
        buffers = self._buffers if self.can_rewind and self._applied < Level.REWIND else ()
        self._finding = diagnose(
            self._model, self.layers, replay, record.mode, self._device, guard=self._guard, buffers=buffers
        )

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
        """All ranks' findings about a bad step have arrived. Never raises."""
        self._guard("judgement of a finding", lambda: self._learn(diagnosis, record))

    def _learn(self, diagnosis: Diagnosis, record: StepRecord) -> None:
        window = self._watch.window
        if diagnosis.fp32_finite is not None:
            window.fp32_finite = diagnosis.fp32_finite
        window.weights_finite = diagnosis.weights_finite is not False
        window.forward_overflow = window.forward_overflow or diagnosis.forward_overflow
        if diagnosis.origin is not None:
            # The forward pass was watched layer by layer: worth more than what norms suggest.
            window.origins += [diagnosis.origin] * (len(window.origins) + 1)
        self._voice.say(
            "sentinel_diagnosis",
            step=self._diagnosed,
            mode=record.mode.wire,
            finite_in_fp32=diagnosis.fp32_finite,
            weights_finite=diagnosis.weights_finite,
            layer=self.layers.name(diagnosis.origin),
        )
        if diagnosis.fp32_finite is False and diagnosis.weights_finite:
            self._voice.warn(Reason.DATA_FAULT, record, "the batch is not finite in FP32 either; look at the data")
        if diagnosis.weights_finite is False:
            self._tell_poison(record)
            self._close(record)
        elif diagnosis.weights_finite and self._poison_told:
            self._poison_told = False
            self._watch.restart()

    def _tell_poison(self, record: StepRecord) -> None:
        if self._poison_told or self.can_rewind or self.can_exit:
            return
        self._poison_told = True
        self._voice.warn(
            Reason.NONFINITE_WEIGHTS,
            record,
            "the weights are not finite: no precision helps, and no checkpoint is written; load good ones (load_checkpoint)",
        )

    def _close(self, record: StepRecord) -> None:
        """End the window; rank 0 judges it."""
        watch = self._watch
        window = watch.close()
        if not self._judges or self._poison_told:  # what poisoned weights show says nothing of precision
            return
        watch.warn(window, record, self._voice)
        floor = max(2.0 * self._scaler.floor, 2.0**-24)
        sample = Sample(
            clock=watch.clock,
            mode=record.mode,
            tried=window.tried,
            skipped=window.skipped,
            nonfinite=window.nonfinite,
            nonfinite_streak=watch.streak,
            at_floor=record.mode.uses_scaler and record.loss_scale <= floor,
            forward_overflow=window.forward_overflow,
            fp32_finite=window.fp32_finite,
            weights_finite=window.weights_finite,
            guilty=window.guilty(len(self.layers)),
            drift=watch.drift and self._drift_is_confirmed(record),
            can_rewind=self.can_rewind,
            can_exit=self.can_exit,
        )
        self._state, transition = judge(self.config, self._state, sample)
        if transition is not None:
            self._serial = self._serial % SERIALS + 1
            self._pending = Verdict(self._serial, transition.after, transition.reason, transition.pin)
        elif is_unexplained(self.config, sample) and window.held < window.tried:  # else the watch said it
            self._voice.warn(
                Reason.NONFINITE_UNEXPLAINED,
                record,
                f"{window.nonfinite} of {window.tried} steps were not finite, and no replay says whether they are in FP32; "
                "the mode is left only where three in four are not; look at the data (is every label of a batch masked?), "
                "or give a replay_fn",
            )

    def _drift_is_confirmed(self, record: StepRecord) -> bool:
        """Whether precision is what drives the loss away, and not the data: what a shadow found since it did."""
        if not self._drift_told:
            self._drift_told = True
            self._voice.warn(
                Reason.LOSS_DRIFT,
                record,
                "the loss is more than 5 % above its FP32 baseline; the mode is left only if a replay of a good step shows "
                "that precision changes the gradients",
            )
            self.measurements.hasten(self._watch.clock)
        return self.measurements.disagree

    # --- obeying: every rank, at one boundary -----------------------------------------------------------------------

    def obey(self, verdict: Verdict, sent: Sent) -> Transition | None:
        """Carry out a verdict that came with ``sent``; None if it was carried out before, or a request overtook it.

        Raises:
            DivergedError: the verdict is to give up.
        """
        if verdict.serial == self._obeyed or sent.number <= self._ignored_until:
            return None
        self._obeyed, self._pending = verdict.serial, None
        pins = (*self._islands.pinned, verdict.pin) if verdict.pin is not None else self._islands.pinned
        transition = Transition(self._applied, verdict.level, verdict.reason, verdict.pin)
        self._enter(verdict.level, pins if verdict.level >= Level.PIN else ())
        self._guard("report of a transition", lambda: self._tell(transition, sent.step))
        if verdict.level is Level.EXIT:
            raise DivergedError(
                f"the sentinel gives up at step {sent.step} ({verdict.reason.value}): training cannot go on from these "
                "weights, and there is no healthy checkpoint to go back to, or going back did not help; look at the data "
                "and the learning rate, then resume from an older checkpoint"
            )
        return transition

    def requested(self, step: int) -> None:
        """A request with a higher generation was applied: it clears the level, and what is on its way with it."""
        self._watch.catch_up()
        self._pending = None
        self._ignored_until = self._messages
        self._state, _ = cleared(self._state, self._watch.clock)
        self._watch.drift = self._drift_told = False
        if self._applied is not Level.NOMINAL:
            transition = Transition(self._applied, Level.NOMINAL, Reason.REQUESTED)
            self._enter(Level.NOMINAL, ())
            self._guard("report of a transition", lambda: self._tell(transition, step))

    def rewound(self) -> None:
        """The weights are other ones now (store/checkpointer.py): what was found about the old ones is void."""
        self._watch.restart()
        self._drift_told = self._poison_told = self._unseen = False
        self._finding = self._pending = None
        self._ignored_until = self._messages
        # A level that rank 0 found necessary for the old weights, and that nobody entered yet, is void.
        self._state = replace(self._state, level=self._applied, pins=tuple(self._islands.pinned))

    def _enter(self, level: Level, pins: tuple[int, ...]) -> None:
        self._watch.restart()
        self._drift_told = False
        self._applied = level
        self._next_diagnosis = self._watch.clock + SETTLE_STEPS  # whether this helped is worth knowing soon
        self._guard("layers in FP32", lambda: self._islands.set(pins))
        if level is Level.NOMINAL:
            self._scaler.release()
        elif level is Level.LOWER_SCALE and not self._scaler.limited:
            self._scaler.lower(_LOWERED)
        # Rank 0 looks at its probes in between: on all ranks a look falls due in the same step, or it is not heard.
        self._watch.look_at = min(self._watch.look_at, self._next_diagnosis)

    def _tell(self, transition: Transition, step: int) -> None:
        layer = self.layers.name(transition.pin)
        self._voice.say(
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

    # --- measuring: rank 0, one step in many ------------------------------------------------------------------------

    def begin_probe(self, mode: PrecisionMode) -> bool:
        """Before the last micro-batch of a step: measure it, if one is due. True: :meth:`end_probe` must follow."""
        return self.measurements.begin(mode, self._watch.clock)

    def end_probe(self) -> None:
        """The measured step's backward pass is done. Never raises."""
        read_at = self._guard("end of a probe", lambda: self.measurements.end(self._watch.clock))
        if read_at is not None:
            self._watch.look_at = min(self._watch.look_at, read_at)

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
        self._state = SentinelState(strikes=max(strikes, 0), fell=strikes > 0)
        if state.get("order") != self._order() or not Level.NOMINAL < level < Level.EXIT:
            return
        reached = Level.FP32 if level >= Level.FP32 else Level(level)
        pins = tuple(self.layers.names.index(name) for name in pinned if name in self.layers.names)
        self._state = replace(self._state, level=reached, pins=pins, fell=False)
        self._enter(reached, pins)
