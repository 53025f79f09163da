"""A small part of `make faults`: faults at the writes of a rollback and of a retry, and etcd restored under a rollback."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cluster import ControlPlane
from lab.faults.campaign import Campaign
from lab.faults.rules import Fault
from lab.faults.stage import on
from lab.faults.workflows import Plane, workflow

SEED = 16


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """The smallest sample: of each workflow four kills, and every other fault once."""
    return Campaign(SEED, count=0, directory=tmp_path, chosen=[workflow("emergency"), workflow("retry")])


@pytest.mark.timeout(1200)
async def test_every_kind_of_fault_at_writes_of_a_rollback_and_a_retry_violates_nothing(
    control_plane: ControlPlane, campaign: Campaign
) -> None:
    async with on(Plane.SHARED, control_plane) as stage:
        await campaign.on(stage, campaign.chosen)
    assert (campaign.violations, campaign.crashes) == ([], [])
    assert set(campaign.by_fault) == {fault.value for fault in Fault}
    assert campaign.kills >= 2 * len(campaign.chosen)


async def test_processes_that_have_seen_more_than_a_restored_etcd_knows_obey_again(tmp_path: Path) -> None:
    campaign = Campaign(SEED, count=0, directory=tmp_path, chosen=[workflow("restore")], faults=False)
    await campaign.run()
    assert (campaign.violations, campaign.crashes) == ([], [])
    assert campaign.learned["restore"]
