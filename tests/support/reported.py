"""A fleet in the world of values, with a reporter over an API server in memory and a Prometheus that has a past."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.incident import Incident
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import KubeError, SourceUnavailable
from precision_operator.incidents.channels import NotDelivered, Outgoing
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.document import from_body
from precision_operator.incidents.evidence import evidence_bytes
from precision_operator.incidents.notifier import Notifier
from precision_operator.incidents.report import IncidentPhase, Report
from precision_operator.incidents.reporter import Reporter
from precision_operator.incidents.store import IncidentStore
from precision_operator.kube.port import INCIDENTS, JsonObject
from precision_operator.observability.metrics import Metrics
from precision_operator.settings import IncidentSettings, NotificationChannel
from precision_operator.signals.endpoint import Circuit
from precision_operator.signals.port import Sample, Series
from tests.support.fake_kube import FakeKube


class WorldClock:
    """The world's time. The test takes the reporter's turns, so nothing waits for it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def time(self) -> float:
        """See the port."""
        return self.world.now

    def monotonic(self) -> float:
        """See the port."""
        return self.world.now

    async def sleep(self, seconds: float) -> None:
        """See the port."""
        await asyncio.sleep(0)


@dataclass
class Past:
    """A metric history: the overflow of one pod, its run info, or nothing at all."""

    lost: bool = False
    changed: str = "lr"
    """The label of the run info that differs before and after; kept only where the query asks for it."""
    asked: list[str] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, no question has an answer."""

    def __post_init__(self) -> None:
        self.answers.set()

    async def vector(self, query: str) -> Sequence[Sample]:
        """See the port."""
        return []

    async def history(self, query: str, start: float, end: float, step_seconds: float) -> Sequence[Series]:
        """See the port."""
        self.asked.append(query)
        await self.answers.wait()
        if self.lost:
            raise SourceUnavailable("endpoint 'default': refused by http://me:secret@prometheus")
        if "run_info" in query:
            asked_for = query.partition(" (")[2].partition(")")[0].split(", ")
            kept = [label for label in (self.changed,) if label in asked_for]
            before = {"pod": "hot-1-1", "torch": "2", **dict.fromkeys(kept, "0.1")}
            after = {"pod": "hot-1-1", "torch": "2", **dict.fromkeys(kept, "0.9")}
            return [
                Series(before, ((start, 1.0), (end - 400, 1.0))),
                Series(after, ((end - 300, 1.0), (end, 1.0))),
            ]
        if "overflow" in query:
            return [Series({"pod": "hot-1-1"}, ((end - 600, 0.2), (end - 300, 0.25), (end, 0.9)))]
        return []


@dataclass
class Stage:
    """A fleet, its API server and a reporter."""

    world: World
    kube: FakeKube
    past: Past
    settings: IncidentSettings = field(default_factory=IncidentSettings)
    channels: dict[str, NotificationChannel] = field(default_factory=dict)
    refused: int = 0
    """How many deliveries are still to be refused."""
    delivered: list[tuple[str, str]] = field(default_factory=list)
    """(role, kind) of each delivery."""
    leads: bool = True
    circuit: Circuit = Circuit.CLOSED

    async def send(self, channel: NotificationChannel, batch: Sequence[Outgoing]) -> int:
        """A channel below the port; the real ones are in tests/unit/incidents/test_channels.py."""
        if self.refused > 0:
            self.refused -= 1
            raise NotDelivered("busy")
        self.delivered += [(channel.role, outgoing.message.kind) for outgoing in batch]
        return len(batch)

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.reporter = self.hired()

    def hired(self) -> Reporter:
        """A reporter, as a new leader starts with."""
        clock = WorldClock(self.world)
        self.notifier = Notifier(self.channels, metrics=self.metrics, clock=clock, send=self.send)
        return Reporter(
            self.kube,
            store=IncidentStore(self.kube, settings=self.settings, clock=clock),
            collector=EvidenceCollector(
                {"default": self.past},
                {},
                clock=clock,
                failed=self.metrics.report_error,
                most_bytes=evidence_bytes(self.settings.recording_bytes),
                circuits=lambda: {"default": self.circuit},
            ),
            settings=self.settings,
            notifier=self.notifier,
            metrics=self.metrics,
            clock=clock,
            leading=lambda: self.leads,
        )

    async def turn(self) -> None:
        """What the reporter and the notifier do for one pass, and once Prometheus has answered."""
        await self.reporter.turn()
        asked = {task for task in asyncio.all_tasks() if task.get_name() == "evidence"}
        if asked and self.past.answers.is_set():
            await asyncio.wait(asked)
            await self.reporter.turn()
        if await self.notifier.turn():
            await self.reporter.turn()

    async def passes(self, count: int, seconds: float = 15.0) -> None:
        """Passes, each reported and worked on."""
        for _ in range(count):
            before, observation, now = self.world.state, self.world.observe(), self.world.now
            decision = self.world.step(seconds)
            self.reporter.observe(RecordedPass(self.world.policy, before, observation, decision, now))
            await self.turn()

    async def unacted(self, count: int, seconds: float = 15.0) -> None:
        """Passes of which no write reaches a pod."""
        for _ in range(count):
            before, observation, now = self.world.state, self.world.observe(), self.world.now
            decision = self.world.decide()
            self.world.commit(decision)
            self.reporter.observe(RecordedPass(self.world.policy, before, observation, decision, now))
            self.world.now += seconds
            await self.turn()

    def follow(self, incident: Incident | None) -> None:
        """A pass whose state has this incident instead; the reporter's turn is the test's."""
        before, observation, now = self.world.state, self.world.observe(), self.world.now
        decision = self.world.decide()
        decision = replace(decision, state=replace(decision.state, incident=incident))
        self.reporter.observe(RecordedPass(self.world.policy, before, observation, decision, now))

    def refuse(self, error: KubeError | None, *, name: str = "") -> None:
        """Writes of incidents fail from now on, or those of one object; None: none does any more."""

        def answer(verb: str, key: tuple[str, str, str]) -> None:
            if error is not None and key[0] == INCIDENTS.plural and name in ("", key[2]):
                raise error

        self.kube.before_write = answer

    def supersede(self, incident_id: str | None = "fleet-99") -> None:
        """A pass whose policy has a newer incident; None: it has none any more."""
        incident = self.world.state.incident
        assert incident is not None
        newer = replace(incident, id=incident_id, decided_at=self.world.now) if incident_id is not None else None
        self.follow(newer)

    async def idle(self, turns: int, seconds: float) -> None:
        """Time without a pass."""
        for _ in range(turns):
            self.world.now += seconds
            await self.turn()

    def annotate(self) -> None:
        """Somebody writes the only incident's object."""
        (body,) = (body for (plural, *_), body in self.kube.objects.items() if plural == INCIDENTS.plural)
        metadata: JsonObject = body["metadata"]  # type: ignore[assignment]
        self.kube.put(INCIDENTS, {**body, "metadata": {**metadata, "annotations": {"seen": "by-a-person"}}})

    def breach(self, *names: str) -> None:
        """These workloads overflow from now on."""
        self.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in names or ("hot-1", "hot-2")}

    @property
    def incident_writes(self) -> int:
        """Creations and updates of PrecisionIncidents, as they were attempted."""
        return sum(plural == INCIDENTS.plural for _, plural, _ in self.kube.writes)

    def reports(self) -> list[Report]:
        """Of all incidents that are stored."""
        return [from_body(body) for (plural, *_), body in self.kube.objects.items() if plural == INCIDENTS.plural]

    def phases(self) -> dict[str, IncidentPhase]:
        """By the incident's id."""
        return {report.id: report.phase for report in self.reports()}

    @property
    def report(self) -> Report:
        """The only one."""
        (found,) = self.reports()
        return found


CHANNELS = {role: NotificationChannel("slack://a/b/c", role=role) for role in ("on-call", "ml-lead", "executive")}


async def promoted(settings: IncidentSettings | None = None, *, now: float = 1000.0, **spec: object) -> Stage:
    """A fleet in FP16, with a reporter that has seen it come there."""
    world = World(policy(**{**FAST, **spec}), now=now)
    for name in ("hot-0", "hot-1", "hot-2", "hot-3"):
        world.add(name)
    stage = Stage(world, FakeKube(), Past(), settings or IncidentSettings(), CHANNELS)
    for _ in range(40):
        before, observation, now = world.state, world.observe(), world.now
        stage.reporter.observe(RecordedPass(world.policy, before, observation, world.step(15.0), now))
    assert world.state.phase is Phase.HEALTHY
    return stage


async def rolled_back(settings: IncidentSettings | None = None, *, now: float = 1000.0) -> Stage:
    """The same after a breach in half of it."""
    stage = await promoted(settings, now=now)
    stage.breach()
    await stage.passes(8)
    assert stage.world.state.phase is Phase.HELD
    return stage
