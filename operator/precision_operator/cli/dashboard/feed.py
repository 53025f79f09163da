"""One reader of the cluster for all pages: it looks while a page is open, and puts what it finds on the board."""

import argparse
import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from precision_operator.api.text import bounded
from precision_operator.cli.dashboard import charts, incidents
from precision_operator.cli.dashboard.board import Board, Row
from precision_operator.cli.dashboard.orders import buttons, prerequisites
from precision_operator.cli.dashboard.rows import policy_row, workload_rows
from precision_operator.cli.dashboard.trends import Trends
from precision_operator.cli.fleet import FleetView, read_fleets
from precision_operator.cli.history import timeline
from precision_operator.cli.live import readings
from precision_operator.cli.refusals import in_words
from precision_operator.cli.session import Session, Target
from precision_operator.core.model import Evaluation
from precision_operator.errors import KubeError, OperatorError

LOOK_SECONDS = 1.0
"""Between two reads of policies and assignments, which are few."""
FLEET_SECONDS = 2.0
"""Between two reads of workloads and pods, at least; also as soon as a policy or its assignment changed."""
SHARE = 0.25
"""Of the time that may go into reading workloads and pods: a large fleet is read more seldom."""
LONGEST_SECONDS = 15.0
"""Between two reads of workloads and pods, at most."""
RECORDING_SECONDS = 15.0
"""Between two reads of the recording of a rollback, which grows while it goes on."""
COUNTS_KEPT = 900
ABOUT, POLICIES, WORKLOADS, DETAILS = "about", "policies", "workloads", "details"


@dataclass(eq=False, slots=True)
class Page:
    """One that is open."""

    watched: str = ""
    """The policy whose details it shows, as ``namespace/name``; empty: none."""
    told: int = 0
    """The version of the board that it was told."""

    @property
    def topics(self) -> tuple[str, ...]:
        """What it shows."""
        details = (f"{DETAILS}/{self.watched}",) if self.watched else ()
        return (ABOUT, POLICIES, WORKLOADS, *details)


@dataclass(slots=True)
class _Counted:
    """What the statuses counted since the dashboard began to look."""

    kept: dict[str, deque[tuple[float, dict[str, int]]]] = field(default_factory=dict)

    def take(self, target: Target, now: float) -> None:
        status = target.status
        counts = {"as wanted": status.moved, "breached": status.breached, "unknown": status.unknown}
        points = self.kept.setdefault(target.where, deque(maxlen=COUNTS_KEPT))
        if len(points) > 1 and points[-1][1] == points[-2][1] == counts:
            points.pop()  # only the ends of a level are kept
        points.append((round(now, 1), counts))


