"""Who gives new pods their mode."""

from __future__ import annotations

import asyncio

import pytest

from precision_operator.errors import Unavailable
from precision_operator.kube.port import MUTATING_POLICIES, MUTATING_POLICIES_BETA, Resource
from precision_operator.webhook.mode import RETRY_SECONDS, AdmissionMode, chosen_mode
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock


@pytest.mark.parametrize(
    ("unserved", "mode"),
    [
        (set(), AdmissionMode.POLICY),
        ({MUTATING_POLICIES}, AdmissionMode.POLICY),
        ({MUTATING_POLICIES_BETA}, AdmissionMode.POLICY),
        ({MUTATING_POLICIES, MUTATING_POLICIES_BETA}, AdmissionMode.WEBHOOK),
    ],
)
async def test_auto_is_the_policy_where_any_version_of_it_is_served(
    unserved: set[Resource], mode: AdmissionMode
) -> None:
    kube = FakeKube()
    kube.unserved = unserved
    assert await chosen_mode(kube, ManualClock(), "Auto") is mode


@pytest.mark.parametrize("setting", ["Policy", "Webhook"])
async def test_a_choice_of_the_admin_stands(setting: str) -> None:
    assert (await chosen_mode(FakeKube(), ManualClock(), setting)).value == setting


async def test_an_api_server_that_does_not_answer_is_waited_for() -> None:
    class Starting(FakeKube):
        async def serves(self, resource: Resource) -> bool:
            if not self.unserved:
                raise Unavailable("starting")
            return await super().serves(resource)

    kube, clock = Starting(), ManualClock()
    task = asyncio.create_task(chosen_mode(kube, clock, "Auto"))
    await clock.advance(RETRY_SECONDS)
    assert not task.done()
    kube.unserved = {MUTATING_POLICIES, MUTATING_POLICIES_BETA}
    await clock.advance(RETRY_SECONDS)
    assert await task is AdmissionMode.WEBHOOK
