"""What is held, and the end of what a deleted policy left behind."""

from __future__ import annotations

import pytest

from precision_operator.api.state import Phase
from tests.support.cli import BY_CANARY, HELD, PARTLY, A, Cli, Stands, stands

LEFT = stands(Phase.HELD, PARTLY, reason="PolicyDeleted", message="left", fallback=None, deletable=True)
FINISHING = stands(Phase.ROLLING_BACK, PARTLY, reason="LossNotFinite", message="going on")


@pytest.mark.parametrize(
    ("found", "held", "end"),
    [
        (HELD, "the whole fleet (2 workloads)", "kubectl precision retry fleet -n default"),
        (PARTLY, A, "kubectl precision retry fleet -n default"),
        (BY_CANARY, A, "kubectl precision retry fleet -n default"),
    ],
)
def test_each_hold_of_a_policy_is_listed_with_what_ends_it(cli: Cli, found: Stands, held: str, end: str) -> None:
    cli.policy(found)
    text = cli("holds")
    assert held in text
    assert end in text


@pytest.mark.parametrize(
    ("found", "end"),
    [(LEFT, "kubectl precision release fleet -n default"), (FINISHING, "its rollback is being finished")],
)
def test_what_a_deleted_policy_left_is_listed_with_its_workloads(cli: Cli, found: Stands, end: str) -> None:
    cli.assignment(found)
    text = cli("holds", "-A")
    assert A in text
    assert end in text


def test_holds_are_listed_for_programs_too(cli: Cli) -> None:
    cli.assignment(LEFT)
    (found,) = cli.json("holds")
    assert (found["policy"], found["policyDeleted"], found["wholeFleet"]) == ("fleet", True, False)
    assert [workload["key"] for workload in found["workloads"]] == [A]
    assert found["endsBy"] == "kubectl precision release fleet -n default"


def test_a_healthy_fleet_holds_nothing(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    assert cli("holds").strip() == "nothing is held in namespace default"
    assert cli("holds", "-A").strip() == "nothing is held in any namespace"
    assert cli.json("holds") == []


def test_release_deletes_what_a_deleted_policy_left(cli: Cli) -> None:
    cli.assignment(LEFT)
    assert "1 workload released" in cli("release", "fleet")
    assert cli("holds").startswith("nothing is held")


def test_a_dry_run_prints_the_kubectl_line_and_deletes_nothing(cli: Cli) -> None:
    cli.assignment(LEFT)
    assert cli("release", "fleet", "--dry-run").strip() == "kubectl -n default delete precisionassignment fleet"
    assert A in cli("holds")


@pytest.mark.parametrize(
    ("policy", "found", "words"),
    [
        (True, HELD, "`kubectl precision retry fleet -n default` starts its fleet again"),
        (False, FINISHING, "its rollback is being finished"),
    ],
)
def test_release_is_refused_while_the_policy_lives_or_its_rollback_goes_on(
    cli: Cli, policy: bool, found: Stands, words: str
) -> None:
    (cli.policy if policy else cli.assignment)(found)
    assert words in cli("release", "fleet", code=1)
    assert cli("holds") != ""
