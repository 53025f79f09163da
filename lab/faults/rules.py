"""What a request of the operator is called, and which fault it meets. Pure.

A write that counts is a POST, PUT, PATCH or DELETE that changes what is stored. Not counted: dry runs (nothing is stored),
the Lease (its renewals have no number that two runs share), Events (nobody decides on them), reviews of the API server
(questions in the form of a POST), and what has no namespace or that of the operator (its webhook's configuration).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote

WRITING = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_UNCOUNTED = frozenset({"leases", "events", "selfsubjectreviews", "subjectaccessreviews", "tokenreviews"})
_PATH = re.compile(r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<rest>.+)")
_GENERATED = frozenset({"pods", "replicasets"})


class Fault(StrEnum):
    """What is done to one request, or to a watch."""

    KILL_BEFORE = "kill-before"
    """SIGKILL before the write is forwarded."""
    KILL_AFTER = "kill-after"
    """SIGKILL when it is committed, before it is answered."""
    DROP_ANSWER = "drop-answer"
    """Committed; the connection is closed instead of an answer."""
    CONFLICT = "409"
    INVALID = "422"
    THROTTLED = "429"
    INTERNAL = "500"
    UNAVAILABLE = "503"
    DELAY = "delay"
    """Forwarded when the delay is over."""
    CUT_WATCH = "cut-watch"
    """All watches of the namespace end when the write is committed."""
    REPEAT_EVENT = "repeat-event"
    """The next event of pods, of assignments and of policies comes twice, in the watch where it comes first."""
    HIDE_EVENT = "hide-event"
    """The next event of one watch is not shown, or late where no other of its object follows."""
    OLD_LIST = "old-list"
    """Watches end as expired, and what is listed next to be watched from there is what was listed first."""


KILLS = frozenset({Fault.KILL_BEFORE, Fault.KILL_AFTER})
REFUSALS = frozenset({Fault.CONFLICT, Fault.INVALID, Fault.THROTTLED, Fault.INTERNAL, Fault.UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the proxy reads it."""

    method: str
    namespace: str
    """Empty: of the cluster."""
    resource: str
    name: str
    """Of the object; empty for a collection."""
    subresource: str = ""
    dry_run: bool = False
    watch: bool = False
    selected: bool = False
    """Only some objects are asked for, by a selector: never to be watched from there."""

    @property
    def counted(self) -> bool:
        """Whether it is a write in the sense of this module."""
        return self.method in WRITING and not self.dry_run and self.resource not in _UNCOUNTED and bool(self.namespace)

    @property
    def listing(self) -> bool:
        """Whether it reads a whole collection, as one does who watches from there."""
        return self.method == "GET" and not self.name and not self.watch and not self.selected


def parse(method: str, path: str, query: Mapping[str, str], *, body_dry_run: bool = False) -> Request | None:
    """The request of a method and a path; None: none about objects (discovery, for example)."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    resource, _, rest = found["rest"].partition("/")
    name, _, subresource = rest.partition("/")
    dry_run = body_dry_run or "dryRun" in query
    watch = query.get("watch", "") in ("1", "true")
    selected = "labelSelector" in query or "fieldSelector" in query
    return Request(method, found["namespace"] or "", resource, unquote(name), subresource, dry_run, watch, selected)


def about(request: Request, body_name: str = "") -> str:
    """What a request is about, the same in each run: a pod by the workload that made it, an incident by its policy.

    ``body_name``: the name in the body of a creation.
    """
    name = request.name or body_name
    if request.resource in _GENERATED and name.count("-") >= 2:
        return name.rsplit("-", 2)[0]
    return re.sub(r"-[0-9a-f]{5,}(?=-|$)", "", name) if request.resource == "precisionincidents" else name


@dataclass(frozen=True, slots=True)
class Write:
    """A write of a workflow, by a name that each run of it shares."""

    verb: str
    resource: str
    about: str
    nth: int
    """1 is the first of this verb, on this resource, about this."""
    subresource: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource} {self.about} #{self.nth}"

    @classmethod
    def parse(cls, text: str) -> Write:
        """The inverse of ``str``.

        Raises:
            ValueError: it is no write's name.
        """
        found = re.fullmatch(r"(\S+) ([^\s/]+)(?:/(\S+))? (\S*) #(\d+)", text)
        if found is None:
            raise ValueError(f"expected 'VERB RESOURCE[/SUBRESOURCE] NAME #N', found {text!r}")
        verb, resource, subresource, name, nth = found.groups()
        return cls(verb, resource, name, int(nth), subresource or "")


class Numbering:
    """Names the writes of one run in the order in which they come."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str, str, str]] = Counter()
        self.writes: list[Write] = []
        """All of them so far."""

    def name(self, request: Request, body_name: str = "") -> Write:
        """The name of a counted request."""
        key = (request.method, request.resource, request.subresource, about(request, body_name))
        self._seen[key] += 1
        write = Write(request.method, request.resource, key[3], self._seen[key], request.subresource)
        self.writes.append(write)
        return write


@dataclass(frozen=True, slots=True)
class Injection:
    """One fault at one write of one workflow."""

    workflow: str
    write: Write
    fault: Fault

    def __str__(self) -> str:
        return f"{self.workflow}: {self.fault} at {self.write}"
