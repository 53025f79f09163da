"""Rank 0's closer looks at good steps: activation gradients in one of many, a shadow in FP32 of fewer (S2 and S5)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..step.replay import Replay
from ..step.steps import Sent, StepRecord
from ..values.levels import Reason
from ..values.modes import PrecisionMode
from ..values.sentinel import SentinelConfig
from .guard import Guard
from .layers import Layers
from .probe import ActivationProbe, ProbeReading
from .shadow import ShadowReading, shadow
from .voice import Voice

_FIRST_SHADOW = 64
"""Steps in a mode before its first shadow: a promotion should not wait for the next one in ``shadow_steps``."""
_POOR_COSINE = 0.95
"""Below it low precision changes the direction of training; docs/sentinel.md has what is usual."""
_NEVER = 2**62
_PROBE = "probe of the activation gradients"


class Measurements:
    """Probe and shadow of one rank."""

    def __init__(
        self,
        config: SentinelConfig,
        model: torch.nn.Module,
        layers: Layers,
        *,
        device: torch.device,
        measures: bool,
        voice: Voice,
        guard: Guard,
    ) -> None:
        """Measure ``model`` if ``measures``; otherwise do nothing."""
        self.reading: ProbeReading | None = None
        """What the last probe measured; None before one."""
        self.shadow: ShadowReading | None = None
        """Of the mode in force; None before one, and where it is not known."""
        self.observer: Callable[[ShadowReading], None] | None = None
        """Told of each shadow."""
        self._model, self._device, self._measures, self._voice = model, device, measures, voice
        self._guard = guard
        self._probe = ActivationProbe(model, layers, config.probe_steps, lambda error: guard.switch_off(_PROBE, error))
        self._every, self._due = config.shadow_steps, _NEVER
        self._mode: PrecisionMode | None = None

    def begin(self, mode: PrecisionMode, clock: int) -> bool:
        """Before the last micro-batch of a step: probe it, if one is due. True: :meth:`end` must follow."""
        if not self._measures or mode is PrecisionMode.FP32 or self._probe.rests(clock):
            return False
        return self._guard(_PROBE, lambda: self._probe.attach_if_due(clock)) or False

    def end(self, clock: int) -> int:
        """The probed step's backward pass is done. Returns the clock at which it can be read."""
        self._probe.detach(clock)
        return self._probe.read_at

    def next_at(self, clock: int) -> int:
        """Clock of the next look."""
        return min((at for at in (self._probe.read_at, self._due) if at > clock), default=_NEVER)

    def hasten(self, clock: int) -> None:
        """Compute a good step in FP32 as soon as there is one, where that is done at all."""
        self.shadow = None
        if self._due != _NEVER:
            self._due = clock + 1

    @property
    def disagree(self) -> bool:
        """The last shadow showed low precision to change the direction of training."""
        return self.shadow is not None and self.shadow.cosine < _POOR_COSINE

    def look(self, record: StepRecord, sent: Sent, clock: int, *, good: bool) -> None:
        """After a step of which something may come: read what was probed, and look closer where it is time."""
        if record.mode is not self._mode:
            self._mode, self.shadow = record.mode, None
            low = self._measures and self._every and record.mode is not PrecisionMode.FP32
            self._due = clock + min(_FIRST_SHADOW, self._every) if low else _NEVER
        if clock == self._probe.read_at:
            self._read_probe(record)
        if good and clock >= self._due and sent.replay is not None:
            self._due = clock + self._every
            self._cast_shadow(record, sent.replay)

    def _cast_shadow(self, record: StepRecord, replay: Replay) -> None:
        scale = record.loss_scale if record.mode.uses_scaler else 1.0
        self.shadow = found = self._guard(
            "shadow in FP32",
            lambda: shadow(self._model, replay, record.mode, scale=scale, device=self._device),
        )
        if found is None:
            return
        if self.observer is not None:
            self.observer(found)
        if found.cosine < _POOR_COSINE:
            self._voice.warn(
                Reason.GRADIENTS_DISAGREE,
                record,
                "the gradients point elsewhere than those of the same batch in FP32",
                cosine=round(found.cosine, 4),
                error_ratio=round(found.error_ratio, 4),
                parameter=found.parameter,
                parameter_cosine=round(found.parameter_cosine, 4),
            )

    def _read_probe(self, record: StepRecord) -> None:
        self.reading = reading = self._guard(_PROBE, self._probe.read)
        if reading is not None and record.mode.uses_scaler and reading.headroom_log2 < 1:
            self._voice.warn(
                Reason.LOW_HEADROOM,
                record,
                "the largest activation gradient is within a factor 2 of what FP16 holds",
                headroom_log2=round(reading.headroom_log2, 2),
                recommended_scale=reading.recommended_scale(record.loss_scale),
            )
