"""``explain``: every phase, every reason, and what a person does next."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import precision_operator.core
from precision_operator.api.canary import Verdict
from precision_operator.api.conditions import Condition
from precision_operator.api.state import Phase
from precision_operator.cli import guidance
from precision_operator.cli.guidance import BY_CANARY as WORDS
from precision_operator.cli.guidance import LEFT_BEHIND, PHASES
from precision_operator.core.triggers import REASONS
from tests.support.cli import HELD, NO_DIFFERENCE, NOW, PREFIX, WAITING, Cli, mitigating, stands


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_explained(cli: Cli, phase: Phase) -> None:
    cli.policy(stands(phase, reason="SomethingNew", message="as the operator says"))
    text = cli("explain")
    assert PHASES[phase] in text
    assert "SomethingNew: as the operator says" in text


@pytest.mark.parametrize("reason", [*REASONS.values(), "Aborted", "RollbackRequested", "NoData"])
def test_every_reason_of_a_rollback_tells_how_to_start_again(cli: Cli, reason: str) -> None:
    cli.policy(stands(Phase.HELD, reason=reason, message="it was so"))
    shown = cli.json("explain")
    assert "`kubectl precision retry fleet -n default`" in " ".join(shown["next"])
    assert shown["reasons"][0]["reason"] == reason
    assert "it was so" in shown["reasons"][0]["meaning"]


def waiting_reasons() -> set[str]:
    """What a policy waits for: the first argument of each promotion check that waits, in the core."""
    core = Path(precision_operator.core.__file__).parent
    trees = [ast.parse(path.read_text()) for path in core.rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    closed = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Closed"]
    return {reason.value for reason in closed if isinstance(reason, ast.Constant) and isinstance(reason.value, str)}


def test_whatever_a_policy_waits_for_is_explained() -> None:
    found = waiting_reasons()
    assert {"Soaking", "FleetTooLarge", "CauseNotPrecision"} <= found
    assert sorted(found - set(guidance.REASONS)) == []


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


@pytest.mark.parametrize("verdict", [Verdict.NO_DIFFERENCE, Verdict.WORSE, Verdict.INCONCLUSIVE])
def test_explain_of_a_held_canary_names_every_way_on(cli: Cli, verdict: Verdict) -> None:
    cli.policy(stands(Phase.ROLLING_BACK, NO_DIFFERENCE, reason=f"Canary{verdict}"))
    text = cli("explain")
    assert WORDS in " ".join(text.split())
    for verb in ("promote", "rollback --emergency", "ack --policy", "retry"):
        assert f"kubectl precision {verb} fleet" in text


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
        ("Accepted", "True", "SelectorPending", "`kubectl precision retry fleet -n default`"),
        ("Accepted", "False", "FleetTooLarge", "divide the fleet among several policies"),
    ],
)
def test_a_condition_that_needs_a_person_is_explained(
    cli: Cli, kind: str, status: str, reason: str, words: str
) -> None:
    cli.policy(stands(Phase.HEALTHY, conditions=(Condition(kind, status, reason, "so it is", 1, NOW),)))
    text = " ".join(cli("explain").split())
    assert f"{reason}: " in text
    assert words in text


def test_a_lost_record_is_explained_with_the_way_to_start_again(cli: Cli) -> None:
    cli.policy(stands(Phase.HELD, HELD, reason="StateLost", message="the PrecisionAssignment was deleted"))
    text = " ".join(cli("explain").split())
    assert "which workload was in which mode is not known any more" in text
    assert "`kubectl precision ack --policy fleet -n default`" in text
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
