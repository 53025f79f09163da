"""The reporter over an API server in memory: one incident a rollback, whatever fails, and nothing once it is closed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
import yaml

from precision_operator.api.policy import PolicyKey
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.api.text import MESSAGE_CHARACTERS
from precision_operator.api.wire import parse_time
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import NotFound
from precision_operator.incidents.collector import FAILURE_LIMIT
from precision_operator.incidents.document import from_body, name_of, to_body
from precision_operator.incidents.evidence import DAY_SECONDS, Question, keep
from precision_operator.incidents.questions import answer
from precision_operator.incidents.report import (
    CheckResult,
    Evidence,
    IncidentPhase,
)
from precision_operator.incidents.reporter import GONE_FAILURES
from precision_operator.kube.port import INCIDENTS
from precision_operator.replay.recording import unpack
from precision_operator.replay.rerun import first_difference
from precision_operator.settings import IncidentSettings
from precision_operator.signals.endpoint import Circuit
from precision_operator.signals.port import Series
from tests.support.fake_kube import Key
from tests.support.reported import promoted, rolled_back

pytestmark = pytest.mark.slow

KEY = PolicyKey("ns", "fleet")


async def test_a_fleet_that_is_well_has_no_incident() -> None:
    stage = await promoted()
    await stage.passes(3)
    assert stage.reports() == []
    assert (stage.kube.writes, [verb for verb, *_ in stage.kube.reads]) == ([], ["list"])


async def test_a_rollback_has_one_incident_with_its_stages_inputs_and_evidence() -> None:
    stage = await rolled_back()
    report, incident = stage.report, stage.world.state.incident
    assert incident is not None
    assert report.phase is IncidentPhase.VERIFYING
    assert (report.id, report.reason, report.phase_before) == (incident.id, "OverflowRateHigh", Phase.HEALTHY)
    assert [m.what for m in report.timeline][:2] == ["Detected", "Decided"]
    assert {"OverflowRateHigh", "RolledBack", "Requested", "InFallback"} <= {m.what for m in report.timeline}
    assert report.met_deadline
    tape = unpack(report.recordings.tape)
    assert len(tape.recordings) == report.recordings.count > 3
    assert first_difference(tape.recordings) is None
    assert [r.state.phase for r in tape.recordings][:2] == [Phase.HEALTHY, Phase.HEALTHY]
    day = {"run_info", *(f"{name}_of_a_day" for name in ("overflow", "divergence", "failures", "loss", "throughput"))}
    statistics = {"loss_scale", "grad_norm", "sentinel_level", "gpu_utilisation", "gpu_memory_used"}
    statistics |= {"training_step", "training_step_origin"}
    assert {e.name for e in report.evidence} == {*(s.value for s in Signal), *day, *statistics}
    assert next(e for e in report.evidence if e.name == "overflow").series == 1


async def test_a_prometheus_that_hangs_delays_neither_a_message_nor_another_incident() -> None:
    stage = await promoted()
    stage.past.answers.clear()
    stage.breach()
    for _ in range(8):
        before, observation, now = stage.world.state, stage.world.observe(), stage.world.now
        decision = stage.world.step(15.0)
        for policy in (stage.world.policy, replace(stage.world.policy, namespace="other")):
            stage.reporter.observe(RecordedPass(policy, before, observation, decision, now))
        await asyncio.wait_for(stage.turn(), timeout=60)
    assert len(stage.past.asked) == 1, "one thread of the source is not one of evaluations"
    assert [report.phase for report in stage.reports()] == [IncidentPhase.VERIFYING] * 2
    assert [(message.kind, report.evidence) for report in stage.reports() for message in report.messages] == [
        ("Notice", ())
    ] * 2
    assert stage.delivered == [("on-call", "Notice")] * 2
    stage.past.answers.set()
    await stage.turn()
    assert all(report.evidence for report in stage.reports())


async def test_a_prometheus_that_does_not_answer_is_asked_twice_and_one_of_which_that_is_known_never() -> None:
    stage = await promoted()
    stage.past.lost = True
    stage.breach()
    await stage.passes(8)
    assert len(stage.past.asked) == 2 * FAILURE_LIMIT, "of the breach, and once all are in the fallback"
    assert {evidence.error for evidence in stage.report.evidence} == {"MetricsUnavailable", "EndpointNotAnswering"}

    known = await promoted()
    known.circuit = Circuit.OPEN
    known.breach()
    await known.passes(8)
    assert known.past.asked == []
    assert {evidence.error for evidence in known.report.evidence} == {"EndpointNotAnswering"}


async def test_questions_are_answered_from_data_and_unknown_without() -> None:
    report = (await rolled_back()).report
    answers = {a.question: a.answer for a in report.questions}
    assert answers["What triggered the rollback?"] == "High overflow rate"
    assert answers["Was low precision working initially?"].startswith("Yes")
    assert answers["What changed recently?"].startswith("lr: 0.1 → 0.9 (hot-1;")
    assert answers["Were there warning signs?"].startswith("Yes: overflow was above 0.15")
    assert answers["Were there warning signs?"].endswith("of 24.0 h that were read")
    assert answers["Can it be re-enabled safely?"] == "With configuration changes"

    without = await promoted()
    without.past.lost = True
    without.breach()
    await without.passes(6)
    answers = {a.question: a.answer for a in without.report.questions}
    assert answers["What changed recently?"] == answers["Were there warning signs?"] == "unknown"
    assert without.report.phase is IncidentPhase.VERIFYING
    assert "secret" not in yaml.safe_dump(list(without.kube.objects.values()))
    assert b'precision_report_errors_total{reason="MetricsUnavailable"}' in without.metrics.exposition()


async def test_a_warning_of_hours_ago_is_found_and_the_span_that_was_read_is_named() -> None:
    stage = await rolled_back()
    report, spec = stage.report, stage.world.policy.spec
    began = parse_time(report.stages.detected_at)
    assert began is not None

    def warned(*evidence: Evidence) -> str:
        return next(a.answer for a in answer(replace(report, evidence=evidence), spec, ()) if "warning" in a.question)

    def overflow(name: str, since: float, *points: tuple[float, float]) -> Evidence:
        return keep(Question(name, "q", since, began), [Series({"pod": "hot-1-1"}, points)], first=())

    near = overflow("overflow", began - 1800.0, (began - 600.0, 0.01))
    assert warned(near) == "No, in the 30.0 min before; unknown: divergence, failures"
    calm = overflow("overflow_of_a_day", began - DAY_SECONDS, (began - 18000.0, 0.01))
    assert warned(near, calm) == "No, in the 24.0 h before; unknown: divergence, failures"
    day = overflow("overflow_of_a_day", began - DAY_SECONDS, (began - 18000.0, 0.2), (began - 600.0, 0.01))
    assert warned(near, day) == "Yes: overflow was above 0.15 from 18000 s before, of 24.0 h that were read"


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
    stage.breach()
    await stage.passes(8)
    answers = {a.question: a.answer for a in stage.report.questions}
    assert answers["What changed recently?"].startswith(f"{label}: 0.1 → 0.9 (hot-1;")
    assert answers["Can it be re-enabled safely?"] == verdict


async def test_the_checklist_fills_in_its_windows_and_the_all_clear_follows() -> None:
    stage = await rolled_back()
    now = {(c.window, c.name): c.result for c in stage.report.checklist}
    assert now["Immediate", "Fallback confirmed by the processes"] is CheckResult.PASSED
    assert now["Short", "No overflow"] is CheckResult.PENDING
    assert [m.kind for m in stage.report.messages] == ["Notice"]
    await stage.passes(35, 60.0)
    later = {(c.window, c.name): c.result for c in stage.report.checklist}
    assert later["Short", "Training completion rate above 95 %"] is CheckResult.PASSED
    assert later["Short", "Loss matches the FP32 baseline"] is CheckResult.PASSED
    assert later["Long", "System stability"] is CheckResult.PASSED
    assert [m.kind for m in stage.report.messages] == ["Notice", "AllClear"]
    assert "throughput: 0.80x of before" in stage.report.messages[1].body
    await stage.passes(95, 60.0)
    final = stage.report
    assert final.phase is IncidentPhase.CLOSED
    assert final.timeline[-1].what == "Verified"
    assert {c.result for c in final.checklist} == {CheckResult.PASSED}


async def test_a_check_that_fails_is_said_and_no_all_clear_is_given() -> None:
    stage = await rolled_back()
    stage.world.everywhere = {Signal.FAILURES: 0.5}
    await stage.passes(130, 60.0)
    assert [m.kind for m in stage.report.messages] == ["Notice", "VerificationFailed"]
    assert "FAILED: Training completion rate above 95 %" in stage.report.messages[1].body
    roles = [role for role, kind in stage.delivered[1:] if kind == "VerificationFailed"]
    assert sorted(roles) == ["executive", "ml-lead", "on-call"], "it is unresolved 30 minutes after the breach"
    assert stage.report.timeline[-1].what == "VerificationFailed"
    failed = [c for c in stage.report.checklist if c.result is CheckResult.FAILED]
    assert [c.name for c in failed] == ["Training completion rate above 95 %"]


async def test_a_check_that_fails_soon_after_the_breach_goes_no_higher_than_the_ml_lead() -> None:
    stage = await rolled_back(IncidentSettings(short_seconds=600.0))
    stage.world.everywhere = {Signal.FAILURES: 0.5}
    await stage.passes(15, 60.0)
    assert sorted(stage.delivered[1:]) == [("ml-lead", "VerificationFailed"), ("on-call", "VerificationFailed")]


async def test_metrics_that_are_away_leave_checks_unknown() -> None:
    stage = await rolled_back()
    stage.world.metrics_away = True
    await stage.passes(130, 60.0)
    short = {c.name: c.result for c in stage.report.checklist if c.window == "Short"}
    assert set(short.values()) == {CheckResult.UNKNOWN}


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
    assert stage.report.phase is IncidentPhase.CLOSED
    assert stage.incident_writes <= 12


async def test_a_rollback_of_seconds_is_written_as_it_begins_and_once_more() -> None:
    stage = await promoted()
    stage.breach()
    await stage.passes(36, 0.25)
    assert stage.world.state.phase is Phase.HELD
    assert stage.incident_writes == 1
    assert stage.report.stages.last_ack_at == ""
    await stage.passes(8, 0.5)
    assert stage.incident_writes == 2
    assert stage.report.phase is IncidentPhase.VERIFYING
    assert stage.report.stages.last_ack_at != ""
    assert {e.name for e in stage.report.evidence} >= {"overflow", "run_info"}
    assert stage.report.messages[0].delivered == ("on-call",)


async def test_a_rollback_that_takes_long_is_written_ever_more_seldom() -> None:
    stage = await promoted()
    stage.breach()
    stage.world.unobservable = {"hot-3"}
    times: list[float] = []
    for _ in range(600):
        before = stage.incident_writes
        await stage.unacted(1, 1.0)
        times += [stage.world.now] * (stage.incident_writes - before)
    assert stage.report.phase is IncidentPhase.ACTIVE
    gaps = [round(b - a) for a, b in pairwise(times)]
    assert gaps[0] == 10
    assert all(gap >= 40 for gap in gaps[1:])
    assert gaps[-1] == 300
    kept = stage.report.recordings
    assert kept.count + kept.dropped > 250


async def test_hundreds_of_passes_after_a_rollback_are_not_hundreds_of_writes() -> None:
    stage = await rolled_back()
    stage.world.unresponsive = set(stage.world.workloads)
    stage.world.bad = {}
    before = stage.incident_writes
    await stage.passes(400, 0.05)
    assert stage.incident_writes - before <= 2


async def test_what_was_seen_while_somebody_else_wrote_is_not_lost() -> None:
    stage = await promoted()
    stage.breach()
    await stage.passes(8, 0.25)
    (key,) = (k for k in stage.kube.objects if k[0] == INCIDENTS.plural)
    stage.kube.put(INCIDENTS, stage.kube.objects[key])
    seen = stage.world.now
    await stage.passes(10, 2.0)
    await stage.passes(3, 60.0)
    assert stage.metrics.exposition().count(b"precision_report_errors_total{") == 0, "a conflict is no error"
    report = stage.report
    assert "InFallback" in {m.what for m in report.timeline}
    taped = [r.now for r in unpack(report.recordings.tape).recordings]
    assert taped == sorted(set(taped))
    assert [now for now in taped if now < seen], "the passes before the conflict"
    assert first_difference(unpack(report.recordings.tape).recordings) is None


async def test_an_incident_that_somebody_deleted_is_written_again() -> None:
    stage = await rolled_back()
    stage.kube.objects.clear()
    await stage.passes(40, 60.0)
    assert stage.report.messages[-1].kind == "AllClear"
    assert "Detected" in {m.what for m in stage.report.timeline}


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


async def test_a_retry_ends_the_verification() -> None:
    stage = await rolled_back()
    stage.world.bad = {}
    await stage.passes(25, 60.0)
    answered = {"precision.genesis.ai/retry": str(stage.world.state.transition_id)}
    stage.world.policy = replace(stage.world.policy, annotations=answered)
    await stage.passes(2)
    assert stage.report.phase is IncidentPhase.CLOSED
    assert {c.result for c in stage.report.checklist if c.window == "Long"} == {CheckResult.UNKNOWN}


async def test_who_acknowledged_what_and_why_stays_in_the_timeline_once() -> None:
    stage = await rolled_back()
    number = stage.world.state.transition_id
    given = {"ack-fix": f"{number}: token=hunter2 rolled", "ack-fix-by": "ada", "ack-rootCause": str(number - 1)}
    annotations = {f"precision.genesis.ai/{name}": value for name, value in given.items()}
    stage.world.policy = replace(stage.world.policy, annotations=annotations)
    given_at = stage.world.now
    await stage.passes(3)
    (found,) = [m for m in stage.report.timeline if m.what == "Acknowledged"]
    assert found.message == "fix by ada: token=*** rolled"
    assert parse_time(found.at) == given_at


LONG = "password=hunter2 " * 10_000


async def test_no_incident_is_refused_for_what_people_wrote() -> None:
    stage = await rolled_back()
    number = stage.world.state.transition_id
    annotations = {"precision.genesis.ai/ack-fix": f"{number}: {LONG}"}
    stage.world.policy = replace(stage.world.policy, annotations=annotations)
    await stage.passes(3)
    (found,) = [m for m in stage.report.timeline if m.what == "Acknowledged"]
    assert len(found.message) <= MESSAGE_CHARACTERS
    assert "hunter2" not in found.message


async def test_an_incident_that_went_with_its_namespace_is_given_up() -> None:
    stage = await promoted()
    refused: list[str] = []

    def refuse(verb: str, key: Key) -> None:
        refused.append(verb)
        raise NotFound('namespaces "ns" not found', status=404)

    stage.kube.before_write = refuse
    stage.breach()
    await stage.passes(3)
    assert refused, "a policy that is there is reported of for as long as it takes"
    stage.reporter.gone(KEY)
    for _ in range(20):
        stage.world.now += 400.0
        await stage.reporter.turn()
    assert len(refused) <= 3 + GONE_FAILURES


async def test_an_object_changed_by_somebody_else_is_read_again() -> None:
    stage = await rolled_back()
    (key, body), *_ = ((k, b) for k, b in stage.kube.objects.items() if k[0] == INCIDENTS.plural)
    stage.kube.put(INCIDENTS, {**body, "metadata": {**body["metadata"], "labels": {"seen": "by-a-person"}}})  # type: ignore[dict-item]
    await stage.passes(40, 60.0)
    assert {"Notice", "AllClear"} == {m.kind for m in stage.report.messages}
    assert key in stage.kube.objects


async def test_closed_incidents_are_kept_up_to_a_number_and_an_age() -> None:
    stage = await rolled_back(IncidentSettings(keep=2, max_age_seconds=50_000.0))
    template = stage.report
    for index in range(4):
        aged = f"1969-12-31T2{index}:00:00Z" if index < 3 else "1969-12-30T00:00:00Z"
        old = to_body(replace(template, id=f"fleet-old-{index}", phase=IncidentPhase.CLOSED), namespace="ns")
        # By its metadata: nobody reads the whole of an incident to delete it.
        stage.kube.put(INCIDENTS, {**old, "metadata": {**old["metadata"], "creationTimestamp": aged}})  # type: ignore[dict-item]
    await stage.passes(130, 60.0)
    assert sorted(r.id for r in stage.reports()) == sorted([template.id, "fleet-old-2"])


def test_the_name_follows_from_the_incident_and_its_time() -> None:
    assert name_of("fleet-4", "2026-01-01T00:00:00.000Z") == name_of("fleet-4", "2026-01-01T00:00:00.000Z")
    assert name_of("fleet-4", "2026-01-01T00:00:00.000Z") != name_of("fleet-4", "2026-01-01T00:00:01.000Z")
    assert len(name_of("x" * 300, "2026-01-01T00:00:00.000Z")) <= 253


async def test_a_report_survives_the_wire() -> None:
    report = (await rolled_back()).report
    assert from_body(to_body(report, namespace="ns")) == report
