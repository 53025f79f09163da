"""What was written, by whom and when, as the API server's audit log has it: no client's word is taken for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was answered."""

    at: float
    """When it was answered; seconds since the epoch."""
    user: str
    verb: str
    resource: str
    """Plural, with the subresource where there is one: ``precisionpolicies/status``."""
    namespace: str
    name: str
    code: int
    body: object = None
    """What was sent, where the audit policy keeps it."""

    @property
    def succeeded(self) -> bool:
        """It was carried out."""
        return 200 <= self.code < 300


class Audit:
    """Reads the log on from a place."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def mark(self) -> int:
        """The end of the log as it is now."""
        return self._log.stat().st_size

    def writes(self, users: Iterable[str], *, since: int = 0) -> list[Write]:
        """Writes of these users after a mark, Leases and dry runs apart, in the order in which they were answered."""
        wanted = frozenset(users)
        found = []
        with self._log.open("rb") as log:
            log.seek(since)
            for line in log:
                if line.endswith(b"\n"):  # else: it is being written
                    write = _read(json.loads(line), wanted)
                    if write is not None:
                        found.append(write)
        return sorted(found, key=lambda write: write.at)


def _read(event: dict[str, object], users: frozenset[str]) -> Write | None:
    user, where, answer = event.get("user"), event.get("objectRef"), event.get("responseStatus")
    assert isinstance(user, dict)
    # A request that failed to authenticate has no user name.
    if user.get("username") not in users or event["verb"] not in _WRITES or event["stage"] != "ResponseComplete":
        return None
    assert isinstance(where, dict)
    assert isinstance(answer, dict)
    if where["resource"] == "leases" or "dryRun=" in str(event.get("requestURI", "")):
        return None
    inner = where.get("subresource")
    return Write(
        at=datetime.fromisoformat(str(event["stageTimestamp"])).timestamp(),
        user=user["username"],
        verb=str(event["verb"]),
        resource=f"{where['resource']}/{inner}" if inner else where["resource"],
        namespace=where.get("namespace", ""),
        name=where.get("name", ""),
        code=answer.get("code", 0),
        body=event.get("requestObject"),
    )
