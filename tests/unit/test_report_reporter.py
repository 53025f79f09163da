"""The reporter over an API server in memory: one incident a rollback, whatever fails, and nothing once it is closed."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
import yaml

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.api.wire import parse_time
from precision_operator.errors import Forbidden, SourceUnavailable
from precision_operator.kube.fake import FakeKube, Key
from precision_operator.kube.port import INCIDENTS, JsonObject
from precision_operator.observability.metrics import Metrics
from precision_operator.report.channels import NotDelivered
from precision_operator.report.codec import camel
from precision_operator.report.document import from_body, name_of, to_body
from precision_operator.report.incident import (
    Answer,
    Check,
    Evidence,
    IncidentPhase,
    Message,
    Moment,
    Pass,
    Recorded,
    Report,
    Result,
    Stages,
)
from precision_operator.report.recording import unpack
from precision_operator.report.replay import first_difference
from precision_operator.settings import IncidentSettings, NotificationChannel
from precision_operator.shell.inventory import PolicyKey
from precision_operator.shell.notifier import TRIES, Notifier
from precision_operator.shell.reporter import Reporter
from precision_operator.signals.port import Series
from tests.property.test_strategies import QUICK
from tests.unit.test_layout import ROOT


class WorldClock:
    """The world's time. The test takes the reporter's turns, so nothing waits for it."""

    def __init__(self, world: World) -> None:
        self.world = world

    def time(self) -> float:
        return self.world.now

    def monotonic(self) -> float:
        return self.world.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class Past:
    """A metric history: the overflow of one pod, its run info, or nothing at all."""

    lost: bool = False
    changed: str = "lr"
    """The label of the run info that differs before and after; kept only where the query asks for it."""
    asked: list[str] = field(default_factory=list)

    async def history(self, query: str, start: float, end: float, step_seconds: float) -> Sequence[Series]:
        self.asked.append(query)
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
    told: list[tuple[str, str]] = field(default_factory=list)
    """(role, kind) of each delivery."""

    async def send(self, channel: NotificationChannel, message: Message, facts: Mapping[str, str]) -> None:
        """A channel below the port; the real ones are in test_report_channels.py."""
        if self.refused > 0:
            self.refused -= 1
            raise NotDelivered("busy")
        self.told.append((channel.role, message.kind))

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.reporter = self.hired()

    def hired(self) -> Reporter:
        """A reporter, as a new leader starts with."""
        return Reporter(
            self.kube,
            sources={"default": self.past},
            catalogue={},
            settings=self.settings,
            notifier=Notifier(self.channels, metrics=self.metrics, clock=WorldClock(self.world), send=self.send),
            metrics=self.metrics,
            clock=WorldClock(self.world),
            leading=lambda: True,
        )

    async def passes(self, count: int, seconds: float = 15.0) -> None:
        """Passes, each reported and worked on."""
        for _ in range(count):
            before, observation, now = self.world.status, self.world.observe(), self.world.now
            decision = self.world.step(seconds)
            self.reporter.observe(Pass(self.world.policy, before, observation, decision, now))
            await self.reporter.turn()

    def reports(self) -> list[Report]:
        return [from_body(body) for (plural, *_), body in self.kube.objects.items() if plural == INCIDENTS.plural]

    @property
    def report(self) -> Report:
        (found,) = self.reports()
        return found


CHANNELS = {
    role: NotificationChannel(kind="webhook", url="https://chat.invalid/x", role=role)
    for role in ("on-call", "ml-lead", "executive")
}


async def promoted(settings: IncidentSettings | None = None, **spec: object) -> Stage:
    """A fleet in FP16, with a reporter that has seen it come there."""
    world = World(policy(**{**FAST, **spec}))
    for name in ("hot-0", "hot-1", "hot-2", "hot-3"):
        world.add(name)
    stage = Stage(world, FakeKube(), Past(), settings or IncidentSettings(), CHANNELS)
    for _ in range(40):
        before, observation, now = world.status, world.observe(), world.now
        stage.reporter.observe(Pass(world.policy, before, observation, world.step(15.0), now))
    assert world.status.phase is Phase.HEALTHY
    return stage


async def rolled_back(settings: IncidentSettings | None = None) -> Stage:
    """The same after a breach in half of it."""
    stage = await promoted(settings)
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await stage.passes(8)
    assert stage.world.status.phase is Phase.HELD
    return stage


async def test_a_fleet_that_is_well_has_no_incident() -> None:
    stage = await promoted()
    await stage.passes(3)
    assert stage.reports() == []
    assert stage.kube.writes == stage.kube.reads == []


async def test_a_rollback_has_one_incident_with_its_stages_inputs_and_evidence() -> None:
    stage = await rolled_back()
    report, incident = stage.report, stage.world.status.incident
    assert incident is not None
    assert report.phase is IncidentPhase.VERIFYING
    assert (report.id, report.reason, report.phase_before) == (incident.id, "OverflowRateHigh", Phase.HEALTHY)
    assert [m.what for m in report.timeline][:2] == ["Detected", "Decided"]
    assert {"OverflowRateHigh", "RolledBack", "Down", "Settled"} <= {m.what for m in report.timeline}
    assert report.met_deadline
    tape = unpack(report.recordings.tape)
    assert len(tape.recordings) == report.recordings.count > 3
    assert first_difference(tape.recordings) is None
    assert [r.status.phase for r in tape.recordings][:2] == [Phase.HEALTHY, Phase.HEALTHY]
    day = {"run_info", "loss_of_a_day", "throughput_of_a_day"}
    statistics = {"loss_scale", "grad_norm", "sentinel_level", "gpu_utilisation", "gpu_memory_used"}
    assert {e.name for e in report.evidence} == {*(s.value for s in Signal), *day, *statistics}
    assert next(e for e in report.evidence if e.name == "overflow").series == 1


async def test_questions_are_answered_from_data_and_unknown_without() -> None:
    report = (await rolled_back()).report
    answers = {a.question: a.answer for a in report.questions}
    assert answers["What triggered the rollback?"] == "High overflow rate"
    assert answers["Was low precision working initially?"].startswith("Yes")
    assert answers["What changed recently?"] == "lr: 0.1 → 0.9"
    assert answers["Were there warning signs?"].startswith("Yes: overflow was above 0.15")
    assert answers["Can it be re-enabled safely?"] == "With configuration changes"

    blind = await promoted()
    blind.past.lost = True
    blind.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await blind.passes(6)
    answers = {a.question: a.answer for a in blind.report.questions}
    assert answers["What changed recently?"] == answers["Were there warning signs?"] == "unknown"
    assert blind.report.phase is IncidentPhase.VERIFYING
    assert "secret" not in yaml.safe_dump(list(blind.kube.objects.values()))
    assert b'precision_report_errors_total{reason="MetricsUnavailable"}' in blind.metrics.exposition()


@pytest.mark.parametrize(
    ("label", "verdict"),
    [
        ("model_hash", "With architecture modifications"),
        ("clipping", "With configuration changes"),
        ("fp8", "With configuration changes"),
    ],
)
async def test_whatever_trainers_report_of_themselves_is_seen_to_have_changed(label: str, verdict: str) -> None:
    stage = await promoted()
    stage.past.changed = label
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await stage.passes(8)
    answers = {a.question: a.answer for a in stage.report.questions}
    assert answers["What changed recently?"] == f"{label}: 0.1 → 0.9"
    assert answers["Can it be re-enabled safely?"] == verdict


async def test_the_checklist_fills_in_its_windows_and_the_all_clear_follows() -> None:
    stage = await rolled_back()
    now = {(c.window, c.name): c.result for c in stage.report.checklist}
    assert now["Immediate", "Fallback confirmed by the processes"] is Result.PASSED
    assert now["Short", "No overflow"] is Result.PENDING
    assert [m.kind for m in stage.report.messages] == ["Notice"]
    await stage.passes(35, 60.0)
    later = {(c.window, c.name): c.result for c in stage.report.checklist}
    assert later["Short", "Training completion rate above 95 %"] is Result.PASSED
    assert later["Short", "Loss matches the FP32 baseline"] is Result.PASSED
    assert later["Long", "System stability"] is Result.PASSED
    assert [m.kind for m in stage.report.messages] == ["Notice", "AllClear"]
    assert "throughput: 1.00x of before" in stage.report.messages[1].body
    await stage.passes(95, 60.0)
    final = stage.report
    assert final.phase is IncidentPhase.CLOSED
    assert final.timeline[-1].what == "Verified"
    assert {c.result for c in final.checklist if "accuracy" in c.name or "Memory" in c.name} == {Result.UNKNOWN}


async def test_a_check_that_fails_is_said_and_no_all_clear_is_given() -> None:
    stage = await rolled_back()
    stage.world.everywhere = {Signal.FAILURES: 0.5}
    await stage.passes(130, 60.0)
    assert "AllClear" not in {m.kind for m in stage.report.messages}
    assert stage.report.timeline[-1].what == "VerificationFailed"
    failed = [c for c in stage.report.checklist if c.result is Result.FAILED]
    assert [c.name for c in failed] == ["Training completion rate above 95 %"]


async def test_metrics_that_are_away_leave_checks_unknown() -> None:
    stage = await rolled_back()
    stage.world.down = True
    await stage.passes(130, 60.0)
    short = {c.name: c.result for c in stage.report.checklist if c.window == "Short"}
    assert set(short.values()) == {Result.UNKNOWN}


async def test_a_closed_incident_costs_nothing() -> None:
    stage = await rolled_back()
    await stage.passes(130, 60.0)
    assert stage.report.phase is IncidentPhase.CLOSED
    calls = (len(stage.kube.writes), len(stage.kube.reads), len(stage.past.asked))
    await stage.passes(20, 60.0)
    assert (len(stage.kube.writes), len(stage.kube.reads), len(stage.past.asked)) == calls


async def test_a_whole_rollback_costs_few_writes() -> None:
    stage = await rolled_back()
    await stage.passes(130, 60.0)
    assert len(stage.kube.writes) <= 16


async def test_a_rollback_of_seconds_is_written_as_it_begins_and_once_more() -> None:
    stage = await promoted()
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    before = len(stage.kube.writes)
    await stage.passes(36, 0.25)
    assert stage.world.status.phase is Phase.HELD
    assert len(stage.kube.writes) - before == 1
    assert stage.report.stages.last_ack_at == ""
    await stage.passes(8, 0.5)
    assert len(stage.kube.writes) - before == 2
    assert stage.report.stages.last_ack_at != ""


async def test_hundreds_of_passes_of_a_settle_are_not_hundreds_of_writes() -> None:
    stage = await rolled_back()
    stage.world.deaf = set(stage.world.workloads)
    stage.world.bad = {}
    before = len(stage.kube.writes)
    await stage.passes(400, 0.05)
    assert len(stage.kube.writes) - before <= 2


async def test_a_new_leader_goes_on_from_the_object() -> None:
    stage = await rolled_back()
    before = stage.report
    stage.reporter = stage.hired()
    await stage.passes(40, 60.0)
    after = stage.report
    assert after.recordings.count >= before.recordings.count
    assert set(before.timeline) <= set(after.timeline)
    assert [m.kind for m in after.messages] == ["Notice", "AllClear"]
    assert first_difference(unpack(after.recordings.tape).recordings) is None


async def test_an_incident_from_before_is_not_invented() -> None:
    stage = await rolled_back()
    stage.kube.objects.clear()
    stage.world.now += 10_000
    stage.reporter = stage.hired()
    await stage.passes(3)
    assert stage.reports() == []


async def test_messages_go_to_who_is_on_call_once() -> None:
    stage = await rolled_back()
    stage.reporter = stage.hired()
    await stage.passes(130, 60.0)
    assert stage.told == [("on-call", "Notice"), ("on-call", "AllClear")]
    assert [m.delivered for m in stage.report.messages] == [("on-call",), ("on-call",)]


async def test_a_channel_that_refuses_is_tried_again_then_given_up() -> None:
    stage = await promoted()
    stage.refused = 3
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await stage.passes(8)
    assert stage.told == [("on-call", "Notice")]
    assert b'precision_report_errors_total{reason="NotDelivered"} 3.0' in stage.metrics.exposition()
    deaf = await promoted()
    deaf.refused = 1000
    deaf.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await deaf.passes(8)
    await deaf.passes(150, 60.0)
    assert deaf.refused == 1000 - 2 * TRIES
    assert deaf.report.phase is IncidentPhase.CLOSED


async def test_a_retry_ends_the_verification() -> None:
    stage = await rolled_back()
    stage.world.bad = {}
    await stage.passes(25, 60.0)
    answered = {"precision.genesis.ai/retry": str(stage.world.status.transition_id)}
    stage.world.policy = replace(stage.world.policy, annotations=answered)
    await stage.passes(2)
    assert stage.report.phase is IncidentPhase.CLOSED
    assert {c.result for c in stage.report.checklist if c.window == "Long"} == {Result.UNKNOWN}


async def test_who_vouched_for_what_and_why_stays_in_the_timeline_once() -> None:
    stage = await rolled_back()
    number = stage.world.status.transition_id
    given = {"ack-fix": f"{number}: token=hunter2 rolled", "ack-fix-by": "ada", "ack-rootCause": str(number - 1)}
    annotations = {f"precision.genesis.ai/{name}": value for name, value in given.items()}
    stage.world.policy = replace(stage.world.policy, annotations=annotations)
    given_at = stage.world.now
    await stage.passes(3)
    (told,) = [m for m in stage.report.timeline if m.what == "Acknowledged"]
    assert told.message == "fix by ada: token=*** rolled"
    assert parse_time(told.at) == given_at


async def test_a_policy_that_is_deleted_leaves_its_incident() -> None:
    stage = await rolled_back()
    stage.reporter.gone(PolicyKey("ns", "fleet"))
    await stage.reporter.turn()
    assert stage.report.timeline[-1].what == "PolicyDeleted"
    assert stage.report.phase is IncidentPhase.CLOSED


async def test_a_rollback_goes_on_while_incidents_cannot_be_written() -> None:
    stage = await promoted()

    def refuse(verb: str, key: Key) -> None:
        raise Forbidden("precisionincidents is forbidden", status=403)

    stage.kube.before_write = refuse
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await stage.passes(8)
    assert stage.world.status.phase is Phase.HELD
    assert stage.reports() == []
    assert b'precision_report_errors_total{reason="Forbidden"}' in stage.metrics.exposition()
    stage.kube.before_write = lambda verb, key: None
    await stage.passes(20, 60.0)
    assert {"Detected", "Decided", "Down"} <= {m.what for m in stage.report.timeline}
    assert first_difference(unpack(stage.report.recordings.tape).recordings) is None


async def test_an_object_changed_by_somebody_else_is_read_again() -> None:
    stage = await rolled_back()
    (key, body), *_ = ((k, b) for k, b in stage.kube.objects.items() if k[0] == INCIDENTS.plural)
    stage.kube.put(INCIDENTS, {**body, "metadata": {**body["metadata"], "labels": {"seen": "by-a-person"}}})  # type: ignore[dict-item]
    await stage.passes(40, 60.0)
    assert {"Notice", "AllClear"} == {m.kind for m in stage.report.messages}
    assert key in stage.kube.objects


async def test_a_canary_that_is_compared_for_hours_is_no_rollback_that_hangs() -> None:
    rollback = {**QUICK, "strategies": {"P2": "Canary"}, "fleetShare": 0.5}
    stage = await promoted(rollback=rollback)
    stage.world.everywhere = {Signal.SPEED: 0.7}
    await stage.passes(100, 60.0)
    assert stage.world.status.by_canary
    assert (stage.report.phase, stage.told) == (IncidentPhase.ACTIVE, [("on-call", "Notice")])
    number = str(stage.world.status.transition_id)
    stage.world.policy = replace(stage.world.policy, annotations={"precision.genesis.ai/promote": number})
    await stage.passes(20)
    assert stage.world.status.phase is Phase.HELD
    assert stage.report.phase is IncidentPhase.VERIFYING
    assert "CanaryPromoted" in {m.what for m in stage.report.timeline}
    assert {kind for _, kind in stage.told} == {"Notice"}


async def test_a_rollback_that_hangs_is_escalated_twice() -> None:
    stage = await promoted()
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    stage.world.blind = {"hot-3"}
    for _ in range(40):
        before, observation, now = stage.world.status, stage.world.observe(), stage.world.now
        decision = stage.world.decide()
        stage.world.commit(decision)  # nothing is written: no trainer ever hears of it
        stage.reporter.observe(Pass(stage.world.policy, before, observation, decision, now))
        stage.world.now += 60.0
        await stage.reporter.turn()
    assert stage.report.phase is IncidentPhase.ACTIVE
    assert [m.kind for m in stage.report.messages] == ["Notice", "Escalation", "Escalation"]
    assert stage.told == [
        ("on-call", "Notice"),
        *(("ml-lead", "Escalation"), ("on-call", "Escalation")),
        *(("executive", "Escalation"), ("ml-lead", "Escalation"), ("on-call", "Escalation")),
    ]
    assert [m.subject.rpartition(" after ")[2] for m in stage.report.messages[1:]] == ["15.0 min", "30.0 min"]


async def test_closed_incidents_are_kept_up_to_a_number_and_an_age() -> None:
    stage = await rolled_back(IncidentSettings(keep=2, max_age_seconds=50_000.0))
    template = stage.report
    for index in range(4):
        aged = f"1969-12-31T2{index}:00:00.000Z" if index < 3 else "1969-12-30T00:00:00.000Z"
        old = replace(
            template,
            id=f"fleet-old-{index}",
            phase=IncidentPhase.CLOSED,
            stages=replace(template.stages, decided_at=aged),
        )
        stage.kube.put(INCIDENTS, to_body(old, namespace="ns"))
    await stage.passes(130, 60.0)
    assert sorted(r.id for r in stage.reports()) == sorted([template.id, "fleet-old-2"])


def test_the_name_follows_from_incident_and_policy() -> None:
    assert name_of("fleet-4", "uid-1") == name_of("fleet-4", "uid-1")
    assert name_of("fleet-4", "uid-1") != name_of("fleet-4", "uid-2")
    assert len(name_of("x" * 300, "uid")) <= 253


def schema() -> dict[str, object]:
    text = (ROOT / "crds" / "precision.genesis.ai_precisionincidents.yaml").read_text()
    found = yaml.safe_load(text)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["report"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Report, ""),
        (Stages, "stages"),
        (Moment, "timeline"),
        (Check, "checklist"),
        (Answer, "questions"),
        (Message, "messages"),
        (Evidence, "evidence"),
        (Recorded, "recordings"),
    ],
)
def test_the_crd_has_every_field_that_is_written(kind: type, path: str) -> None:
    node: JsonObject = schema()  # type: ignore[assignment]
    if path:
        node = node["properties"][path]  # type: ignore[index,call-overload]
        node = node.get("items", node)  # type: ignore[assignment]
    assert set(node["properties"]) == {camel(name) for name in kind.__dataclass_fields__}  # type: ignore[arg-type,attr-defined]


async def test_a_report_survives_the_wire() -> None:
    report = (await rolled_back()).report
    assert from_body(to_body(report, namespace="ns")) == report
