"""``explain``: every phase, every reason, and what a person does next."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest

from precision_operator.api.canary import CanaryVerdict
from precision_operator.api.conditions import Condition
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, HeldWorkload, Phase, Restart, Suspension
from precision_operator.cli.attention import bad_news
from precision_operator.cli.guidance import BY_CANARY as WORDS
from precision_operator.cli.guidance import LEFT_BEHIND, PHASES
from precision_operator.cli.summary import CONCERNED_LIMIT
from precision_operator.core.leaving import blocked
from precision_operator.core.model import PodView
from precision_operator.core.plan import Plan
from precision_operator.core.status import conditions
from precision_operator.reasons import Cause, Reason
from precision_operator.reasons.steps import whole
from tests.support.cli import HELD, INCIDENT, NO_DIFFERENCE, NOW, PREFIX, WAITING, Cli, mitigating, stands
from tests.support.pasting import check_pasted


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_explained(cli: Cli, phase: Phase) -> None:
    cli.policy(stands(phase, reason="SomethingNew", message="as the operator says"))
    text = cli("explain")
    assert PHASES[phase] in text
    assert "SomethingNew: as the operator says" in text


@pytest.mark.parametrize(
    "reason", [*(record.reason for record in SIGNALS.values()), "Aborted", "RollbackRequested", "NoData"]
)
def test_every_reason_of_a_rollback_tells_how_to_start_again(cli: Cli, reason: str) -> None:
    cli.policy(stands(Phase.HELD, reason=reason, message="it was so"))
    shown = cli.json("explain")
    assert "`kubectl precision retry fleet -n default`" in " ".join(shown["next"])
    assert shown["reasons"][0]["reason"] == reason
    assert "it was so" in shown["reasons"][0]["meaning"]


def test_explain_names_the_person_who_paused_and_who_answered(cli: Cli) -> None:
    given = {"suspend-by": "alice", "abort": "3", "abort-by": "bob", "retry": "1", "retry-by": "carol"}
    cli.policy(HELD, annotations={f"{PREFIX}{k}": v for k, v in given.items()}, suspend=True)
    text = cli("explain")
    assert "paused by alice" in text
    assert "abort by bob" in text
    assert "carol" not in text
    assert "kubectl precision resume fleet" in text


def test_explain_tells_what_a_person_must_answer(cli: Cli) -> None:
    cli.policy(WAITING)
    assert "approve it: `kubectl precision promote fleet -n default`" in cli("explain")


def test_explain_tells_a_policy_that_only_waits_to_be_let_alone(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    assert "nothing: it goes on by itself" in cli("explain")


@pytest.mark.parametrize("verdict", [CanaryVerdict.NO_DIFFERENCE, CanaryVerdict.WORSE, CanaryVerdict.INCONCLUSIVE])
def test_explain_of_a_held_canary_names_every_way_on(cli: Cli, verdict: CanaryVerdict) -> None:
    cli.policy(stands(Phase.ROLLING_BACK, NO_DIFFERENCE, reason=f"Canary{verdict}"))
    text = cli("explain")
    assert WORDS in " ".join(text.split())
    for words in ("promote fleet", "rollback fleet --emergency", "ack fleet", "retry fleet"):
        assert f"kubectl precision {words}" in text


def test_explain_of_a_mitigation_says_what_is_tried_and_the_way_back(cli: Cli) -> None:
    cli.policy(mitigating())
    text = " ".join(cli("explain").split())
    assert "Mitigating: something milder than a rollback is being tried" in text
    assert "must be good for 480 s" in text
    assert "precision rollback fleet" in text


@pytest.mark.parametrize("reason", ["AwaitingAcknowledgement", "DeadlineExceeded"])
def test_explain_of_a_guarded_fleet_names_the_workload_whose_rollback_is_waited_for(cli: Cli, reason: str) -> None:
    text = "waiting for the trainers of a to report fp32"
    waits = Condition("Progressing", "False", reason, text, 1, NOW - 60)
    cli.policy(
        stands(Phase.DEGRADED, reason="OverflowRateHigh", message="overflow beyond 0.3 in a", conditions=(waits,))
    )
    found = {entry["reason"]: entry["meaning"] for entry in cli.json("explain")["reasons"]}
    assert list(found) == ["OverflowRateHigh", reason]
    assert text in found[reason]


ADMISSION = ("NotEnforcing", "AdmissionNotInstalled", "AdmissionDiffers", "Unfenced")


@pytest.mark.parametrize("reason", ADMISSION)
def test_admission_that_is_not_certain_names_who_can_mend_it(cli: Cli, reason: str) -> None:
    found = Condition("AdmissionEnforced", "False", reason, "https://10.0.0.1:6443 says so", 1, NOW - 60)
    cli.policy(stands(Phase.HEALTHY, conditions=(found,)))
    text = " ".join(cli("explain").split())
    assert f"{reason}: " in text
    assert "(https://10.0.0.1:6443 says so)" in text
    assert "manifests/admission" in text
    assert "`kubectl -n default get mutatingadmissionpolicies,validatingadmissionpolicies`" in text


def test_a_namespace_in_which_nothing_is_enforced_is_named_as_a_possible_cause(cli: Cli) -> None:
    found = Condition("AdmissionEnforced", "False", "NotEnforcing", "https://10.0.0.1:6443 says so", 1, NOW - 60)
    cli.policy(stands(Phase.HEALTHY, conditions=(found,)))
    assert "in kube-system and in the operator's own namespace nothing is enforced" in " ".join(cli("explain").split())


def test_before_anything_is_enforced_admission_is_no_news(cli: Cli) -> None:
    found = Condition("AdmissionEnforced", "False", "NotEnforcing", "no workload has been assigned a mode yet", 1, NOW)
    cli.policy(stands(Phase.PENDING, enforce=False, conditions=(found,)))
    assert "NotEnforcing" not in cli("explain")


@pytest.mark.parametrize(
    ("kind", "status", "reason", "words"),
    [
        ("WritesAccepted", "False", "Forbidden", "the API server refuses a write of the operator"),
        ("Stuck", "True", "PodsInWrongMode", "replaced pods came back in another mode"),
        ("WeightsSuspect", "True", "NotRewound", "start them from a checkpoint that was saved before the incident"),
        ("FailSafe", "False", "TemplateStartsMixed", "take ENABLE_FP16_TRAINING out of the templates"),
        ("InjectionRefused", "True", "HostNetwork", "declare the contract by hand"),
        ("AdmissionEnforced", "Unknown", "WebhookUnreachable", "reach each other on the webhook's port"),
        ("Restartable", "False", "HotOnly", "declare how they are started again"),
        ("PreflightPassed", "False", "PreflightFailed", "mend what the message names"),
        ("Accepted", "True", "SelectorPending", "`kubectl precision retry fleet -n default`"),
        ("Accepted", "False", "FleetTooLarge", "divide the fleet among several policies"),
        (
            "PendingRevision",
            "True",
            "TemplateChanged",
            "get replicasets,controllerrevisions -l fleet=test",
        ),
        ("CapacityLost", "True", "ReplacementPending", "get events --field-selector=reason=FailedScheduling"),
        ("Blocked", "True", "NodeUnreachable", "`kubectl -n default get nodes`"),
        ("Blocked", "True", "ForeignFinalizer", "FINALIZERS:.metadata.finalizers"),
        ("Blocked", "True", "NotTerminated", "ends with a reboot of its node"),
        ("WritesAccepted", "False", "DisruptionBudget", "`kubectl precision rollback fleet --emergency -n default`"),
        ("KindsSupported", "False", "UnsupportedKind", "kubectl -n default get pods -l fleet=test -o"),
        ("Progressing", "True", "Blocked", "no deadline is about them"),
    ],
)
def test_a_condition_that_needs_a_person_is_explained(
    cli: Cli, kind: str, status: str, reason: str, words: str
) -> None:
    cli.policy(stands(Phase.HEALTHY, conditions=(Condition(kind, status, reason, "so it is", 1, NOW),)))
    text = " ".join(cli("explain").split())
    assert f"{reason}: " in text
    assert words in text


@pytest.mark.parametrize("selector", ["fleet=test", ""])
@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.steps])
def test_every_command_of_every_step_can_be_pasted(reason: Reason, selector: str) -> None:
    def kubectl(*words: str) -> str:
        return shlex.join(("kubectl", "-n", "default", *words))

    def plugin(*words: str) -> str:
        return shlex.join(("kubectl", "precision", *words, "-n", "default"))

    for step in reason.steps:
        text = whole(step, name="fleet", missing="fix", kubectl=kubectl, plugin=plugin, selector=selector)
        assert not re.search(r"[!{]|kubectl", re.sub(r"`[^`]*`", "", text)), f"a command that cannot be seen: {text}"
        for command in re.findall(r"`(kubectl[^`]*)`", text):
            check_pasted(command)


def test_setting_of_a_pending_change_is_a_line_that_can_be_pasted(cli: Cli) -> None:
    found = Condition("PendingRevision", "True", "TemplateChanged", "a not restarted", 1, NOW)
    cli.policy(stands(Phase.ROLLING_BACK, conditions=(found,)))
    (line,) = (step for step in cli.json("explain")["next"] if "onPendingRevision" in step)
    command = shlex.split(line.split("`")[1])
    assert command[:6] == ["kubectl", "-n", "default", "patch", "precisionpolicy", "fleet"]
    patch = json.loads(command[-1].removeprefix("-p="))
    assert patch == {"spec": {"rollback": {"onPendingRevision": "Restart"}}}


def test_an_observing_policy_is_explained_with_the_line_that_lets_it_act(cli: Cli) -> None:
    cli.policy(stands(Phase.PENDING, reason="WouldAct"), enforcement="Observe")
    line = next(step for step in cli.json("explain")["next"] if "Enforce" in step)
    command = shlex.split(line.split("`")[1])
    assert json.loads(command[-1].removeprefix("-p=")) == {"spec": {"enforcement": "Enforce"}}


def test_every_condition_that_restarts_bring_is_bad_news() -> None:
    planned = Plan(pending=("a",), lost=("b",), blocked=(("c", Cause(Reason.NODE_UNREACHABLE, "n1")),))
    made = [one(planned) for one in (conditions._pending, conditions._capacity, conditions._blocked)]
    pod = PodView("c", "u", node="n1", terminating=True, gone_by=100.0)
    gone = replace(pod, grace_seconds=1.0)
    why = [
        blocked(replace(pod, finalizer="a/b"), 200.0, ()),
        blocked(pod, 200.0, {"n1"}),
        blocked(gone, 200.0, ()),
    ]
    reasons = {*(condition.reason for condition in made), *(cause.reason for cause in why if cause is not None)}
    expected = {"TemplateChanged", "ReplacementPending", "NodeUnreachable", "ForeignFinalizer", "NotTerminated"}
    assert reasons == expected
    assert all(bad_news(condition) for condition in made)


def test_a_deadline_that_will_be_missed_is_explained_until_all_have_answered(cli: Cli) -> None:
    late = replace(INCIDENT, predicted_seconds=1000.0, last_ack_at=None)
    cli.policy(stands(Phase.ROLLING_BACK, reason="OverflowRateHigh", incident=late))
    text = " ".join(cli("explain").split())
    assert "DeadlineUnreachable: the restarts of this rollback are predicted to take longer" in text
    assert "maxConcurrentPods" in text
    assert "predicted  101 s past the deadline: DeadlineUnreachable" in cli("status", code=3)
    assert cli.json("status", code=3)["incident"]["predictedSeconds"] == 1000.0
    cli.policy(stands(Phase.HELD, HELD, incident=replace(late, last_ack_at=NOW)))
    assert "DeadlineUnreachable" not in cli("explain")


def test_explain_names_each_workload_by_kind_and_name(cli: Cli) -> None:
    failing = (
        Failing("apps/StatefulSet/a", Signal.OVERFLOW, Severity.P1, NOW - 30),
        Failing("", Signal.OVERFLOW, Severity.P1, NOW),
    )
    cli.policy(
        stands(
            Phase.ROLLING_BACK,
            failing=failing,
            held=(HeldWorkload("batch/Job/a", "OverflowRateHigh", NOW),),
            restarts={"apps/Deployment/a": Restart(1, NOW - 40), "batch/Job/a": Restart(1, NOW - 40)},
            suspensions={"batch/Job/a": Suspension("u", 3, NOW - 12, resuming=True)},
        )
    )
    found = cli.json("explain")["workloads"]
    assert found[:3] == [
        "statefulset/a: breached by overflow",
        "further workloads: breached by overflow",
        "job/a: held for OverflowRateHigh",
    ]
    assert found[3].startswith("deployment/a: restarting for ")
    assert found[4].startswith("job/a: resumed by the operator ")
    assert "job/a: held for OverflowRateHigh" in cli("explain")


def test_explain_of_many_workloads_names_the_first(cli: Cli) -> None:
    held = tuple(
        HeldWorkload(f"batch/Job/a{index:02}", "OverflowRateHigh", NOW) for index in range(CONCERNED_LIMIT + 3)
    )
    cli.policy(stands(Phase.DEGRADED, held=held))
    found = cli.json("explain")["workloads"]
    assert len(found) == CONCERNED_LIMIT + 1
    assert found[-1] == "and 3 more: `get` shows all"


def test_a_lost_record_is_explained_with_the_way_to_start_again(cli: Cli) -> None:
    cli.policy(stands(Phase.HELD, HELD, reason="StateLost", message="the PrecisionAssignment was deleted"))
    text = " ".join(cli("explain").split())
    assert "which workload was in which mode is not known any more" in text
    assert "`kubectl precision ack fleet -n default`" in text
    assert "`kubectl precision retry fleet -n default`" in text


def test_what_a_deleted_policy_holds_is_explained_with_the_way_to_end_it(cli: Cli) -> None:
    cli.assignment(stands(Phase.HELD, HELD, reason="PolicyDeleted", message="2 workloads stay", fallback=None))
    text = " ".join(cli("explain").split())
    assert LEFT_BEHIND in text
    assert "`kubectl precision release fleet -n default`" in text
    assert "precision retry" not in text


def test_a_rollback_that_outlives_its_policy_says_so(cli: Cli) -> None:
    cli.assignment(stands(Phase.ROLLING_BACK, reason="OverflowRateHigh", message="overflow beyond 0.3 in a"))
    found = [entry["reason"] for entry in cli.json("explain")["reasons"]]
    assert found == ["PolicyDeleted", "OverflowRateHigh"]
