"""What is said when an investigation opens, and kept when a window has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from lab.model.world import World
from precision_operator.api.mitigation import Rung
from precision_operator.api.state import Phase
from precision_operator.contract import DRILL
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import Forbidden, SourceUnavailable
from precision_operator.incidents.collector import EvidenceCollector
from precision_operator.incidents.document import from_body
from precision_operator.incidents.investigator import Investigator
from precision_operator.incidents.mitigation import with_windows
from precision_operator.incidents.passes import open_report
from precision_operator.incidents.report import IncidentKind, IncidentPhase, Report
from precision_operator.incidents.slowness import CHECKS, say
from precision_operator.incidents.store import IncidentStore
from precision_operator.kube.events import EventRecorder
from precision_operator.kube.port import INCIDENTS, JsonObject, Resource
from precision_operator.settings import IncidentSettings
from precision_operator.signals.port import Sample, Series
from tests.support.fake_kube import FakeKube, Key
from tests.support.fleets import promoted
from tests.support.manual_clock import ManualClock
from tests.support.mitigations import MILD, QUICK, SLOW
from tests.support.samples import sample

BATCH, TENSOR, CPU = CHECKS
PODS = {"a-1": "a", "b-1": "b", "b-2": "b"}


class Exporters:
    """A Prometheus that scrapes the trainers, no DCGM exporter, and has lost cAdvisor."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def history(self, query: str, start: float, end: float, step_seconds: float) -> Sequence[Series]:
        return []

    async def vector(self, query: str) -> Sequence[Sample]:
        self.asked.append(query)
        if "cfs" in query:
            raise SourceUnavailable("refused")
        return [] if "DCGM" in query else [sample("hot-0-1", batch_size="30"), sample("elsewhere", batch_size="32")]


def passes(world: World, count: int) -> list[RecordedPass]:
    found = []
    for _ in range(count):
        before, observation, now = world.state, world.observe(), world.now
        found.append(RecordedPass(world.policy, before, observation, world.step(), now))
    return found


def made(kube: FakeKube, source: Exporters, failed: list[str]) -> Investigator:
    clock = ManualClock()
    clock.wall_ahead = 0.0  # the passes' time begins in 1970
    return Investigator(
        EvidenceCollector({"default": source}, {}, clock=clock, failed=failed.append, most_bytes=2**20),
        IncidentStore(kube, settings=IncidentSettings(), clock=clock),
        events=EventRecorder(kube, identity="one"),
        failed=failed.append,
    )


def incidents(kube: FakeKube) -> list[Report]:
    return [from_body(body) for (plural, *_), body in kube.objects.items() if plural == INCIDENTS.plural]


async def test_says_once_what_is_seen_and_what_is_not() -> None:
    kube, source, failed = FakeKube(), Exporters(), list[str]()
    investigator = made(kube, source, failed)
    world = promoted(**QUICK)
    world.bad = {"hot-0": SLOW}
    for seen in passes(world, 10):
        investigator.observe(seen)
    await asyncio.wait_for(investigator.turn(), timeout=60)
    (event,) = [body for (plural, *_), body in kube.objects.items() if plural == "events"]
    assert event["reason"] == "InvestigationChecks"
    assert event["note" if "note" in event else "message"] == (
        "batch: 30, no multiple of 8 (hot-0); tensor cores: unknown (no DCGM_FI_PROF_PIPE_TENSOR_ACTIVE); "
        "CPU: unknown (MetricsUnavailable)"
    )
    assert failed == ["MetricsUnavailable"]
    assert len(source.asked) == len(CHECKS)
    assert all('namespace="ns"' in query for query in source.asked)


async def test_what_was_mitigated_is_kept_as_a_closed_incident_once_and_by_any_leader() -> None:
    kube, failed = FakeKube(), list[str]()
    world = promoted(**QUICK)
    world.bad, world.cured_by = dict.fromkeys(("hot-0", "hot-1"), MILD), {"hot-0": Rung.HALVE_SCALE}
    world.cured_by["hot-1"] = Rung.GROWTH_INTERVAL
    history = passes(world, 40)
    for _ in range(2):
        investigator = made(kube, Exporters(), failed)
        for seen in history:
            investigator.observe(seen)
        assert investigator.waiting == 1, "once, and nothing is asked of Prometheus"
        await asyncio.wait_for(investigator.turn(), timeout=60)
    (report,) = incidents(kube)
    assert (report.phase, report.reason, report.workloads) == (
        IncidentPhase.CLOSED,
        "OverflowRateHigh",
        ("hot-0", "hot-1"),
    )
    assert report.message == "mitigated, not rolled back: GrowthInterval or HalveScale helped in hot-0, hot-1"
    assert [m.what for m in report.timeline] == ["Mitigating", "Mitigating", "Mitigating", "Good", "Mitigated"]
    assert failed == []


