"""A fleet and its controller, for passes over one policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precision_operator.api.state import Phase
from precision_operator.controller.reconcile import Pass
from tests.support.controller import Controller
from tests.support.manual_clock import ManualClock, finished

FAST: dict[str, Any] = {
    "evaluation": {"interval": "15s", "failureLimit": 0, "minSamples": 1, "window": "60s"},
    "strategy": {"steps": [{"setWeight": 50}, {"setWeight": 100}]},
    "reenable": {"prerequisites": [], "backoff": "0s", "dwell": "0s"},
    "rollback": {"mitigation": {"overflow": {"window": "0s"}}},
}


OVERFLOW = {"overflow": 0.9}


NAMES = ("a", "b", "c", "d")


class Rig(Controller):
    """A controller and its clock."""

    def __init__(self, over: Rig | None = None, identity: str = "one") -> None:
        self.manual: ManualClock = ManualClock() if over is None else over.manual
        super().__init__(self.manual, over=over, identity=identity)

    async def go(self) -> Pass | None:
        return await finished(self.manual, self.turn())

    async def until(self, done: Callable[[], bool], passes: int = 60) -> None:
        for _ in range(passes):
            if done():
                return
            ended = await self.go()
            await self.manual.advance(max(1.0, ended.next_seconds if ended is not None else 1.0))
        raise AssertionError((self.state.phase, self.summary.reason, self.summary.message))

    @property
    def pod_writes(self) -> list[tuple[str, str, str]]:
        return [write for write in self.kube.writes if write[1] in ("pods", "pods/eviction")]


async def promoted(*names: str, hot: bool = True) -> Rig:
    rig = Rig()
    rig.fleet(*(names or NAMES), hot=hot, **FAST)
    if hot:
        await rig.until(lambda: rig.assigned and rig.state.phase is Phase.HEALTHY)
    return rig
