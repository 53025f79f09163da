"""What mode a process starts in: environment and request file together, decided by rank 0 for the whole process group."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import ConfigError
from ..names import DEFAULT_REQUEST_FILE, REQUEST_FILE_ENV
from ..values.config import DISABLED_LINE, FALLBACK_LINE, Boot
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.request import UNKNOWN_MODE, Inbox, OnError, PrecisionRequest, RequestError, RequestFile, read_request


@dataclass(frozen=True, slots=True)
class Start:
    """The decision."""

    mode: PrecisionMode
    source: str
    """``request``, ``FEATURE_FLAGS``, ``ENABLE_FP16_TRAINING``, ``PRECISION_MODE`` or ``default``."""
    request: PrecisionRequest | None = None
    """The one that decided, and counts as applied; None if none did."""

    @property
    def generation(self) -> int:
        """Of the request that decided; 0 if none did."""
        return self.request.generation if self.request else 0

    @property
    def rewind(self) -> bool:
        """That request also asks to go back to the last healthy checkpoint."""
        return self.request is not None and self.request.rewind

    def to_wire(self) -> dict[str, object]:
        """For the other ranks."""
        request = self.request.to_wire() if self.request else None
        return {"mode": self.mode.wire, "source": self.source, "request": request}

    @classmethod
    def from_wire(cls, value: dict[str, object]) -> Start:
        """The inverse of :meth:`to_wire`. Raises ConfigError if it is not one."""
        mode, request = PrecisionMode.from_wire(str(value.get("mode"))), value.get("request")
        try:
            if mode is None:
                raise RequestError(UNKNOWN_MODE, "no mode")
            return cls(mode, str(value.get("source")), None if request is None else read_request(request))
        except RequestError as error:
            raise ConfigError(
                f"rank 0 sent the start decision {value!r}: not one ({error}); run the same image on all ranks"
            ) from None


def decide(boot: Boot, request: PrecisionRequest | None, inbox: Inbox, log: JsonLog) -> Start:
    """Rank 0's decision: FEATURE_FLAGS off > request file > environment. Says in the log which source won and why."""
    for message in boot.errors:
        log.error("bad_setting", f"{message}. {FALLBACK_LINE}")
    if request is not None and inbox.admissible(request):
        start = Start(request.mode, "request", request)
    elif boot.mode is not PrecisionMode.FP32 and boot.low_precision_refused is not None:
        log.warning("fallback", f"{FALLBACK_LINE}: {boot.low_precision_refused}")
        start = Start(PrecisionMode.FP32, boot.source)
    else:
        start = Start(boot.mode, boot.source)
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


class Requests:
    """What one process is asked for: by the request file at its start, and by it while it trains (rank 0 reads it)."""

    def __init__(self, boot: Boot, refused: OnError, env: Mapping[str, str] = os.environ) -> None:
        """Watch the file that ``env`` names; ``refused`` hears of what is not taken."""
        self.path = env.get(REQUEST_FILE_ENV) or DEFAULT_REQUEST_FILE
        self._boot = boot
        self._file = RequestFile(self.path, refused)
        self._inbox = Inbox(refused, boot.low_precision_refused)

    def start(self, log: JsonLog) -> Start:
        """What to start in: see :func:`decide`."""
        return decide(self._boot, self._file.poll(), self._inbox, log)

    def source(self, applied: Callable[[], PrecisionRequest | None]) -> Callable[[int], PrecisionRequest | None]:
        """The ``request_source`` of a trainer, of which ``applied`` tells the last request it applied."""

        def pending(applied_generation: int) -> PrecisionRequest | None:
            new = self._file.poll()
            if new is not None:
                self._inbox.offer(new, applied())
            return self._inbox.pending(applied_generation)

        return pending
