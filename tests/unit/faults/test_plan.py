"""Which faults are chosen, and which of them run side by side."""

from __future__ import annotations

from collections import Counter

from lab.faults.plan import KILLS_EACH, every, grouped, sample
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


def test_a_sample_is_never_larger_than_all_there_is() -> None:
    found = sample(LEARNED, seed=3, count=10_000)
    assert len(found) == len(set(found)) == 25 * (len(Fault) - len(KILLS)) + KILLS_EACH * len(LEARNED)


def test_a_slow_workflow_has_no_more_than_each_has_at_least() -> None:
    found = sample(LEARNED, seed=3, count=10_000, slow={"rollout"})
    assert sum(i.workflow == "rollout" for i in found) == KILLS_EACH + len(Fault) - len(KILLS)
    assert sum(i.workflow == "retry" for i in found) == 5 * (len(Fault) - len(KILLS)) + KILLS_EACH


def test_kills_run_apart_from_what_they_would_interrupt() -> None:
    groups = list(grouped(every(LEARNED), size=10, kills=4))
    for group in groups:
        deadly = {injection.fault in KILLS for injection in group}
        assert len(deadly) == 1
        assert len(group) <= (4 if deadly == {True} else 10)
    assert sorted(str(injection) for group in groups for injection in group) == sorted(map(str, every(LEARNED)))
