"""What mode a process starts in: environment and request file together, decided by rank 0 for the whole gang."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError
from ..gang.request import Inbox, PrecisionRequest
from ..precision.config import DISABLED_LINE, FALLBACK_LINE, Boot
from ..precision.modes import PrecisionMode
from ..telemetry.logs import JsonLog


@dataclass(frozen=True, slots=True)
class Start:
    """The decision."""

    mode: PrecisionMode
    source: str
    """``request``, ``FEATURE_FLAGS``, ``ENABLE_FP16_TRAINING``, ``PRECISION_MODE`` or ``default``."""
    generation: int
    """Of the request that decided, 0 if none did."""
    rewind: bool = False
    """That request also asks to go back to the last healthy checkpoint."""

    @property
    def request(self) -> PrecisionRequest | None:
        """The request that counts as applied."""
        return PrecisionRequest(self.generation, self.mode, rewind=self.rewind) if self.generation else None

    def to_wire(self) -> dict[str, object]:
        """For the other ranks."""
        return {"mode": self.mode.wire, "source": self.source, "generation": self.generation, "rewind": self.rewind}

    @classmethod
    def from_wire(cls, value: dict[str, object]) -> Start:
        """The inverse of :meth:`to_wire`. Raises ConfigError if it is not one."""
        mode = PrecisionMode.from_wire(str(value.get("mode")))
        generation = value.get("generation")
        if mode is None or not isinstance(generation, int):
            raise ConfigError(f"rank 0 sent the start decision {value!r}: not one; run the same image on all ranks")
        return cls(mode, str(value.get("source")), generation, value.get("rewind") is True)


def decide(boot: Boot, request: PrecisionRequest | None, inbox: Inbox, log: JsonLog) -> Start:
    """Rank 0's decision: FEATURE_FLAGS off > request file > environment. Says in the log which source won and why."""
    for message in boot.errors:
        log.error("bad_setting", f"{message}. {FALLBACK_LINE}")
    if request is not None and inbox.admissible(request):
        start = Start(request.mode, "request", request.generation, request.rewind)
    elif boot.mode is not PrecisionMode.FP32 and boot.low_precision_refused is not None:
        log.warning("fallback", f"{FALLBACK_LINE}: {boot.low_precision_refused}")
        start = Start(PrecisionMode.FP32, boot.source, 0)
    else:
        start = Start(boot.mode, boot.source, 0)
    enabled = start.mode is not PrecisionMode.FP32
    log.event(
        "precision_selected",
        mode=start.mode.wire,
        source=start.source,
        generation=start.generation,
        message=f"{start.mode.wire} training enabled" if enabled else DISABLED_LINE,
    )
    log.event("settings", message=f"fp16_enabled: {enabled}", loss_scale=boot.scaling.loss_scale)
    return start