async def test_an_incident_that_could_not_be_kept_is_kept_by_a_later_pass() -> None:
    kube, failed = FakeKube(), list[str]()
    world = promoted(**QUICK)
    world.bad, world.cured_by = {"hot-0": MILD}, {"hot-0": Rung.HALVE_SCALE}
    investigator, last = made(kube, Exporters(), failed), passes(world, 20)[-1]

    def refuse(verb: str, key: Key) -> None:
        raise Forbidden("may not create")

    kube.before_write = refuse
    investigator.observe(last)
    await asyncio.wait_for(investigator.turn(), timeout=60)
    assert (failed, incidents(kube)) == (["Forbidden"], [])
    kube.before_write = lambda verb, key: None
    investigator.observe(last)
    await asyncio.wait_for(investigator.turn(), timeout=60)
    assert len(incidents(kube)) == 1


def test_the_report_of_a_rollback_tells_what_was_tried_before() -> None:
    world = promoted(**QUICK)
    world.bad = dict.fromkeys(("hot-0", "hot-1"), MILD)
    seen = next(p for p in passes(world, 60) if p.decision.state.phase is Phase.ROLLING_BACK)
    assert seen.decision.state.incident is not None
    report = with_windows(open_report(seen, seen.decision.state.incident), seen.decision.state)
    said = [m.message for m in report.timeline if m.what == "Mitigating"]
    assert any("hot-1: BF16; before it HalveScale: 0.25, GrowthInterval: 0.25" in text for text in said)
    assert [m.at for m in report.timeline] == sorted(m.at for m in report.timeline)


def test_workloads_with_the_same_answer_are_named_together_the_bad_first() -> None:
    answer = [sample("a-1", batch_size="64"), sample("b-1", batch_size="64"), sample("b-2", batch_size="12")]
    assert say(BATCH, answer, PODS) == "batch: 12, no multiple of 8 (b); batch: 64, a multiple of 8 (a)"


def test_a_workload_without_series_is_unknown_and_never_good() -> None:
    assert say(TENSOR, [sample("a-1", 0.0)], PODS) == "tensor cores: busy 0% of the time (a); unknown in b"
    assert say(CPU, [sample("a-1", float("nan"))], PODS).startswith("CPU: unknown")
    assert say(CPU, "QueryInvalid", PODS) == "CPU: unknown (QueryInvalid)"


def test_the_worst_pod_speaks_for_its_workload() -> None:
    answer = [sample("a-1", 0.0), sample("b-1", 0.4), sample("b-2", 0.1)]
    assert say(CPU, answer, PODS) == "CPU: throttled in 40% of its periods (b); CPU: throttled in 0% of its periods (a)"
    busy = [sample("b-1", 0.6), sample("b-2", 0.0)]
    assert "busy 0% of the time (b)" in say(TENSOR, busy, PODS)


async def test_a_drill_is_kept_once_with_who_asked_and_how_long_it_took() -> None:
    kube, failed = FakeKube(), list[str]()
    investigator = made(kube, Exporters(), failed)
    world = promoted()
    asked = {DRILL: f"{world.state.transition_id}: apps/Deployment/hot-1: a quarter", f"{DRILL}-by": "ada"}
    world.policy = replace(world.policy, annotations=asked)
    for seen in passes(world, 6):
        investigator.observe(seen)
    assert investigator.waiting == 1
    await investigator.turn()
    (report,) = incidents(kube)
    drill = world.state.last_drill
    assert drill is not None
    assert (report.kind, report.severity, report.reason) == (IncidentKind.DRILL, None, "DrillPassed")
    assert (report.workloads, report.phase, report.met_deadline) == (("hot-1",), IncidentPhase.CLOSED, True)
    assert report.in_fallback_at == drill.ended_at
    assert [moment.what for moment in report.timeline] == ["Drilling", "Requested", "InFallback", "DrillPassed"]
    assert report.timeline[0].message == "asked for by ada: a quarter"
    assert "no steps were lost" in report.message
    assert failed == []


async def test_a_drill_that_could_not_be_kept_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kube, failed = FakeKube(), list[str]()
    investigator = made(kube, Exporters(), failed)
    world = promoted()
    world.policy = replace(world.policy, annotations={DRILL: f"{world.state.transition_id}: fleet allow-restarts"})
    *_, last = passes(world, 8)
    create = kube.create

    async def refused(resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        monkeypatch.setattr(kube, "create", create)
        raise Forbidden("may not create", status=403)

    monkeypatch.setattr(kube, "create", refused)
    for _ in range(2):
        investigator.observe(last)
        await investigator.turn()
    assert [report.kind for report in incidents(kube)] == [IncidentKind.DRILL]
    assert failed == ["Forbidden"]
