"""What is remembered of admission, how long, and what is looked for after its echo."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.controller.echo import PATIENCE_SECONDS, SETTLE_SECONDS, Echo
from precision_operator.controller.enforcement import (
    FIRST_SECONDS,
    FRESH_SECONDS,
    RETRY_SECONDS,
)
from precision_operator.errors import Unavailable
from precision_operator.kube.port import PODS
from tests.support.enforcing import KEY, SERVER, STATE, Rig
from tests.support.manual_clock import finished


async def test_nothing_is_confirmed_before_it_was_asked() -> None:
    rig = Rig()
    assert rig.enforcement.admission(KEY).enforced is None
    assert not rig.enforcement.confirmed(KEY, 0)
    await rig.confirm()
    assert rig.enforcement.confirmed(KEY, 7)
    assert rig.enforcement.confirmed(KEY, 6)
    assert not rig.enforcement.confirmed(KEY, 8)
    assert not rig.enforcement.confirmed(PolicyKey("default", "another"), 0)


async def test_a_yes_is_believed_for_a_minute() -> None:
    rig = Rig()
    assert await rig.current() is True
    await rig.clock.advance(FRESH_SECONDS - 1)
    assert await rig.current() is True
    assert len(rig.kube.asked) == 1
    await rig.clock.advance(1)
    assert not rig.enforcement.confirmed(KEY, 7)
    assert await rig.current() is True
    assert len(rig.kube.asked) == 2


async def test_a_no_is_asked_again_in_seconds_and_waited_for_only_once_a_generation() -> None:
    rig = Rig()
    rig.kube.installed = False
    began = rig.clock.now
    assert await rig.current() is False
    assert (len(rig.kube.asked), rig.clock.now) == (1, began)
    await rig.clock.advance(RETRY_SECONDS)
    rig.kube.asked.clear()
    assert await rig.current(patient=True) is False
    assert rig.kube.asked != []
    await rig.clock.advance(PATIENCE_SECONDS + 0.1)
    waited = len(rig.kube.asked)
    assert waited > 1, "for a while, beside the pass"
    await rig.clock.advance(RETRY_SECONDS / 2)
    assert await rig.current() is False
    assert len(rig.kube.asked) == waited
    await rig.clock.advance(RETRY_SECONDS)
    assert await rig.current(patient=True) is False
    assert len(rig.kube.asked) == waited + 1
    rig.kube.installed = True
    await rig.clock.advance(RETRY_SECONDS)
    await rig.current()
    assert await rig.current() is True


async def test_an_old_answer_is_not_waited_for_and_another_one_is_a_reason_to_look_again() -> None:
    rig = Rig()
    assert await rig.current() is True
    assert rig.changed == [], "the pass has waited for it"
    await rig.clock.advance(FRESH_SECONDS)
    rig.kube.installed = False
    assert (await rig.enforcement.current(KEY, generation=7)).enforced is True
    await rig.clock.advance(0.0)
    assert rig.enforcement.admission(KEY).enforced is False
    assert rig.changed == [KEY]
    await rig.clock.advance(RETRY_SECONDS)
    assert await rig.current() is False
    assert rig.changed == [KEY], "the same answer again is none"


async def test_an_api_server_that_hangs_holds_up_no_pass_for_longer_than_a_moment() -> None:
    rig = Rig()
    rig.kube.hanging = {SERVER}
    began = rig.clock.now
    assert await rig.current() is None
    assert FIRST_SECONDS <= rig.clock.now - began < FIRST_SECONDS + 0.1
    await rig.current()
    assert rig.kube.asked == [SERVER], "one question at a time"
    await rig.enforcement.close()
    rig.kube.hanging.clear()
    assert await rig.current() is True
    await rig.clock.advance(FRESH_SECONDS)
    rig.kube.hanging = {SERVER}
    began = rig.clock.now
    for _ in range(3):
        assert await rig.current() is True
    assert rig.clock.now == began
    await rig.enforcement.close()


async def test_a_first_answer_that_comes_late_is_a_reason_to_look_again() -> None:
    rig = Rig()
    rig.kube.known = {SERVER: 6}
    assert await rig.current(patient=True) is None
    assert rig.changed == []
    rig.kube.known = {}
    await rig.clock.advance(PATIENCE_SECONDS)
    assert rig.enforcement.admission(KEY).enforced is True
    assert rig.changed == [KEY]


async def answered_late(rig: Rig) -> tuple[asyncio.Task[None], asyncio.Event]:
    """A question about generation 7 beside the passes: admission has answered it, and nobody has read that yet."""
    await rig.confirm()
    await rig.clock.advance(FRESH_SECONDS)
    ask, read = rig.echoes.ask, asyncio.Event()

    async def late(key: PolicyKey, *, generation: int, awaited: bool = True) -> Echo:
        echo = await ask(key, generation=generation, awaited=awaited)
        await read.wait()
        return echo

    rig.echoes.ask = late  # type: ignore[method-assign]
    await rig.current()
    rig.echoes.ask = ask  # type: ignore[method-assign]
    return rig.enforcement._asking[KEY], read


async def test_what_was_asked_before_a_doubt_does_not_remove_it() -> None:
    rig = Rig()
    asking, read = await answered_late(rig)
    rig.enforcement.doubt(KEY, frozenset({"p-1"}))
    read.set()
    await asking
    assert not rig.enforcement.confirmed(KEY, 7)
    assert not rig.enforcement.settled(KEY, 7)


async def test_an_answer_does_not_take_the_place_of_one_that_was_asked_for_later() -> None:
    rig = Rig()
    asking, read = await answered_late(rig)
    rig.commit(8)
    await rig.confirm(8)
    read.set()
    await asking
    assert rig.enforcement.confirmed(KEY, 8)
    assert rig.enforcement.settled(KEY, 8)


async def test_a_question_that_fails_is_logged_and_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    differs = rig.installed.differs

    async def fail() -> NoReturn:
        raise RuntimeError("a bug")

    rig.installed.differs = fail  # type: ignore[method-assign]
    assert await rig.current() is None
    assert [record.__dict__["reason"] for record in caplog.records if record.exc_info] == ["InternalError"]
    rig.installed.differs = differs  # type: ignore[method-assign]
    assert await rig.current() is True


async def test_no_question_outlives_its_policy_or_the_operator() -> None:
    for end in ("forget", "close"):
        rig = Rig()
        await rig.current()
        await rig.clock.advance(FRESH_SECONDS)
        rig.kube.hanging = {SERVER}
        await rig.current()
        asking = rig.enforcement._asking[KEY]
        if end == "forget":
            rig.enforcement.forget(KEY)
        else:
            await rig.enforcement.close()
        await rig.clock.advance(0.0)
        assert asking.cancelled()
        assert (rig.enforcement._asking, rig.changed) == ({}, [])
        assert (rig.enforcement._known == {}) == (end == "forget")


async def test_a_generation_whose_pods_were_listed_stays_settled_while_its_answer_grows_old() -> None:
    rig = Rig()
    await rig.confirm()
    await rig.clock.advance(FRESH_SECONDS)
    assert not rig.enforcement.confirmed(KEY, 7), "nothing may be taken away before it is asked for again"
    assert rig.enforcement.settled(KEY, 7), "and nothing else needs an answer"
    assert not rig.enforcement.settled(KEY, 8)


async def test_admission_that_echoes_but_is_not_the_shipped_one_is_not_enforcing() -> None:
    rig = Rig()
    del rig.kube.objects["mutatingadmissionpolicies", "", "assign"]
    await rig.confirm()
    assert rig.enforcement.admission(KEY).reason == "AdmissionNotInstalled"
    assert not rig.enforcement.confirmed(KEY, 7)
    assert rig.lists == 0


async def test_after_the_echo_the_pods_are_listed_once_a_generation() -> None:
    rig = Rig()
    rig.pod(2, seen=False)
    assert not rig.enforcement.settled(KEY, 7)
    assert await rig.confirm() is True, "there is one that the watch has not reported"
    assert rig.inventory.count(PODS) == 2
    assert [read for read in rig.kube.reads if read[:2] == ("get", "pods")] == [("get", "pods", "train-abc-2")]
    assert rig.enforcement.settled(KEY, 7)
    assert await rig.confirm() is False
    assert rig.lists == 1
    rig.commit(8)
    assert not rig.enforcement.settled(KEY, 8)
    assert await rig.confirm(8) is False
    assert rig.lists == 2


async def test_without_the_echo_no_pods_are_listed() -> None:
    rig = Rig()
    rig.kube.known = {SERVER: 6}
    assert await rig.confirm() is False
    assert rig.lists == 0
    assert rig.enforcement.admission(KEY).reason == "AdmissionBehind"


async def test_a_list_that_failed_is_asked_for_again() -> None:
    rig = Rig()
    rig.pod(2, seen=False)
    rig.kube.failing = {"list": Unavailable("away")}
    assert await rig.confirm() is False
    assert rig.enforcement.confirmed(KEY, 7)
    assert not rig.enforcement.settled(KEY, 7)
    rig.kube.failing.clear()
    assert await rig.confirm() is True
    assert rig.enforcement.settled(KEY, 7)


async def test_a_selector_that_asks_for_nothing_lists_nothing() -> None:
    rig = Rig()
    state = replace(STATE, selector=Selector())
    assert await finished(rig.clock, rig.enforcement.confirm(KEY, state, deleted=False)) is False
    assert [read for read in rig.kube.reads if read[0] == "list"] == []
    assert rig.enforcement.settled(KEY, 7)


async def test_a_pod_in_another_mode_than_its_own_is_a_reason_to_ask_anew_once() -> None:
    rig = Rig()
    await rig.confirm()
    rig.enforcement.doubt(KEY, frozenset())
    assert rig.enforcement.settled(KEY, 7)
    rig.enforcement.doubt(KEY, frozenset({"p-1"}))
    assert not rig.enforcement.confirmed(KEY, 7)
    rig.kube.asked.clear()
    assert await rig.current() is True
    await rig.confirm()
    assert len(rig.kube.asked) == 2
    assert rig.enforcement.settled(KEY, 7)
    rig.enforcement.doubt(KEY, frozenset({"p-1"}))
    assert rig.enforcement.settled(KEY, 7), "it is known of this pod"
    rig.enforcement.doubt(KEY, frozenset({"p-1", "p-2"}))
    assert not rig.enforcement.confirmed(KEY, 7)


async def test_without_a_policy_a_generation_is_waited_for_once_and_then_it_is_known() -> None:
    rig = Rig()
    del rig.kube.objects["precisionpolicies", "default", "p"]
    began = rig.clock.now
    rig.pod(2, seen=False)
    assert await rig.confirm(deleted=True) is True
    assert rig.clock.now - began >= SETTLE_SECONDS
    assert rig.kube.asked == []
    await rig.clock.advance(10 * FRESH_SECONDS)
    assert rig.enforcement.settled(KEY, 7)
    began = rig.clock.now
    await rig.confirm(deleted=True)
    assert rig.clock.now == began
    await rig.confirm(8, deleted=True)
    assert rig.clock.now - began >= SETTLE_SECONDS


async def test_what_was_echoed_before_the_policy_was_deleted_still_counts() -> None:
    rig = Rig()
    await rig.confirm()
    began = rig.clock.now
    await rig.confirm(deleted=True)
    assert rig.clock.now == began


async def test_a_policy_that_goes_while_it_is_asked_about_leaves_nothing_confirmed() -> None:
    rig = Rig()
    del rig.kube.objects["precisionpolicies", "default", "p"]
    assert await rig.confirm() is False
    assert rig.enforcement.admission(KEY).reason == "PolicyGone"
    assert not rig.enforcement.confirmed(KEY, 7)


async def test_nothing_is_kept_of_a_policy_that_is_gone() -> None:
    rig = Rig()
    await rig.confirm()
    rig.enforcement.forget(KEY)
    assert rig.enforcement._known == {}
    assert not rig.enforcement.confirmed(KEY, 7)
    rig.enforcement.doubt(KEY, frozenset({"p-1"}))


async def test_only_a_change_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = Rig()
    for _ in range(3):
        await rig.confirm()
    rig.kube.installed = False
    for _ in range(3):
        await rig.confirm()
    logged = [record for record in caplog.records if "admission:" in record.getMessage()]
    assert [record.__dict__["reason"] for record in logged] == ["Enforcing", "NotEnforcing"]
