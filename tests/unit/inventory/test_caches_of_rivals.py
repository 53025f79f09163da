"""Workloads that several policies select: which one has them."""

from __future__ import annotations

from typing import Any

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.kube.port import ASSIGNMENTS, PODS, POLICIES
from tests.support import objects as b
from tests.support.inventories import (
    DEPLOYMENT,
    KEY,
    NOBODY,
    OTHER,
    assignment,
    filled,
)


def test_an_assignment_whose_policy_is_gone_is_looked_at_and_its_own_writes_are_no_news() -> None:
    inventory = filled()
    assert inventory.observe(ASSIGNMENTS, assignment(generation=1), deleted=False) == {KEY}
    written = assignment(generation=2, modes={"apps/Deployment/train": "fp16"}, state={"phase": "Held"})
    assert inventory.observe(ASSIGNMENTS, written, deleted=False) == NOBODY
    inventory.observe(POLICIES, b.policy(), deleted=True)
    assert inventory.policy_keys() == (KEY,)
    assert inventory.observe(PODS, b.pod(), deleted=True) == {KEY}
    assert inventory.observe(ASSIGNMENTS, written, deleted=True) == {KEY}
    assert inventory.policy_keys() == ()


@pytest.mark.parametrize("key_first", [True, False])
def test_a_workload_of_two_policies_belongs_to_the_older_one(key_first: bool) -> None:
    inventory = filled(DEPLOYMENT)
    older, newer = ("2026-11-22T09:00:00Z", "2026-11-22T10:00:00Z")
    for name, created in (("p", older if key_first else newer), ("q", newer if key_first else older)):
        inventory.observe(POLICIES, b.policy(name=name, uid=name, created=created), deleted=False)
    assert inventory.rivals("default", "d-1") == {KEY, OTHER}
    assert inventory.owner(KEY, "d-1") == (KEY if key_first else OTHER)


def line(words: str) -> dict[str, Any]:
    return {"workloads": {"apps/Deployment": {"train": words}}}


HELD_ALONE = {"phase": "Healthy", "holds": ["LossNotFinite@2026-11-22T10:00:00.000Z"], **line("3 held=0")}


@pytest.mark.parametrize(
    ("kept", "owner"),
    [
        ({"state": {"phase": "Held"}}, KEY),
        ({"state": {"phase": "RollingBack"}}, KEY),
        ({"state": HELD_ALONE}, KEY),
        (
            {"state": {"phase": "Pending", **HELD_ALONE}, "default": None, "modes": {"apps/Deployment/train": "fp32"}},
            KEY,
        ),
        ({"state": {"phase": "Healthy", **line("3 member")}}, OTHER),
        ({"state": {**HELD_ALONE, **line("3 member")}}, OTHER),
        ({"state": {"phase": "Held"}, "modes": {"apps/Deployment/train": ""}}, OTHER),
        ({"state": {"phase": "Held"}, "selector": {"matchLabels": {"app": "another"}}}, OTHER),
    ],
    ids=["fleet", "rollback", "alone", "left", "not-held", "another-is-held", "contested", "not-in-force"],
)
def test_what_a_rollback_holds_is_not_lost_to_an_older_policy(kept: dict[str, Any], owner: PolicyKey) -> None:
    """A policy that is deleted and created again, or restored, is younger than all others."""
    inventory = filled(DEPLOYMENT)
    for name, created in (("q", "2026-11-22T09:00:00Z"), ("p", "2026-11-22T10:00:00Z")):
        inventory.observe(POLICIES, b.policy(name=name, uid=name, created=created), deleted=False)
    inventory.observe(ASSIGNMENTS, assignment(**kept), deleted=False)
    assert inventory.owner(KEY, "d-1") == inventory.owner(OTHER, "d-1") == owner


@pytest.mark.parametrize(
    ("kept", "rivals"),
    [
        ({}, {KEY, OTHER}),
        ({"default": None, "modes": {"apps/Deployment/train": "fp32"}}, {KEY, OTHER}),
        ({"default": None, "modes": {"apps/Deployment/another": "fp32"}}, {KEY}),
        ({"default": None}, {KEY}),
        ({"modes": {"apps/Deployment/train": ""}}, {KEY}),
    ],
    ids=["all", "this one", "another", "nothing", "left to another"],
)
def test_what_a_deleted_policy_still_holds_is_no_other_policys(kept: dict[str, Any], rivals: set[PolicyKey]) -> None:
    inventory = filled()
    inventory.observe(ASSIGNMENTS, assignment("q", **kept), deleted=False)
    assert inventory.rivals("default", "d-1") == rivals
    assert inventory.owner(KEY, "d-1") == (OTHER if OTHER in rivals else KEY), "it was there before"
