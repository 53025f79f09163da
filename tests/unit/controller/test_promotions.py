"""The cap on promotions: one count for the whole cluster, and no tenant that keeps it for ever."""

from __future__ import annotations

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.promotions import PROMOTING_SECONDS, Promotions
from precision_operator.core.model import PromotionSlots
from tests.support.manual_clock import ManualClock

A, B = PolicyKey("a", "fleet"), PolicyKey("b", "fleet")


def test_without_a_cap_there_are_no_slots_to_count() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x"})
    assert promotions.slots(B, 0) is None


def test_what_other_policies_promote_is_not_left() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x", "y"})
    assert promotions.slots(B, 3) == PromotionSlots(1)
    assert promotions.slots(A, 3) == PromotionSlots(3), "its own are counted by the decision"
    promotions.note(A, {"y"})
    assert promotions.slots(B, 3) == PromotionSlots(2)
    promotions.note(A, ())
    assert promotions.slots(B, 3) == PromotionSlots(3)


def test_more_than_the_cap_leaves_none() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x", "y"})
    assert promotions.slots(B, 1) == PromotionSlots(0)


async def test_pods_that_never_acknowledge_keep_a_slot_for_a_while_and_not_for_ever() -> None:
    clock = ManualClock()
    promotions = Promotions(clock)
    promotions.note(A, {"lost"})
    await clock.advance(PROMOTING_SECONDS - 1)
    promotions.note(A, {"lost", "new"})
    assert promotions.slots(B, 2) == PromotionSlots(0)
    await clock.advance(1)
    assert promotions.slots(B, 2) == PromotionSlots(1)
    assert promotions.slots(A, 2) == PromotionSlots(2, frozenset({"lost"}))


def test_a_policy_that_is_gone_gives_its_slots_back() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x"})
    promotions.forget(A)
    promotions.forget(A)
    assert promotions.slots(B, 1) == PromotionSlots(1)
