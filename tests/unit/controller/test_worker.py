"""What a pass's end means for the next one: failures back off, a 429 is obeyed, the plan is kept."""

from __future__ import annotations

import asyncio

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.halt import Halt
from precision_operator.controller.reconcile import Pass, Reconciler
from precision_operator.controller.worker import LAPSE_SECONDS, Worker
from precision_operator.errors import Conflict, Forbidden, KubeError, OperatorError, TooManyRequests
from precision_operator.inventory.caches import WATCHED, Inventory
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.lease import LeaseElector
from precision_operator.runtime.queue import WorkQueue
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.settings import LeaseSettings
from tests.support.fake_kube import FakeKube
from tests.support.manual_clock import ManualClock, settle

KEY = PolicyKey("ns", "fleet")
INTERVAL_SECONDS = 15.0


class Scripted(Reconciler):
    """Ends each pass as the script says; the last entry for ever."""

    def __init__(self, clock: ManualClock, *script: OperatorError | Pass | None) -> None:
        self.at: list[float] = []
        self._now = clock.monotonic
        self._script = list(script)

    async def reconcile(self, key: PolicyKey) -> Pass | None:
        self.at.append(self._now())
        step = self._script.pop(0) if len(self._script) > 1 else self._script[0]
        if isinstance(step, OperatorError):
            raise step
        return step

    @property
    def pauses(self) -> list[float]:
        return [round(after - before, 3) for before, after in zip(self.at, self.at[1:], strict=False)]