class Feed:
    """Reads, and tells the pages that something changed."""

    def __init__(self, session: Session, arguments: argparse.Namespace) -> None:
        self.board = Board()
        self.fleets: tuple[FleetView, ...] = ()
        self._session, self._arguments = session, arguments
        self._everywhere = bool(arguments.all_namespaces)
        self._pages: set[Page] = set()
        self._changed = asyncio.Condition()
        self._wanted = asyncio.Event()
        self._seen: object = None
        self._read_at, self._read_seconds = -math.inf, 0.0
        self._problem = ""
        self._counted = _Counted()
        self._trends = Trends(arguments)
        self._recordings: dict[str, tuple[str, float, list[charts.Chart], list[str]]] = {}

    @contextmanager
    def page(self, watched: str) -> Iterator[Page]:
        """A page that is open for as long as the block runs."""
        page = Page(watched)
        self._pages.add(page)
        self._seen = None
        self._wanted.set()
        try:
            yield page
        finally:
            self._pages.discard(page)
            if watched and not any(other.watched == watched for other in self._pages):
                self.board.drop(f"{DETAILS}/{watched}")

    async def news(self, page: Page, *, seconds: float) -> AsyncIterator[dict[str, dict[str, Row | None]]]:
        """What a page has to be told, whenever there is something; nothing, at least this often."""
        while True:
            version, found = self.board.version, self.board.since(page.told, page.topics)
            page.told = version
            yield found
            async with self._changed:
                try:
                    wait = self._changed.wait_for(lambda: self.board.version > page.told)
                    await asyncio.wait_for(wait, seconds)
                except TimeoutError:
                    continue

    def look(self) -> None:
        """Something was written: look at once."""
        self._seen = None
        self._wanted.set()

    async def run(self) -> None:
        """Look again and again, for as long as a page is open."""
        while True:
            if not self._pages:
                await self._wanted.wait()
            self._wanted.clear()
            await self._look()
            async with self._changed:
                self._changed.notify_all()
            if self._pages:
                self.board.forget(min(page.told for page in self._pages))
            try:
                await asyncio.wait_for(self._wanted.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue

    async def _look(self) -> None:
        problem = ""
        try:
            problem = await self._read()
        except KubeError as error:
            problem = in_words(error, self._session.flags)
        except OperatorError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - the last barrier: whatever was read, the page goes on
            problem = bounded(f"the dashboard has a defect, report it: {type(error).__name__}: {error}")
        session = self._session
        where = "all namespaces" if self._everywhere else session.namespace
        self.board.put(ABOUT, {"cluster": {"where": where, "flags": list(session.flags), "problem": problem}})

    async def _read(self) -> str:
        """Read what is due; returns what could not be read though the rest could."""
        targets = await self._session.policies(everywhere=self._everywhere)
        now = time.time()
        for target in targets:
            self._counted.take(target, now)
        self.board.put(POLICIES, {target.where: self._policy(target) for target in targets})
        seen = [(target.body, target.state) for target in targets]
        if time.monotonic() - self._read_at < self._pause_seconds(changed=seen != self._seen):
            return self._problem
        began = time.monotonic()
        evaluations, problem = await self._evaluations(targets)
        self.fleets = await read_fleets(self._session, targets, evaluations)
        self.board.put(WORKLOADS, await asyncio.to_thread(workload_rows, self.fleets))
        for target in targets:
            if any(page.watched == target.where for page in self._pages):
                await self._details(target)
        self._read_seconds, self._read_at, self._seen = time.monotonic() - began, time.monotonic(), seen
        self._problem = problem
        return problem

    def _pause_seconds(self, *, changed: bool) -> float:
        """How long workloads and pods are not read after they were."""
        steady = max(FLEET_SECONDS, self._read_seconds / SHARE)
        return min(self._read_seconds if changed else steady, LONGEST_SECONDS)

    def _policy(self, target: Target) -> Row:
        there = replace(self._session, namespace=target.policy.namespace)
        return policy_row(target, buttons(there, target), prerequisites(target))

    async def _evaluations(self, targets: Sequence[Target]) -> tuple[dict[str, Evaluation], str]:
        try:
            return await readings(self._arguments, targets), ""
        except OperatorError as error:
            return {}, bounded(str(error))

    async def _details(self, target: Target) -> None:
        """Timeline and charts of a policy that a page shows. What this user may not read is said, and the rest shown."""
        session = replace(self._session, namespace=target.policy.namespace)
        notes: list[str] = []
        try:
            events = await session.api.events_of(session.namespace, target.policy.uid)
        except KubeError as error:
            events = ()
            notes.append(f"no Events: {in_words(error, session.flags)}")
        found = [charts.of_counts(list(self._counted.kept[target.where])), *await self._trends.of(target)]
        recorded, missing = await self._recorded(session, target)
        found += recorded
        notes += missing
        rows: dict[str, Row] = {
            "timeline": {"entries": [entry.as_json() for entry in timeline(target, events)]},
            "charts": {"charts": found},
            "notes": {"notes": notes},
        }
        self.board.put(f"{DETAILS}/{target.where}", rows)

    async def _recorded(self, session: Session, target: Target) -> tuple[list[charts.Chart], list[str]]:
        """Charts of the newest rollback, and why there are none. A recording is large: it is read anew now and then."""
        incident, now = target.status.incident, time.monotonic()
        if incident is None:
            return [], []
        known = self._recordings.get(target.where)
        if known is None or known[0] != incident.id or now - known[1] > RECORDING_SECONDS:
            try:
                found, missing = await incidents.recorded(session, incident), []
            except OperatorError as error:
                found, missing = [], [f"no recordings: {bounded(str(error))}"]
            self._recordings[target.where] = known = (incident.id, now, found, missing)
        return known[2], known[3]
