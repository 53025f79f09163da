"""Which PodDisruptionBudget keeps a Job's pods, by what the disruption controller wrote into its status."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from precision_operator.api.selector import Selector, parse_selector
from precision_operator.errors import DisruptionBudget
from precision_operator.workloads import budgets as module
from precision_operator.workloads.budgets import BUDGETS_LIMIT, SELECTING_LIMIT, TERMS_LIMIT, Budgets

Json = dict[str, Any]

_NUMBERS = itertools.count()


def pod(*, phase: str = "Running", ready: bool = True, going: bool = False, **labels: str) -> Json:
    metadata: Json = {"name": "p", "uid": f"uid-{next(_NUMBERS)}", "labels": {"job": "train", **labels}}
    if going:
        metadata["deletionTimestamp"] = "2026-11-22T10:00:00Z"
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": str(ready)}]
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


def budget(selector: Json | None, *, allowed: int = 0, name: str = "train", **status: int) -> Json:
    found = {"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, **status}
    spec = {} if selector is None else {"selector": selector}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec, "status": found}


def budgets_of(bodies: Iterable[Json]) -> Budgets:
    found = Budgets()
    for body in bodies:
        found.add(body)
    return found


def against(pods: list[Json], bodies: list[Json]) -> str | None:
    return budgets_of(bodies).against(pods)


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
    found = against([pod()], [budget(selector)])
    assert (found is not None) == matches
    assert not matches or "the disruption budget train allows 0 disruptions, and 1 of its pods would go" in str(found)


@pytest.mark.parametrize(("allowed", "kept"), [(0, True), (1, True), (2, False), (3, False)])
def test_it_must_allow_as_many_disruptions_as_ready_pods_would_go(allowed: int, kept: bool) -> None:
    assert (against([pod(), pod()], [budget(MINE, allowed=allowed)]) is not None) == kept


def test_only_pods_that_run_and_stay_count() -> None:
    pods = [pod(phase="Pending"), pod(phase="Succeeded"), pod(phase="Failed"), pod(going=True)]
    assert against(pods, [budget(MINE)]) is None
    assert against([*pods, pod()], [budget(MINE, allowed=1)]) is None


def test_a_status_of_an_earlier_generation_allows_nothing() -> None:
    found = against([pod()], [budget(MINE, allowed=5, observedGeneration=0)])
    assert found == "the disruption budget train is still being processed"


def test_every_budget_is_asked() -> None:
    generous, strict = budget(MINE, allowed=9, name="generous"), budget({}, name="strict")
    assert "strict" in str(against([pod()], [generous, strict]))
    assert against([pod()], [generous]) is None


@pytest.mark.parametrize(
    ("healthy", "policy", "kept"),
    [(2, "", False), (1, "", True), (1, "IfHealthyBudget", True), (1, "AlwaysAllow", False)],
)
def test_a_pod_that_is_not_ready_costs_nothing_where_enough_others_are(healthy: int, policy: str, kept: bool) -> None:
    body = budget(MINE, currentHealthy=healthy)
    body["spec"]["unhealthyPodEvictionPolicy"] = policy
    assert (against([pod(ready=False)], [body]) is not None) == kept


def test_each_selector_is_read_once_however_many_pods_are_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []

    def noting(raw: object) -> Selector:
        read.append(raw)
        return parse_selector(raw)

    monkeypatch.setattr(module, "parse_selector", noting)
    found = budgets_of(budget(MINE, allowed=100, name=str(number)) for number in range(3))
    assert [found.against([pod(), pod()]) for _ in range(5)] == [None] * 5
    assert read == [MINE] * 3


def test_only_budgets_are_matched_that_ask_for_a_label_of_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Selector] = []
    matches = Selector.matches

    def noting(self: Selector, labels: Mapping[str, str]) -> bool:
        asked.append(self)
        return matches(self, labels)

    monkeypatch.setattr(Selector, "matches", noting)
    found = budgets_of(budget({"matchLabels": {"job": f"train-{number}"}}) for number in range(100))
    assert "allows 0 disruptions" in str(found.against([pod(job="train-7")]))
    assert asked == [Selector((("job", "train-7"),))]


def test_what_goes_counts_once_and_a_workloads_own_pods_do_not_count_against_it() -> None:
    mine, found = [pod(), pod()], budgets_of([budget(MINE, allowed=3)])
    assert [found.against(mine) for _ in range(2)] == [None, None]
    assert "allows 1 disruptions, and 2" in str(found.against([pod(), pod()]))


def test_a_budget_is_left_to_a_process_group_that_it_has_let_go_in_part() -> None:
    found = budgets_of([budget(MINE, allowed=9)])
    found.tears(pod())
    assert "left to a process group" in str(found.against([pod()]))


@pytest.mark.parametrize(
    ("missing", "ready"), [("observedGeneration", False), ("disruptionsAllowed", True), ("currentHealthy", False)]
)
def test_what_a_status_does_not_say_allows_nothing(missing: str, *, ready: bool) -> None:
    body = budget(MINE, allowed=1, currentHealthy=1, desiredHealthy=1)
    assert against([pod(ready=ready)], [body]) is None
    del body["status"][missing]
    assert against([pod(ready=ready)], [body]) is not None


def naming(terms: int) -> Json:
    """A selector of so many labels and values."""
    return {"matchExpressions": [{"key": "job", "operator": "In", "values": ["x"] * (terms - 1)}]}


@pytest.mark.parametrize(("number", "selector"), [(BUDGETS_LIMIT, MINE), (0, naming(TERMS_LIMIT + 1))])
def test_more_than_can_be_judged_is_refused_with_the_reason(number: int, selector: Json) -> None:
    found = budgets_of(budget(MINE) for _ in range(number))
    with pytest.raises(DisruptionBudget, match="the namespace"):
        found.add(budget(selector))


def test_as_many_labels_and_values_as_the_limit_are_judged() -> None:
    assert against([pod()], [budget(naming(TERMS_LIMIT))]) is None


def test_a_pod_that_too_many_budgets_select_stays() -> None:
    bodies = [budget({}, allowed=9) for _ in range(SELECTING_LIMIT)]
    assert against([pod()], bodies) is None
    assert "disruption budgets select one of its pods" in str(against([pod()], [*bodies, budget(MINE, allowed=9)]))
    assert len(budgets_of(3 * bodies).selecting(pod())) == SELECTING_LIMIT + 1
