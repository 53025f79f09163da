"""Whether a lease may be taken, judged by looking at it again and again."""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path

from .lease_file import Sight, process_lives
from .pod import pod_uid

LEASE_SECONDS = 30.0
"""Without a heartbeat for this long, a lease is free."""
MAX_LEASE_SECONDS = 3600.0


class LeaseReason(StrEnum):
    """Why a lease could be taken."""

    FREE = "Free"
    """There was none."""
    RELEASED = "Released"
    """The holder before ended in order."""
    SAME_POD = "SamePod"
    """The container was restarted in its pod: the process before is gone."""
    EXPIRED = "Expired"
    """The holder gave no heartbeat: it crashed, its node is cut off, or it is frozen. See what became of it."""


class Judge:
    """Decides by looks at the lease whether it may be taken. Time is this process' own: clocks of two nodes may differ."""

    def __init__(self, root: Path, holder: str, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Of the lease in ``root``, for ``holder``; ``seconds`` without a heartbeat free it."""
        self._root, self._holder, self._seconds, self._clock = root, holder, seconds, clock
        self._seen: Sight | None = None
        self._since = clock()

    @property
    def age(self) -> float:
        """Seconds for which no heartbeat was seen."""
        return self._clock() - self._since

    @property
    def limit(self) -> float:
        """Seconds without a heartbeat after which the lease is free; the holder's setting counts too, as it beats by it."""
        record = self._seen.record if self._seen is not None else None
        return max(self._seconds, min(record.seconds, MAX_LEASE_SECONDS)) if record is not None else self._seconds

    @property
    def seen(self) -> str:
        """Whose lease was seen last."""
        return (self._seen.holder if self._seen is not None else None) or "a process whose lease file cannot be read"

    def __call__(self, sight: Sight | None) -> LeaseReason | None:
        """Why the lease can be taken, by the latest look; None: it cannot."""
        if sight is None:
            return LeaseReason.FREE
        if sight != self._seen:
            self._seen, self._since = sight, self._clock()
        record = sight.record
        if record is not None:
            if record.released:
                return LeaseReason.RELEASED
            if record.holder == self._holder and not process_lives(self._root, sight.number):
                return LeaseReason.SAME_POD
        return LeaseReason.EXPIRED if self.age >= self.limit else None


def holder_name(env: Mapping[str, str] = os.environ) -> str:
    """The pod's uid; where it is not known, a name that only this process has."""
    return pod_uid(env) or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def how_to_find(holder: str | None) -> str:
    """A command that finds the holder's pod by its uid; empty where the name is none."""
    if holder is None or not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", holder):
        return ""
    columns = "NAMESPACE:.metadata.namespace,NAME:.metadata.name,UID:.metadata.uid"
    return f"Find it: kubectl get pods -A -o custom-columns={columns} | grep {holder}"
