"""The cluster's budget of restarts: taken with a decision, given back without its commit, counted by each leader."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from precision_operator.api.assignment import parse_assignment
from precision_operator.api.policy import PolicyKey, parse_policy
from precision_operator.api.state import State
from precision_operator.controller.restarts import Restarts, Until
from precision_operator.core.restart.rounds import RESTARTING_SECONDS
from precision_operator.errors import Conflict, OperatorError, Unavailable
from precision_operator.kube.port import POLICIES, JsonObject
from tests.support import objects as b
from tests.support.manual_clock import ManualClock, finished, settle
from tests.support.reconciling import FAST, Rig

A, B = PolicyKey("a", "fleet"), PolicyKey("b", "fleet")


def note(restarts: Restarts, key: PolicyKey, until: Until, epoch: int = 1) -> None:
    with restarts.noted(key, until, epoch=epoch):
        pass


def until(clock: ManualClock, *seconds: float) -> Until:
    return tuple(clock.time() + each for each in seconds)


def test_what_other_policies_restart_is_not_left() -> None:
    clock = ManualClock()
    restarts = Restarts(clock)
    note(restarts, A, until(clock, 10, 20, -1))
    assert (restarts.slots(B, 5, epoch=1), restarts.slots(A, 5, epoch=1)) == (3, 5)
    note(restarts, A, until(clock, *range(1, 10)))
    assert restarts.slots(B, 5, epoch=1) == 0
    restarts.forget(A)
    assert restarts.slots(B, 5, epoch=1) == 5


@pytest.mark.parametrize(
    ("error", "left"), [(None, 3), (Conflict("c"), 4), (Unavailable("it may have been written"), 3)]
)
def test_slots_are_taken_with_a_decision_and_given_back_where_it_was_not_committed(
    error: OperatorError | None, left: int
) -> None:
    clock = ManualClock()
    restarts = Restarts(clock)
    note(restarts, A, until(clock, 10))
    with suppress(OperatorError), restarts.noted(A, until(clock, 10, 10), epoch=1):
        assert restarts.slots(B, 5, epoch=1) == 3
        if error is not None:
            raise error
    assert restarts.slots(B, 5, epoch=1) == left


def test_a_new_leader_gives_no_slots_before_every_policy_was_decided_on() -> None:
    clock = ManualClock()
    restarts = Restarts(clock, known=lambda: (A, B))
    note(restarts, A, until(clock, 10, 10))
    note(restarts, B, ())
    assert restarts.slots(B, 5, epoch=1) == 3
    assert restarts.slots(B, 5, epoch=2) == 0
    note(restarts, A, (), epoch=1)
    assert restarts.slots(B, 5, epoch=2) == 0
    note(restarts, A, until(clock, 10), epoch=2)
    assert restarts.slots(B, 5, epoch=2) == 4


def test_a_first_decision_that_cannot_be_committed_counts_for_it_may_hold_an_earlier_leaders_restarts() -> None:
    clock = ManualClock()
    restarts = Restarts(clock, known=lambda: (A, B))
    for _ in range(2):
        with pytest.raises(Conflict), restarts.noted(A, until(clock, 10, 10), epoch=1):
            raise Conflict("somebody changes it again and again")
        assert restarts.slots(B, 5, epoch=1) == 3


def test_a_policy_that_was_made_or_deleted_since_a_new_leader_began_holds_up_nobody() -> None:
    known = [A, B]
    restarts = Restarts(ManualClock(), known=lambda: known)
    assert restarts.slots(A, 5, epoch=1) == 0
    known[:] = [A, PolicyKey("c", "new")]
    assert restarts.slots(A, 5, epoch=1) == 5


async def test_a_policy_whose_passes_fail_stops_the_restarts_of_others_for_a_while_and_not_for_ever() -> None:
    clock = ManualClock()
    restarts = Restarts(clock, known=lambda: (A, B))
    assert restarts.slots(A, 5, epoch=1) == 0
    await clock.advance(RESTARTING_SECONDS)
    assert restarts.slots(A, 5, epoch=1) == 5


async def test_a_policy_that_decides_while_another_makes_sure_is_not_given_the_same_slot() -> None:
    rig, first, second = Rig(), PolicyKey("default", "a"), PolicyKey("default", "b")
    for key in (first, second):
        rig.workload(key.name, hot=False)
        rig.kube.put(POLICIES, b.policy({"matchLabels": {"app": key.name}}, name=key.name, uid=key.name, **FAST))
    rig.gatherer._settings = replace(rig.gatherer._settings, restart_budget=1)
    rig.trainers.say_nothing_more = True
    confirm = rig.reconciler._committer._confirm

    async def beside_the_other(key: PolicyKey, body: JsonObject, state: State) -> None:
        if key == first:
            await rig.reconciler.reconcile(second)
        await confirm(key, body, state)

    rig.reconciler._committer._confirm = beside_the_other  # type: ignore[method-assign]

    def written(key: PolicyKey) -> State:
        record = rig.kube.objects.get(("precisionassignments", key.namespace, key.name))
        return parse_assignment(record) if record is not None else State()

    for _ in range(10):
        rig.watch()
        for key in (first, second):
            policy = parse_policy(rig.kube.objects["precisionpolicies", key.namespace, key.name])
            rig.gatherer.awaits(key, policy, written(key))
        await settle()
        for key in (first, second):
            await finished(rig.manual, rig.reconciler.reconcile(key))
        await rig.manual.advance(10.0)
    states = [written(key) for key in (first, second)]
    assert all(state.enforce for state in states), "both were promoted"
    assert sum(len(state.restarts) for state in states) == len(rig.pod_writes) == 1
