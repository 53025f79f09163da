"""How often admission is asked about policies that move nothing, and what one answer says of the others."""

from __future__ import annotations

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.enforcement import FRESH_SECONDS, RESTING_SECONDS
from precision_operator.errors import Unavailable
from precision_operator.kube.port import POLICIES
from tests.support import objects as b
from tests.support.enforcing import KEY, SERVER, Rig

OTHERS = tuple(f"p{number}" for number in range(9))


async def rests(rig: Rig, seconds: float) -> int:
    """All policies rest, with a pass every 15 s; returns how often admission was asked."""
    before = len(rig.kube.asked)
    for _ in range(round(seconds / 15)):
        await rig.clock.advance(15.0)
        for name in (KEY.name, *OTHERS):
            await rig.current(name=name, resting=True)
    return len(rig.kube.asked) - before


async def test_of_policies_that_rest_one_is_asked_about_each_minute_and_each_within_five() -> None:
    rig = Rig()
    assert await rig.current() is True
    await rig.ask_about(*OTHERS)
    assert await rests(rig, RESTING_SECONDS - 15.0) == 4
    asked = 4 + await rests(rig, 15.0)
    assert asked >= len(OTHERS) + 1


async def test_a_policy_that_moves_something_is_asked_about_each_minute() -> None:
    rig = Rig()
    assert await rig.current() is True
    await rig.clock.advance(FRESH_SECONDS / 2)
    await rig.ask_about(*OTHERS)
    await rig.clock.advance(FRESH_SECONDS / 2)
    before = len(rig.kube.asked)
    await rig.current(resting=True)
    assert len(rig.kube.asked) == before
    await rig.current()
    assert len(rig.kube.asked) == before + 1


async def test_admission_that_enforces_nothing_any_more_is_seen_by_all_that_rest_within_two_minutes() -> None:
    rig = Rig()
    assert await rig.current() is True
    await rig.ask_about(*OTHERS)
    rig.kube.installed = False
    await rests(rig, 2 * FRESH_SECONDS)
    keys = [PolicyKey(KEY.namespace, name) for name in (KEY.name, *OTHERS)]
    assert {rig.enforcement.admission(key).enforced for key in keys} == {False}


async def test_a_probe_in_vain_and_a_policy_that_never_had_a_yes_delay_what_is_seen_of_the_others_by_nothing() -> None:
    rig = Rig()
    assert await rig.current() is True
    await rig.ask_about(*OTHERS)
    rig.kube.put(POLICIES, b.policy(name="exempt"))
    assert await rig.current(name="exempt") is False
    await rests(rig, FRESH_SECONDS - 15.0)
    rig.kube.failing = {SERVER: Unavailable("503")}
    await rests(rig, 15.0)
    rig.kube.failing = {}
    await rests(rig, 30.0)
    rig.kube.installed = False
    for _ in range(8):
        await rests(rig, 15.0)
        await rig.current(name="exempt")
    keys = [PolicyKey(KEY.namespace, name) for name in (KEY.name, *OTHERS)]
    assert {rig.enforcement.admission(key).enforced for key in keys} == {False}


@pytest.mark.parametrize("gone", [False, True])
async def test_what_is_said_of_one_policy_takes_no_answer_about_another_back(gone: bool) -> None:
    """Else a tenant who makes and deletes policies would hold up everybody's rollback."""
    rig = Rig()
    await rig.confirm()
    await rig.ask_about("another")
    await rig.clock.advance(FRESH_SECONDS / 2)
    if gone:
        rig.kube.objects.pop(("precisionpolicies", KEY.namespace, "another"))
    else:
        rig.kube.objects.pop(("precisionassignments", KEY.namespace, "another"))
    await rig.enforcement.ask(PolicyKey(KEY.namespace, "another"), generation=7, patient=False)
    assert rig.enforcement.admission(PolicyKey(KEY.namespace, "another")).enforced is not True
    assert rig.enforcement.confirmed(KEY, 7)
