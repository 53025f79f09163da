"""Which PodDisruptionBudget keeps a Job's pods, by what the disruption controller wrote into its status."""

from __future__ import annotations

from typing import Any

import pytest

from precision_operator.workloads.budgets import budget_against

Json = dict[str, Any]


def pod(*, phase: str = "Running", ready: bool = True, going: bool = False, **labels: str) -> Json:
    metadata: Json = {"name": "p", "labels": {"job": "train", **labels}}
    if going:
        metadata["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


def budget(selector: Json | None, *, allowed: int = 0, name: str = "train", **status: int) -> Json:
    found = {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, **status}
    spec = {} if selector is None else {"selector": selector}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec, "status": found}


MINE = {"matchLabels": {"job": "train"}}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (MINE, True),
        ({"matchLabels": {"job": "other"}}, False),
        ({"matchExpressions": [{"key": "job", "operator": "In", "values": ["train", "x"]}]}, True),
        ({"matchExpressions": [{"key": "job", "operator": "DoesNotExist"}]}, False),
        ({**MINE, "matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({}, True),
        (None, False),
    ],
)
def test_a_budget_speaks_for_the_pods_that_it_selects_and_an_empty_one_for_all(
    selector: Json | None, matches: bool
) -> None:
    against = budget_against([pod()], [budget(selector)])
    assert (against is not None) == matches
    assert not matches or "the disruption budget train allows 0 disruptions, and 1 of its pods would go" in str(against)


@pytest.mark.parametrize(("allowed", "kept"), [(0, True), (1, True), (2, False), (3, False)])
def test_it_must_allow_as_many_disruptions_as_ready_pods_would_go(allowed: int, kept: bool) -> None:
    assert (budget_against([pod(), pod()], [budget(MINE, allowed=allowed)]) is not None) == kept


def test_only_pods_that_run_and_stay_count() -> None:
    pods = [pod(phase="Pending"), pod(phase="Succeeded"), pod(phase="Failed"), pod(going=True)]
    assert budget_against(pods, [budget(MINE)]) is None
    assert budget_against([*pods, pod()], [budget(MINE, allowed=1)]) is None


def test_a_status_of_an_earlier_generation_allows_nothing() -> None:
    found = budget_against([pod()], [budget(MINE, allowed=5, observedGeneration=0)])
    assert found == "the disruption budget train is still being processed"


def test_every_budget_is_asked() -> None:
    generous, strict = budget(MINE, allowed=9, name="generous"), budget({}, name="strict")
    assert "strict" in str(budget_against([pod()], [generous, strict]))
    assert budget_against([pod()], [generous]) is None


@pytest.mark.parametrize(
    ("healthy", "policy", "kept"),
    [(2, "", False), (1, "", True), (1, "IfHealthyBudget", True), (1, "AlwaysAllow", False)],
)
def test_a_pod_that_is_not_ready_costs_nothing_where_enough_others_are(healthy: int, policy: str, kept: bool) -> None:
    body = budget(MINE, currentHealthy=healthy)
    body["spec"]["unhealthyPodEvictionPolicy"] = policy
    assert (budget_against([pod(ready=False)], [body]) is not None) == kept
