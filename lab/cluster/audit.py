"""What was written and read, by whom and when, as the API server's audit log has it: no client's word is taken for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from precision_operator.kube.denials import denying_policies

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
    asked_at: float = 0.0
    """When it was received; seconds since the epoch."""

    @property
    def succeeded(self) -> bool:
        """It was carried out."""
        return 200 <= self.code < 300


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """What RBAC gives, or what a request needs."""

    group: str
    resource: str
    """Plural, with the subresource where there is one."""
    verb: str
    name: str = ""
    """In a rule: the only object that it is for; empty: any."""

    def covers(self, needed: Right) -> bool:
        """Whether this rule allows the request."""
        same = (self.group, self.resource, self.verb) == (needed.group, needed.resource, needed.verb)
        return same and self.name in ("", needed.name)


@dataclass(frozen=True, slots=True)
class Rights:
    """What requests needed, as they were judged."""

    used: frozenset[Right]
    refused: frozenset[Right]
    """RBAC did not allow it."""


class Audit:
    """Reads the log on from a place."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def mark(self) -> int:
        """The end of the log as it is now."""
        return self._log.stat().st_size

    def writes(self, users: Iterable[str], *, since: int = 0) -> list[Write]:
        """Writes of these users after a mark, Leases and dry runs apart, in the order in which they were answered."""
        events = (event for event in self._events(users, since) if not _is_dry_run(event))
        found = (write for write in map(_write, events) if write is not None)
        return sorted(found, key=lambda write: write.at)

    def denied_trials(self, users: Iterable[str]) -> list[tuple[str, Write]]:
        """(admission policy, dry run that it denied) of these users."""
        found: list[tuple[str, Write]] = []
        for event in filter(_is_dry_run, self._events(users, 0)):
            write = _write(event)
            if write is not None:
                found += ((policy, write) for policy in denying_policies(_said(event)))
        return found

    def rights(self, users: Iterable[str], *, since: int = 0) -> Rights:
        """The rights on objects that requests of these users needed after a mark, whatever was made of them otherwise."""
        found: dict[str, set[Right]] = {"allow": set(), "forbid": set()}
        for event in self._events(users, since):
            right, notes = _right(event), event.get("annotations")
            if right is not None and isinstance(notes, dict):
                found.setdefault(notes.get("authorization.k8s.io/decision", ""), set()).add(right)
        return Rights(frozenset(found["allow"]), frozenset(found["forbid"]))

    def _events(self, users: Iterable[str], since: int) -> Iterator[dict[str, object]]:
        wanted = frozenset(users)
        with self._log.open("rb") as log:
            log.seek(since)
            for line in log:
                if not line.endswith(b"\n"):
                    return  # it is being written
                event = json.loads(line)
                # A request that failed to authenticate has no user name.
                if event["user"].get("username") in wanted:
                    yield event


def _right(event: dict[str, object]) -> Right | None:
    where = event.get("objectRef")
    if not isinstance(where, dict):
        return None  # discovery, health
    return Right(where.get("apiGroup", ""), _resource(where), str(event["verb"]), where.get("name", ""))


def _resource(where: dict[str, str]) -> str:
    inner = where.get("subresource")
    return f"{where['resource']}/{inner}" if inner else where["resource"]


def _is_dry_run(event: dict[str, object]) -> bool:
    return "dryRun=" in str(event.get("requestURI", ""))


def _said(event: dict[str, object]) -> str:
    answer = event.get("responseStatus")
    return str(answer.get("message", "")) if isinstance(answer, dict) else ""


def _write(event: dict[str, object]) -> Write | None:
    user, where, answer = event.get("user"), event.get("objectRef"), event.get("responseStatus")
    if event["verb"] not in _WRITES or event["stage"] != "ResponseComplete":
        return None
    assert isinstance(user, dict)
    assert isinstance(where, dict)
    assert isinstance(answer, dict)
    if where["resource"] == "leases":
        return None
    return Write(
        at=datetime.fromisoformat(str(event["stageTimestamp"])).timestamp(),
        user=user["username"],
        verb=str(event["verb"]),
        resource=_resource(where),
        namespace=where.get("namespace", ""),
        name=where.get("name", ""),
        code=answer.get("code", 0),
        body=event.get("requestObject"),
        asked_at=datetime.fromisoformat(str(event["requestReceivedTimestamp"])).timestamp(),
    )
