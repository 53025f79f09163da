"""Passes over a policy of which nothing changed: it is not read anew, and a change is seen as soon as before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from precision_operator.api.state import Phase
from precision_operator.controller.reconcile import REST_SECONDS
from precision_operator.kube.port import ASSIGNMENTS, POLICIES
from tests.support.controller import KEY, Controller
from tests.support.manual_clock import ManualClock, finished

RULES: dict[str, Any] = {
    "evaluation": {"interval": "15s", "failureLimit": 0, "minSamples": 1, "window": "60s"},
    "strategy": {"steps": [{"setWeight": 100}]},
}


class Rig:
    """A controller of a fleet that rests."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.controller = Controller(self.clock)
        self.controller.trainers.say_nothing_more = True
        self.kube = self.controller.kube

    async def interval(self) -> None:
        """One pass, and the time until the next."""
        await finished(self.clock, self.controller.turn())
        await self.clock.advance(15.0)

    async def until(self, done: Callable[[], bool]) -> None:
        for _ in range(60):
            if done():
                return
            await self.interval()
        raise AssertionError(self.controller.summary.message)

    async def reads(self) -> bool:
        """Whether the next pass reads the policy."""
        self.kube.reads.clear()
        await self.interval()
        return ("get", POLICIES.plural, "fleet") in self.kube.reads


async def resting() -> Rig:
    rig = Rig()
    rig.controller.fleet("a", "b", "c", **RULES)
    await rig.until(lambda: rig.controller.assigned and rig.controller.state.phase is Phase.HEALTHY)
    for _ in range(5):
        if not await rig.reads():
            return rig
    raise AssertionError("it never rests")


async def test_a_policy_of_which_nothing_changed_is_not_read_anew() -> None:
    rig = await resting()
    assert not await rig.reads()
    asked = len(rig.controller.trainers.asked)
    await rig.interval()
    assert len(rig.controller.trainers.asked) > asked  # its metrics are read on


async def test_a_breach_is_decided_on_in_the_first_pass_that_sees_it() -> None:
    rig = await resting()
    rig.controller.trainers.bad["a-abc-1"] = {"nonFinite": 2.0}
    await rig.interval()
    await rig.interval()
    assert rig.controller.state.phase is not Phase.HEALTHY


async def test_a_changed_policy_is_read() -> None:
    rig = await resting()
    body = copy.deepcopy(rig.kube.objects[POLICIES.plural, KEY.namespace, KEY.name])
    rig.kube.put(POLICIES, body)
    assert await rig.reads()


async def test_a_changed_assignment_is_read() -> None:
    rig = await resting()
    body = copy.deepcopy(rig.kube.objects[ASSIGNMENTS.plural, KEY.namespace, KEY.name])
    rig.kube.put(ASSIGNMENTS, body)
    assert await rig.reads()


async def test_a_new_pod_is_decided_on() -> None:
    rig = await resting()
    rig.controller.replace("a", number=2)
    assert await rig.reads()


async def test_a_policy_is_read_anew_in_time_though_no_watch_reports_a_change() -> None:
    rig = await resting()
    assert any([await rig.reads() for _ in range(int(REST_SECONDS / 15.0) + 1)])
