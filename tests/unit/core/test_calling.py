"""Each reason that asks something of a person is told of by a message, or it is written here why not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from lab.model.policies import FAST
from lab.model.world import NAN, OVERFLOWS
from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.choices import Severity, Strategy
from precision_operator.api.drill import DrillResult
from precision_operator.api.incident import Incident
from precision_operator.api.messages import MessageKind
from precision_operator.api.mitigation import Mitigation, MitigationResult, Rung
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.state import Failing, HeldWorkload, Phase, State
from precision_operator.core import promotion
from precision_operator.core.calling import NO_DATA_SECONDS, RECENT_SECONDS, SETTLE_SECONDS, STEP_SECONDS, calls
from precision_operator.core.rollback.drill import OVERDUE_SECONDS
from precision_operator.reasons import Reason, ReasonSeverity
from tests.support.fleets import fleet, promoted, until
from tests.support.standing_calls import DRILL, INCIDENT, NOW, STANDS, WINDOW, condition, progressing, rolling

OF_A_PERSON = {ReasonSeverity.STUCK, ReasonSeverity.ATTENTION, ReasonSeverity.DECISION}

IN_AN_INCIDENT = {
    MessageKind.NOTICE: (
        *(Reason.ROLLBACK_REQUESTED, Reason.ABORTED, Reason.ROLLBACK_EXPEDITED, Reason.STATE_LOST, Reason.NO_DATA),
        *(Reason.MITIGATION_FAILED, Reason.COMPARING_CANARY),
        *(record.reason for record in SIGNALS.values() if record.default.severity is not Severity.P3),
    ),
    MessageKind.ALL_CLEAR: (Reason.ROLLED_BACK,),
}
"""Kind → the reasons of a rollback that it tells of: what called for it, and how it goes."""

IN_A_CONDITION: dict[tuple[str, str], tuple[MessageKind, tuple[Reason, ...]]] = {
    ("Blocked", "True"): (
        MessageKind.WORKLOAD_BLOCKED,
        (Reason.BLOCKED, Reason.NODE_UNREACHABLE, Reason.FOREIGN_FINALIZER, Reason.NOT_TERMINATED),
    ),
    ("Stuck", "True"): (MessageKind.WORKLOAD_BLOCKED, (Reason.PODS_IN_WRONG_MODE,)),
    ("WeightsSuspect", "True"): (MessageKind.WEIGHTS_SUSPECT, (Reason.NOT_REWOUND,)),
    ("MetricsAvailable", "False"): (
        MessageKind.METRICS_MISSING,
        (
            *(Reason.NO_SAMPLES, Reason.SAMPLES_TOO_OLD, Reason.TOO_FEW_STEPS, Reason.NO_PODS, Reason.NOT_A_NUMBER),
            *(Reason.METRICS_UNAVAILABLE, Reason.ENDPOINT_NOT_ANSWERING, Reason.EVALUATION_TIMEOUT),
            *(Reason.EVALUATION_LATE, Reason.DUPLICATE_SERIES, Reason.MISSING_POD_LABEL),
        ),
    ),
    ("Accepted", "False"): (
        MessageKind.ATTENTION,
        (
            *(Reason.NO_WORKLOADS, Reason.FLEET_TOO_LARGE, Reason.UNSUPPORTED_KIND, Reason.QUERY_INVALID),
            *(Reason.UNKNOWN_ENDPOINT, Reason.RAW_QUERY_NOT_ALLOWED, Reason.UNKNOWN_QUERY),
        ),
    ),
    ("Accepted", "True"): (
        MessageKind.ATTENTION,
        (
            *(Reason.UNDELIVERABLE, Reason.POLICY_CONFLICT, Reason.SELECTOR_PENDING, Reason.LABELS_DISAGREE),
            *(Reason.PODS_INDIVISIBLE, Reason.PROCESS_GROUP_UNKNOWN),
        ),
    ),
    ("AdmissionEnforced", "False"): (
        MessageKind.ATTENTION,
        (Reason.NOT_ENFORCING, Reason.ADMISSION_NOT_INSTALLED, Reason.ADMISSION_DIFFERS),
    ),
    ("AdmissionEnforced", "Unknown"): (
        MessageKind.ATTENTION,
        (Reason.ADMISSION_NOT_CONFIRMED, Reason.WEBHOOK_UNREACHABLE),
    ),
    ("FailSafe", "False"): (MessageKind.ATTENTION, (Reason.TEMPLATE_STARTS_MIXED,)),
    ("WritesAccepted", "False"): (
        MessageKind.ATTENTION,
        (Reason.FORBIDDEN, Reason.UNFENCED, Reason.KUBERNETES_API_ERROR, Reason.DISRUPTION_BUDGET),
    ),
    ("InjectionRefused", "True"): (
        MessageKind.ATTENTION,
        (
            *(Reason.CONTAINER_ABSENT, Reason.STATIC_POD, Reason.WINDOWS, Reason.HOST_NETWORK, Reason.TOO_LARGE),
            *(Reason.REQUEST_FILE_ELSEWHERE, Reason.MOUNT_PATH_TAKEN, Reason.VOLUME_NAME_TAKEN),
            *(Reason.PORT_TAKEN, Reason.PORT_NAME_TAKEN),
        ),
    ),
    ("Alerting", "True"): (
        MessageKind.ATTENTION,
        tuple(
            record.alert or record.reason
            for record in SIGNALS.values()
            if Severity.P3 in (record.default.severity, record.default.warn_severity)
        ),
    ),
    ("SpeedupLow", "True"): (MessageKind.ATTENTION, (Reason.SPEEDUP_LOW,)),
    ("PendingRevision", "True"): (MessageKind.ATTENTION, (Reason.TEMPLATE_CHANGED,)),
    ("CapacityLost", "True"): (MessageKind.ATTENTION, (Reason.REPLACEMENT_PENDING,)),
}
"""(condition, status) → the kind that tells of it, and with which reasons it stands so."""

LONG_AGO = NOW - 2 * STEP_SECONDS
ALONE = (HeldWorkload("apps/Deployment/vit", "LossDiverged", NOW),)
IN_A_STATE: dict[Reason, State] = {
    **{
        reason: replace(rolling(strategy=Strategy.CANARY), comparison=Comparison(verdict=verdict, ended_at=NOW - 5))
        for reason, verdict in (
            (Reason.CANARY_NO_DIFFERENCE, CanaryVerdict.NO_DIFFERENCE),
            (Reason.CANARY_WORSE, CanaryVerdict.WORSE),
            (Reason.CANARY_INCONCLUSIVE, CanaryVerdict.INCONCLUSIVE),
        )
    },
    Reason.DEADLINE_EXCEEDED: STANDS["DeadlineMissed"][0],
    Reason.DEADLINE_UNREACHABLE: STANDS["DeadlineAtRisk"][0],
    Reason.ROLLBACK_ESCALATED: STANDS["Unresponsive"][0],
    Reason.INVESTIGATING: STANDS["InvestigationBegun"][0],
    Reason.MITIGATING: State(phase=Phase.HEALTHY, mitigations=(replace(WINDOW, rung=Rung.HALVE_SCALE),)),
    Reason.MITIGATION_EXHAUSTED: State(
        phase=Phase.HEALTHY, mitigations=(WINDOW,), conditions=progressing(Reason.MITIGATION_EXHAUSTED)
    ),
    Reason.AWAITING_APPROVAL: STANDS["ApprovalWanted"][0],
    Reason.AWAITING_PREREQUISITES: STANDS["AcknowledgementsWanted"][0],
    Reason.AWAITING_RETRY: STANDS["RetryPossible"][0],
    Reason.POLICY_DELETED: STANDS["ReleasePossible"][0],
    Reason.CAUSE_NOT_PRECISION: STANDS["CauseNotPrecision"][0],
    Reason.DRILL_FAILED: STANDS["DrillFailed"][0],
}
"""Reason → a state in which it is told of at once."""

OF_THE_OPERATOR = (
    "it is of the operator itself, not of a policy: its log, its metrics and the alerts on them tell of it"
)
ANSWERS = "it answers a command, whose author reads it"
ASKED_FOR = "a person asked for it, and conditions show it"
CANARY_LIMIT = "the canary's limit ends it, and RollbackCanaryHeld tells of that"
UNTOLD = {
    **dict.fromkeys(
        (
            *(Reason.OPERATOR_ERROR, Reason.CONFIGURATION_INVALID, Reason.NEWER_VERSION, Reason.INTERNAL_ERROR),
            *(Reason.RECORDING_INVALID, Reason.NOT_DELIVERED, Reason.TEMPLATE_INVALID, Reason.CERTIFICATE_INVALID),
            *(Reason.RECEIVER_MISCONFIGURED, Reason.ACCEPT_FAILED, Reason.ALERT_FAILED, Reason.REVIEW_FAILED),
        ),
        OF_THE_OPERATOR,
    ),
    **dict.fromkeys(
        (
            *(Reason.NOTHING_TO_RETRY, Reason.NOT_AWAITING_APPROVAL, Reason.DRILL_REFUSED, Reason.REFUSED),
            Reason.FIGURES_MISSING,
        ),
        ANSWERS,
    ),
    **dict.fromkeys((Reason.SUSPENDED, Reason.HALTED, Reason.OBSERVING, Reason.WOULD_ACT), ASKED_FOR),
    **dict.fromkeys((Reason.CANARY_UNKNOWN, Reason.CANARY_GONE, Reason.NOTHING_TO_COMPARE), CANARY_LIMIT),
    Reason.NOT_ACKNOWLEDGED: "it stands in what a window has tried; the window's end is told of",
    Reason.MEMORY_TOO_SMALL: "an Event tells of it once; a rollback restarts such a workload, or takes BF16, by itself",
    Reason.HOT_ONLY: "it is a property of the fleet; what does not answer a rollback is told of by Unresponsive",
    Reason.TEMPLATE_READS_REFERENCE: "nothing is known to be wrong; doctor and lint name it",
    Reason.POLICY_GONE: "the next pass ends what it is about",
}

BY_PROMOTION = {
    Reason[name]
    for path in Path(promotion.__path__[0]).rglob("*.py")
    for name in re.findall(r"\bReason\.([A-Z0-9_]+)\b", path.read_text())
}
HOLDS_A_ROLLOUT = sorted(
    reason
    for reason in {*BY_PROMOTION, Reason.UNKNOWN_TIME_ZONE}
    if reason.severity in (ReasonSeverity.STUCK, ReasonSeverity.ATTENTION)
    and not any(reason in reasons for _, reasons in IN_A_CONDITION.values())
    and reason not in {*IN_A_STATE, *UNTOLD}
)
"""What a rollout waits for, as told by where it is given, unless one of the tables above has it."""


def told(found: Iterable[tuple[MessageKind, tuple[Reason, ...]]]) -> list[Reason]:
    return [reason for _, reasons in found for reason in reasons]


def kinds_of(state: State, reason: Reason, now: float) -> set[MessageKind]:
    return {call.kind for call in calls(state, now) if call.reason == reason}


def test_each_reason_that_asks_something_of_a_person_is_told_of_or_it_is_written_why_not() -> None:
    known = [*told(IN_AN_INCIDENT.items()), *told(IN_A_CONDITION.values()), *HOLDS_A_ROLLOUT, *IN_A_STATE]
    assert frozenset(known).isdisjoint(UNTOLD)
    asked = {reason for reason in Reason if reason.severity in OF_A_PERSON}
    assert asked == {*known, *UNTOLD}, "name the message that tells of it above, or in UNTOLD why none does"


@pytest.mark.parametrize(
    ("where", "reason"), [(where, reason) for where, (_, reasons) in IN_A_CONDITION.items() for reason in reasons]
)
def test_a_condition_that_has_been_bad_news_for_long_is_told_of(where: tuple[str, str], reason: Reason) -> None:
    bad = condition(*where, reason, seconds=3600.0)
    state = State(phase=Phase.HEALTHY, enforce=True, no_data_since=NOW - 3600.0, conditions=(bad,))
    assert kinds_of(state, reason, NOW) == {IN_A_CONDITION[where][0]}


@pytest.mark.parametrize("reason", HOLDS_A_ROLLOUT)
@pytest.mark.parametrize(
    ("phase", "status", "seconds"),
    [(Phase.PENDING, "False", SETTLE_SECONDS), (Phase.PROGRESSING, "True", STEP_SECONDS)],
)
def test_what_holds_a_rollout_for_long_is_told_of(phase: Phase, status: str, seconds: float, reason: Reason) -> None:
    waits = State(
        phase=phase,
        phase_since=NOW,
        step_since=NOW,
        waits_since=NOW,
        transition_id=4,
        conditions=progressing(reason, "False" if reason.stuck else status),
    )
    assert kinds_of(waits, reason, NOW + seconds - 1.0) == ({MessageKind.ROLLOUT_HELD} if reason.stuck else set())
    assert kinds_of(waits, reason, NOW + seconds) == {MessageKind.ROLLOUT_HELD}
    since = NOW + seconds
    other = replace(waits, waits_since=since)  # it waited for something else until now
    assert kinds_of(other, reason, since) == ({MessageKind.ROLLOUT_HELD} if reason.stuck else set())
    assert kinds_of(other, reason, since + SETTLE_SECONDS) == {MessageKind.ROLLOUT_HELD}


@pytest.mark.parametrize("reason", IN_A_STATE)
def test_what_a_person_is_to_know_of_at_once_is_told_of(reason: Reason) -> None:
    assert len(kinds_of(IN_A_STATE[reason], reason, NOW + 1.0)) == 1


def test_what_another_message_tells_of_is_not_told_twice() -> None:
    known = condition("Accepted", "False", Reason.NO_WORKLOADS, seconds=3600.0)
    waits = (known, *progressing(Reason.NO_WORKLOADS))
    state = State(phase=Phase.PENDING, phase_since=LONG_AGO, waits_since=LONG_AGO, conditions=waits)
    assert [call.kind for call in calls(state, NOW)] == [MessageKind.ATTENTION]
    opened = replace(STANDS["InvestigationBegun"][0], phase=Phase.PROGRESSING, step_since=NOW - STEP_SECONDS)
    opened = replace(opened, waits_since=LONG_AGO, conditions=progressing(Reason.INVESTIGATING, "True"))
    assert [call.kind for call in calls(opened, NOW)] == [MessageKind.INVESTIGATION_BEGUN]


@pytest.mark.parametrize(("began", "since"), [(NOW - 60.0, NOW - 60.0), (None, NOW)])
def test_what_waits_for_a_person_stands_since_its_phase_began(began: float | None, since: float) -> None:
    for kind in ("ApprovalWanted", "RetryPossible", "ReleasePossible"):
        assert [call.since for call in calls(replace(STANDS[kind][0], phase_since=began), NOW)] == [since]


def test_a_retry_of_workloads_that_are_held_alone_is_possible_since_the_last_one_was_held() -> None:
    held = (*ALONE, HeldWorkload("apps/Deployment/bert", "LossDiverged", NOW - 60.0))
    acknowledged = replace(INCIDENT, last_ack_at=NOW)
    state = State(phase=Phase.DEGRADED, held=held, incident=acknowledged, conditions=progressing(Reason.AWAITING_RETRY))
    assert [(call.kind, call.since) for call in calls(state, NOW)] == [(MessageKind.RETRY_POSSIBLE, NOW)]
    assert calls(replace(state, incident=INCIDENT), NOW) == (), "not all have acknowledged"


def test_a_retry_that_a_canarys_verdict_waits_for_is_not_told_of_beside_the_verdict() -> None:
    held = replace(IN_A_STATE[Reason.CANARY_WORSE], conditions=progressing(Reason.AWAITING_PREREQUISITES))
    held = replace(held, incident=replace(INCIDENT, strategy=Strategy.CANARY, last_ack_at=NOW))
    assert [call.kind for call in calls(held, NOW)] == [MessageKind.ROLLBACK_CANARY_HELD]


@pytest.mark.parametrize("phase", [Phase.PROGRESSING, Phase.HELD])
def test_a_verdict_that_holds_no_rollback_is_not_told_of_as_one(phase: Phase) -> None:
    assert calls(replace(IN_A_STATE[Reason.CANARY_WORSE], phase=phase), NOW) == ()


@pytest.mark.parametrize(
    ("incident", "passed_at", "occasion"),
    [
        (None, None, "never"),
        (INCIDENT, None, f"{INCIDENT.decided_at:.0f}"),
        (INCIDENT, LONG_AGO, f"{INCIDENT.decided_at:.0f}"),
        (None, LONG_AGO, f"{LONG_AGO:.0f}"),
    ],
)
def test_a_drill_is_proposed_anew_after_each_rollback_and_each_drill_that_passed(
    incident: Incident | None, passed_at: float | None, occasion: str
) -> None:
    drill = replace(DRILL, result=DrillResult.PASSED, passed_at=passed_at)
    state = replace(STANDS["DrillProposed"][0], incident=incident, last_drill=drill)
    assert [call.occasion for call in calls(state, NOW + OVERDUE_SECONDS)] == [occasion]


LATER = replace(WINDOW, signal=Signal.SPEED)
EARLIER = replace(LATER, since=WINDOW.since - 60.0)


def good(*windows: Mitigation) -> tuple[Mitigation, ...]:
    return tuple(replace(window, result=MitigationResult.MITIGATED) for window in windows)


@pytest.mark.parametrize(
    ("windows", "kind", "of"),
    [
        ((WINDOW, EARLIER), MessageKind.INVESTIGATION_BEGUN, EARLIER),
        ((LATER, WINDOW), MessageKind.INVESTIGATION_BEGUN, WINDOW),
        ((EARLIER, *good(WINDOW)), MessageKind.INVESTIGATION_BEGUN, EARLIER),
        (good(WINDOW, EARLIER), MessageKind.INVESTIGATION_OVER, WINDOW),
        (good(LATER, WINDOW), MessageKind.INVESTIGATION_OVER, LATER),
    ],
)
def test_of_several_windows_the_first_open_one_is_told_of_and_once_none_is_open_the_last(
    windows: tuple[Mitigation, ...], kind: MessageKind, of: Mitigation
) -> None:
    found = calls(State(phase=Phase.HEALTHY, mitigations=windows), NOW)
    assert [(call.kind, call.occasion) for call in found] == [(kind, f"{of.since:.0f}-{of.signal}")]


def test_a_cause_that_is_not_the_precision_stands_since_the_first_of_its_breaches() -> None:
    first, other = (Failing("a", Signal.NON_FINITE, Severity.P0, NOW - ago) for ago in (60.0, 30.0))
    state = replace(STANDS["CauseNotPrecision"][0], failing=(first, other))
    assert [call.since for call in calls(state, NOW)] == [first.since]


def test_what_was_mitigated_is_no_news_an_hour_after_it_was_good() -> None:
    (window,) = STANDS["InvestigationOver"][0].mitigations
    good = State(phase=Phase.HEALTHY, mitigations=(replace(window, good_since=NOW),))
    assert [call.kind for call in calls(good, NOW + RECENT_SECONDS - 1.0)] == [MessageKind.INVESTIGATION_OVER]
    assert calls(good, NOW + RECENT_SECONDS) == ()


def test_workloads_that_a_policy_of_before_left_held_wait_for_a_retry() -> None:
    state = State(phase=Phase.PENDING, held=ALONE, phase_since=NOW, conditions=progressing(Reason.AWAITING_RETRY))
    assert [call.kind for call in calls(state, NOW)] == [MessageKind.RETRY_POSSIBLE]


def test_no_deadline_is_missed_for_pods_that_nothing_here_can_end_by_a_canary_or_once_all_are_back() -> None:
    late = rolling(deadline_at=NOW - 1.0)
    assert [call.kind for call in calls(late, NOW)] == [MessageKind.DEADLINE_MISSED]
    for other in (
        replace(late, conditions=progressing(Reason.BLOCKED)),
        rolling(deadline_at=NOW - 1.0, strategy=Strategy.CANARY),
        rolling(deadline_at=NOW - 1.0, last_ack_at=NOW - 2.0),
        State(phase=Phase.HEALTHY, incident=replace(INCIDENT, deadline_at=NOW - 1.0)),
    ):
        assert calls(other, NOW) == ()


def test_a_rollback_that_was_raised_is_another_deadline_at_risk() -> None:
    first, raised = (
        calls(rolling(predicted_seconds=900.0, expedited_at=at), NOW)[0] for at in (None, INCIDENT.decided_at + 30.0)
    )
    assert (first.kind, raised.kind) == (MessageKind.DEADLINE_AT_RISK, MessageKind.DEADLINE_AT_RISK)
    assert (first.since, raised.since - first.since) == (INCIDENT.decided_at, 30.0)
    assert raised.occasion != first.occasion


def test_a_reason_that_only_another_version_knows_holds_no_rollout() -> None:
    waits = State(phase=Phase.PROGRESSING, conditions=progressing("AwaitingTheFuture"))
    assert calls(waits, NOW) == ()


POOR = progressing(Reason.EVIDENCE_INSUFFICIENT, "True")
WAITS = State(phase=Phase.PROGRESSING, step_since=LONG_AGO, waits_since=LONG_AGO, conditions=POOR)


@pytest.mark.parametrize(
    ("state", "date"),
    [(WAITS, "step_since"), (WAITS, "waits_since"), (STANDS["MetricsMissing"][0], "no_data_since")],
)
def test_what_stands_for_nobody_knows_how_long_is_not_told_of(state: State, date: str) -> None:
    later = NOW + NO_DATA_SECONDS
    assert len(calls(state, later)) == 1
    assert calls(replace(state, **{date: None}), later) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("breached", [["hot-1"], ["hot-1", "hot-2", "hot-3"]])
def test_a_deadline_that_a_fleet_misses_unpredicted_is_told_of(breached: list[str]) -> None:
    world = promoted()
    world.bad = dict.fromkeys(breached, NAN)
    until(world, lambda w: w.state.incident is not None)
    world.unobservable = {"hot-1"}
    until(world, lambda w: "DeadlineMissed" in {call.kind for call in calls(w.state, w.now)}, seconds=15.0)


def test_a_canary_that_no_node_is_labelled_for_is_told_of() -> None:
    world = fleet(strategy={**FAST["strategy"], "canary": {"by": "NodeLabel"}})
    world.run(60)
    assert (world.state.phase, world.summary.reason) == (Phase.PENDING, "NoStagingNodes")
    assert [(c.kind, c.reason) for c in calls(world.state, world.now)] == [("RolloutHeld", "NoStagingNodes")]


def test_evidence_that_is_never_good_enough_is_told_of() -> None:
    world = fleet()
    until(world, lambda w: w.state.phase is Phase.PROGRESSING)
    world.everywhere = {Signal.OVERFLOW: 0.07}
    for _ in range(70):
        world.step(60.0)
    assert (world.state.phase, world.summary.reason) == (Phase.PROGRESSING, "EvidenceInsufficient")
    assert [(c.kind, c.reason) for c in calls(world.state, world.now)] == [("RolloutHeld", "EvidenceInsufficient")]


def test_a_deleted_policy_that_still_holds_workloads_is_told_of() -> None:
    world = promoted()
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    until(world, lambda w: w.state.phase is Phase.HELD)
    world.delete_policy()
    world.run(3)
    assert [(c.kind, c.reason) for c in calls(world.state, world.now)] == [("ReleasePossible", "PolicyDeleted")]


@pytest.mark.parametrize("kind", ["PendingRevision", "CapacityLost", "WritesAccepted"])
def test_what_keeps_a_rollback_from_its_end_is_told_of_once(kind: str) -> None:
    status = "False" if kind == "WritesAccepted" else "True"
    state = replace(rolling(), conditions=(condition(kind, status, Reason.BLOCKED, seconds=3600.0),))
    assert [call.kind for call in calls(state, NOW) if call.reason == Reason.BLOCKED] == [MessageKind.ROLLBACK_WAITING]
