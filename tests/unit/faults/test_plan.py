"""Which faults are chosen, and which of them run side by side."""

from __future__ import annotations

from collections import Counter

import pytest

from lab.faults.plan import KILLS_EACH, combined, every, grouped, sample
from lab.faults.rules import KILLS, Fault, Write

LEARNED = {
    "rollout": [Write("PATCH", "pods", f"hot-{i}", 1) for i in range(20)],
    "retry": [Write("PUT", "precisionassignments", "fleet", i) for i in range(1, 6)],
}


def test_every_fault_meets_every_write_in_a_full_run() -> None:
    assert len(set(every(LEARNED))) == 25 * len(Fault)


def test_a_sample_leaves_no_fault_and_no_workflow_out_and_is_the_same_for_a_seed() -> None:
    found = sample(LEARNED, seed=3, count=100)
    assert (len(found), len(set(found))) == (100, 100)
    assert {(i.workflow, i.fault) for i in found} == {(name, fault) for name in LEARNED for fault in Fault}
    kills = Counter(i.workflow for i in found if i.fault in KILLS)
    assert kills == dict.fromkeys(LEARNED, KILLS_EACH)
    assert found == sample(LEARNED, seed=3, count=100)
    assert found != sample(LEARNED, seed=4, count=100)


def test_a_seed_draws_the_same_in_whatever_order_writes_arrive() -> None:
    arrived_otherwise = {name: writes[::-1] for name, writes in reversed(LEARNED.items())}
    assert sample(arrived_otherwise, seed=3, count=100) == sample(LEARNED, seed=3, count=100)


def test_a_sample_is_never_larger_than_all_there_is() -> None:
    found = sample(LEARNED, seed=3, count=10_000)
    assert len(found) == len(set(found)) == 25 * (len(Fault) - len(KILLS)) + KILLS_EACH * len(LEARNED)


def test_a_slow_workflow_has_no_more_than_each_has_at_least() -> None:
    found = sample(LEARNED, seed=3, count=10_000, slow={"rollout"})
    assert sum(i.workflow == "rollout" for i in found) == KILLS_EACH + len(Fault) - len(KILLS)
    assert sum(i.workflow == "retry" for i in found) == 5 * (len(Fault) - len(KILLS)) + KILLS_EACH


def test_the_smallest_sample_has_only_writes_that_come_in_every_run() -> None:
    found = sample(LEARNED, seed=3, count=0)
    assert {(i.workflow, i.fault) for i in found} == {(name, fault) for name in LEARNED for fault in Fault}
    assert {i.write.nth for i in found} == {1}


def test_kills_run_apart_from_what_they_would_interrupt() -> None:
    runs = combined(every(LEARNED), most=3)
    groups = list(grouped(runs, size=10, kills=4))
    for group in groups:
        deadly = {injection.fault in KILLS for run in group for injection in run}
        assert len(deadly) == 1
        assert len(group) <= (4 if deadly == {True} else 10)
    assert Counter(run for group in groups for run in group) == Counter(runs)


@pytest.mark.parametrize("most", [1, 3])
def test_faults_of_one_run_are_of_one_workflow_and_differ_in_kind_and_write(most: int) -> None:
    runs = combined(every(LEARNED), most=most)
    assert sorted(str(injection) for run in runs for injection in run) == sorted(map(str, every(LEARNED)))
    assert max(map(len, runs)) == most
    for run in runs:
        assert len({injection.workflow for injection in run}) == 1
        assert len({injection.fault for injection in run}) == len({injection.write for injection in run}) == len(run)
        assert len(run) == 1 or KILLS.isdisjoint(injection.fault for injection in run)