class Rig:
    """A worker at its queue; ``go`` lets time pass."""

    def __init__(self, *script: OperatorError | Pass | None) -> None:
        self.clock = clock = ManualClock()
        self.queue: WorkQueue[PolicyKey] = WorkQueue(clock)
        self.limiter = RateLimiter(10, 10, clock)
        self.metrics = Metrics()
        self.reconciler = Scripted(clock, *script)
        self.inventory = Inventory()
        for kind in WATCHED:
            self.inventory.relisted(kind, None, [])
        self.worker = Worker(
            self.reconciler,
            queue=self.queue,
            elector=LeaseElector(FakeKube(), LeaseSettings(), "system", "one", clock),
            inventory=self.inventory,
            halt=Halt(FakeKube(), clock, namespace="system"),
            limiter=self.limiter,
            metrics=self.metrics,
            clock=clock,
        )

    async def go(self, seconds: float) -> None:
        async def serve() -> None:
            while True:
                key = await self.queue.get()
                await self.worker.work(key)
                self.queue.done(key)

        self.queue.add(KEY)
        task = asyncio.ensure_future(serve())
        await self.clock.advance(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.queue.close()


async def test_a_good_pass_is_followed_by_the_next_one_as_planned() -> None:
    rig = Rig(Pass(INTERVAL_SECONDS))
    await rig.go(45.5)
    assert rig.reconciler.pauses == [15.0, 15.0, 15.0]


async def test_a_write_that_fails_for_good_is_tried_ever_more_rarely_down_to_the_policys_own_interval() -> None:
    rig = Rig(Pass(INTERVAL_SECONDS, (Forbidden("403"),)))
    await rig.go(120)
    assert rig.reconciler.pauses[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8]
    assert rig.reconciler.pauses[8:] == [INTERVAL_SECONDS] * len(rig.reconciler.pauses[8:])
    assert rig.metrics.registry.get_sample_value("reconcile_total", {"result": "Forbidden"}) == len(rig.reconciler.at)


async def test_a_pass_that_fails_as_a_whole_backs_off_to_half_a_minute() -> None:
    rig = Rig(Forbidden("403"))
    await rig.go(150)
    assert max(rig.reconciler.pauses) == 30.0


async def test_the_first_good_pass_ends_the_backing_off() -> None:
    failed = Pass(INTERVAL_SECONDS, (Forbidden("403"),))
    rig = Rig(failed, failed, failed, Pass(1.0), failed, Pass(INTERVAL_SECONDS))
    await rig.go(10)
    assert rig.reconciler.pauses == [0.1, 0.2, 0.4, 1.0, 0.1]


@pytest.mark.parametrize(
    "refused",
    [TooManyRequests("429", retry_after_seconds=5.0), Pass(1.0, (TooManyRequests("429", retry_after_seconds=5.0),))],
    ids=["the pass", "a write of it"],
)
async def test_retry_after_is_waited_for_by_passes_and_writes_alike(refused: OperatorError | Pass) -> None:
    rig = Rig(refused, Pass(INTERVAL_SECONDS))
    task = asyncio.ensure_future(rig.go(4.9))
    await settle()
    assert rig.limiter.paused_seconds(KEY.namespace) > 0
    assert rig.limiter.paused_seconds("another") == 0
    rig.queue.add(KEY)  # a watch event in between is no reason to ask again
    await task
    assert len(rig.reconciler.at) == 1
    await rig.go(0.3)
    assert len(rig.reconciler.at) == 2


async def test_a_conflict_is_tried_again_at_once_and_quietly(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Conflict("409"), Pass(INTERVAL_SECONDS))
    await rig.go(1)
    assert rig.reconciler.pauses == [0.1]
    assert not caplog.records


async def test_a_conflict_that_lasts_is_said(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(Conflict("409: somebody else writes the assignment"))
    await rig.go(10)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ns/fleet: 409: somebody else writes the assignment; again in" in caplog.text


async def test_a_policy_that_is_gone_is_not_looked_at_again() -> None:
    rig = Rig(KubeError("500"), None)
    await rig.go(120)
    assert len(rig.reconciler.at) == 2


class Waking(Scripted):
    """A watch event comes in during the first pass."""

    def __init__(self, rig: Rig, *script: OperatorError | Pass | None) -> None:
        super().__init__(rig.clock, *script)
        self._queue = rig.queue

    async def reconcile(self, key: PolicyKey) -> Pass | None:
        ended = await super().reconcile(key)
        if len(self.at) == 1:
            self._queue.add(key)
        return ended


async def test_a_pass_that_was_planned_for_a_policy_is_not_made_once_it_is_gone() -> None:
    rig = Rig()
    rig.worker._reconciler = waking = Waking(rig, Pass(INTERVAL_SECONDS), None)
    await rig.go(10 * INTERVAL_SECONDS)
    assert waking.pauses == [0.0]


async def test_a_policy_that_comes_back_while_it_is_found_gone_is_looked_at_again() -> None:
    rig = Rig()
    rig.worker._reconciler = waking = Waking(rig, None, Pass(INTERVAL_SECONDS))
    await rig.go(1)
    assert waking.pauses == [0.0]


async def test_the_next_pass_of_a_policy_in_trouble_goes_before_those_that_are_due_as_well() -> None:
    taken: list[str] = []

    class Noting(Scripted):
        async def reconcile(self, key: PolicyKey) -> Pass | None:
            taken.append(key.name)
            return Pass(INTERVAL_SECONDS, urgent=key.name == "troubled")

    rig = Rig()
    rig.worker._reconciler = Noting(rig.clock)
    for name in ("well", "healthy", "troubled"):
        rig.queue.add(PolicyKey("ns", name))
        await settle()
    await rig.go(INTERVAL_SECONDS + 1.0)
    assert taken[:4] == ["well", "healthy", "troubled", KEY.name]
    assert taken[4] == "troubled"


class Lapsing(LeaseElector):
    """Leads, and for a moment does not; nobody is told, for the renewal that is in flight succeeds."""

    lapsed = 1

    @property
    def is_leader(self) -> bool:
        self.lapsed -= 1
        return self.lapsed < 0


async def test_a_policy_that_is_taken_up_while_leadership_lapses_for_a_moment_is_looked_at_soon_after() -> None:
    rig = Rig(Pass(INTERVAL_SECONDS))
    rig.worker._elector = elector = Lapsing(FakeKube(), LeaseSettings(), "system", "one", rig.clock)
    elector.leading.set()
    rig.worker._halt.known = True
    rig.queue.add(KEY)
    task = asyncio.ensure_future(rig.worker.run())
    await rig.clock.advance(LAPSE_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    rig.queue.close()
    assert len(rig.reconciler.at) == 1


async def test_a_pass_that_breaks_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Breaking(Scripted):
        async def reconcile(self, key: PolicyKey) -> Pass | None:
            if not self.at:
                self.at.append(self._now())
                raise RecursionError("a bug")
            return await super().reconcile(key)

    rig = Rig()
    rig.worker._reconciler = Breaking(rig.clock, Pass(INTERVAL_SECONDS))
    await rig.go(1)
    assert len(rig.worker._reconciler.at) == 2
    assert "a bug" in caplog.text
    assert rig.metrics.registry.get_sample_value("reconcile_total", {"result": "InternalError"}) == 1
