"""What becomes of an incident whose policy or assignment is gone."""

from __future__ import annotations

import pytest

from lab.model.policies import FAST, policy
from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import Phase
from precision_operator.incidents.report import (
    IncidentPhase,
)
from precision_operator.incidents.reporter import PAST_SECONDS
from precision_operator.kube.port import ASSIGNMENTS, INCIDENTS, POLICIES
from precision_operator.replay.recording import unpack
from precision_operator.replay.rerun import first_difference
from tests.support.reported import promoted, rolled_back

pytestmark = pytest.mark.slow

KEY = PolicyKey("ns", "fleet")


async def test_when_policy_and_assignment_are_gone_the_incident_ends_and_stays() -> None:
    stage = await rolled_back()
    stage.reporter.gone(KEY)
    await stage.reporter.turn()
    assert stage.report.timeline[-1].what == "PolicyDeleted"
    assert stage.report.phase is IncidentPhase.CLOSED


async def test_what_is_owed_of_a_deleted_policy_is_tried_for_a_day_and_ends_its_incident_once() -> None:
    stage = await promoted()
    stage.refused = 10**6
    stage.breach()
    await stage.passes(8)
    stage.reporter.gone(KEY)
    for _ in range(10):
        stage.world.now += 300.0
        await stage.turn()
    assert [m.what for m in stage.report.timeline].count("PolicyDeleted") == 1
    assert stage.reporter._tracks
    stage.world.now += PAST_SECONDS
    await stage.turn()
    assert stage.reporter._tracks == {}
    assert stage.notifier._tries == {}


@pytest.mark.parametrize("kept", ["Hold", "Release"])
async def test_a_policy_deleted_in_mid_rollback_is_followed_to_the_fallback(kept: str) -> None:
    stage = await promoted(deletionPolicy=kept)
    stage.world.unresponsive = {"hot-3"}
    stage.breach()
    await stage.passes(4)
    assert stage.report.phase is IncidentPhase.ACTIVE
    stage.world.delete_policy()
    await stage.passes(2)
    assert stage.report.phase is IncidentPhase.ACTIVE, "the rollback is not over"
    stage.world.unresponsive = set()
    await stage.passes(12)
    assert stage.world.gone == (kept == "Release")
    report = stage.report
    assert report.phase is IncidentPhase.CLOSED
    assert {"InFallback", "RolledBack"} <= {m.what for m in report.timeline}
    assert [m.what for m in report.timeline][-1] == "PolicyDeleted"
    assert first_difference(unpack(report.recordings.tape).recordings) is None
    writes = stage.incident_writes
    await stage.passes(5, 60.0)
    assert stage.incident_writes == writes


async def test_a_policy_deleted_after_its_rollback_ends_the_verification() -> None:
    stage = await rolled_back()
    stage.world.delete_policy()
    await stage.passes(3)
    assert stage.world.state.reason == "PolicyDeleted"
    assert stage.report.phase is IncidentPhase.CLOSED


@pytest.mark.parametrize("left", ["an assignment", "a policy", "nothing"])
async def test_what_nobody_follows_any_more_ends_when_an_operator_is_back(left: str) -> None:
    """While no operator ran the policy was deleted, and what it held was released."""
    stage = await rolled_back()
    stage.reporter = stage.hired()
    kind = {"an assignment": ASSIGNMENTS, "a policy": POLICIES}.get(left)
    if kind is not None:
        stage.kube.put(kind, {"metadata": {"name": KEY.name, "namespace": KEY.namespace}})
    await stage.reporter.turn()
    (name,) = (name for plural, _, name in stage.kube.objects if plural == INCIDENTS.plural)
    assert ("get", INCIDENTS.plural, name) in stage.kube.reads, "one by one: a list of them holds no tapes"
    closed = left == "nothing"
    assert stage.report.phase is (IncidentPhase.CLOSED if closed else IncidentPhase.VERIFYING)
    assert (stage.report.timeline[-1].what == "PolicyDeleted") is closed
    writes = stage.incident_writes
    stage.world.now += 7200.0
    await stage.reporter.turn()
    assert stage.incident_writes == writes


async def test_an_incident_of_a_policy_that_was_deleted_while_no_operator_ran_ends_with_its_first_pass() -> None:
    stage = await rolled_back()
    stage.world.delete_policy()
    stage.reporter = stage.hired()
    await stage.passes(3)
    assert stage.report.phase is IncidentPhase.CLOSED


async def test_a_policy_made_anew_in_mid_rollback_goes_on_with_the_same_incident() -> None:
    stage = await promoted()
    stage.world.unresponsive = {"hot-3"}
    stage.breach()
    await stage.passes(4)
    stage.world.recreate_policy(policy(**FAST, uid="another-uid"))
    stage.reporter = stage.hired()
    stage.world.unresponsive = set()
    await stage.passes(10)
    assert stage.world.state.phase is Phase.HELD
    assert stage.report.phase is IncidentPhase.VERIFYING
