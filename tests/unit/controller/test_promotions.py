"""The cap on promotions: one count for the whole cluster, and no tenant that keeps it for ever."""

from __future__ import annotations

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.promotions import PROMOTING_SECONDS, Promotions
from precision_operator.core.model import PromotionSlots
from tests.support.manual_clock import ManualClock

A, B = PolicyKey("a", "fleet"), PolicyKey("b", "fleet")


def test_without_a_cap_there_are_no_slots_to_count() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x"}, epoch=1)
    assert promotions.slots(B, 0, epoch=1) is None


def test_what_other_policies_promote_is_not_left() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x", "y"}, epoch=1)
    assert promotions.slots(B, 3, epoch=1) == PromotionSlots(1)
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(3), "its own are counted by the decision"
    promotions.note(A, {"y"}, epoch=1)
    assert promotions.slots(B, 3, epoch=1) == PromotionSlots(2)
    promotions.note(A, (), epoch=1)
    assert promotions.slots(B, 3, epoch=1) == PromotionSlots(3)


def test_more_than_the_cap_leaves_none() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x", "y"}, epoch=1)
    assert promotions.slots(B, 1, epoch=1) == PromotionSlots(0)


async def test_pods_that_never_acknowledge_keep_a_slot_for_a_while_and_not_for_ever() -> None:
    clock = ManualClock()
    promotions = Promotions(clock)
    promotions.note(A, {"lost"}, epoch=1)
    await clock.advance(PROMOTING_SECONDS - 1)
    promotions.note(A, {"lost", "new"}, epoch=1)
    assert promotions.slots(B, 2, epoch=1) == PromotionSlots(0)
    await clock.advance(1)
    assert promotions.slots(B, 2, epoch=1) == PromotionSlots(1)
    assert promotions.slots(A, 2, epoch=1) == PromotionSlots(2, frozenset({"lost"}))


def test_a_policy_that_is_gone_gives_its_slots_back() -> None:
    promotions = Promotions(ManualClock())
    promotions.note(A, {"x"}, epoch=1)
    promotions.forget(A)
    promotions.forget(A)
    assert promotions.slots(B, 1, epoch=1) == PromotionSlots(1)


def test_a_new_leader_gives_no_slots_before_every_policy_has_passed_once() -> None:
    promotions = Promotions(ManualClock(), known=lambda: (A, B))
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(0), "B may be promoting"
    promotions.note(A, (), epoch=1)
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(0)
    assert promotions.slots(B, 3, epoch=1) == PromotionSlots(3), "its own are counted by the decision"
    promotions.note(B, {"x"}, epoch=1)
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(2)


def test_a_policy_that_was_made_or_deleted_since_a_new_leader_began_holds_up_nobody() -> None:
    known = [A, B]
    promotions = Promotions(ManualClock(), known=lambda: known)
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(0)
    known[:] = [A, PolicyKey("c", "new")]
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(3)


def test_counts_of_an_earlier_leadership_are_dropped() -> None:
    promotions = Promotions(ManualClock(), known=lambda: (A, B))
    promotions.note(A, {"x", "y"}, epoch=1)
    promotions.note(B, (), epoch=1)
    assert promotions.slots(A, 3, epoch=3) == PromotionSlots(0)
    promotions.note(A, {"late"}, epoch=1)
    promotions.note(A, {"y"}, epoch=3)
    assert promotions.slots(B, 3, epoch=3) == PromotionSlots(2)


async def test_a_policy_whose_passes_fail_stops_the_promotions_of_others_for_a_while_and_not_for_ever() -> None:
    clock = ManualClock()
    promotions = Promotions(clock, known=lambda: (A, B))
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(0)
    await clock.advance(PROMOTING_SECONDS)
    assert promotions.slots(A, 3, epoch=1) == PromotionSlots(3)
