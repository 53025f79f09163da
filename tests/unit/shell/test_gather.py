"""How often the metrics are asked for, whatever the wall clock does."""

from __future__ import annotations

from collections.abc import Sequence

from precision_operator.kube.events import EventRecorder
from precision_operator.kube.fake import FakeKube
from precision_operator.kube.port import POLICIES
from precision_operator.kube.workloads.deployment import DeploymentAdapter
from precision_operator.observability.metrics import Metrics
from precision_operator.runtime.clock import Clock
from precision_operator.runtime.lease import LeaseElector
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.settings import LeaseSettings, Settings
from precision_operator.shell.act import Actor
from precision_operator.shell.expectations import Expectations
from precision_operator.shell.gather import Gatherer
from precision_operator.shell.inventory import Inventory, PolicyKey
from precision_operator.shell.nodes import LabelledNodes
from precision_operator.shell.reconcile import Reconciler
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.port import Sample
from tests.property.policies import policy
from tests.unit.runtime.manual_clock import ManualClock

KEY = PolicyKey("ns", "fleet")
INTERVAL_SECONDS = 15.0


class WanderingClock(ManualClock):
    """Its wall time can be set."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


class Silent:
    """A Prometheus without series, which notes when it is asked for acknowledgements."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.asked: list[float] = []

    async def vector(self, query: str) -> Sequence[Sample]:
        if "genesis_precision_info" in query:
            self.asked.append(self._clock.monotonic())
        return []


def gatherer(clock: WanderingClock, source: Silent) -> Gatherer:
    return Gatherer(
        inventory=Inventory(DeploymentAdapter()),
        nodes=LabelledNodes(FakeKube(), clock),
        evaluator=Evaluator({"default": source}, {}, clock),
        elector=LeaseElector(FakeKube(), LeaseSettings(), "system", "one", clock),
        expectations=Expectations(clock),
        settings=Settings(),
        clock=clock,
    )


async def test_acknowledgements_are_read_often_however_long_the_interval_is() -> None:
    clock = WanderingClock()
    source = Silent(clock)
    gather = gatherer(clock, source)
    for _ in range(12):
        await gather.gather(KEY, policy(evaluation={"interval": "60s"}), hurry=True)
        await clock.advance(1.0)
    assert len(source.asked) == 3


async def test_a_wall_clock_set_back_does_not_stop_the_evaluations() -> None:
    clock = WanderingClock()
    source = Silent(clock)
    gather = gatherer(clock, source)
    await gather.gather(KEY, policy())
    clock.offset = -3600.0
    for _ in range(10):
        await clock.advance(INTERVAL_SECONDS)
        await gather.gather(KEY, policy())
    assert len(source.asked) == 11


async def test_passes_within_an_interval_share_its_reading() -> None:
    clock = WanderingClock()
    source = Silent(clock)
    gather = gatherer(clock, source)
    first = (await gather.gather(KEY, policy())).evaluation
    clock.offset = 3600.0
    await clock.advance(10.0)
    assert (await gather.gather(KEY, policy())).evaluation is first
    assert len(source.asked) == 1


async def test_continuity_that_a_clock_set_back_would_put_into_the_future_begins_anew() -> None:
    clock = WanderingClock()
    gather = gatherer(clock, Silent(clock))
    await gather.gather(KEY, policy())
    clock.offset = -3600.0
    await clock.advance(INTERVAL_SECONDS)
    evaluation = (await gather.gather(KEY, policy())).evaluation
    assert evaluation is not None
    assert evaluation.continuous_since == evaluation.at


async def test_the_next_pass_is_due_as_decided_though_the_wall_clock_was_set_back_in_mid_pass() -> None:
    clock = WanderingClock()
    kube = FakeKube()
    kube.put(
        POLICIES,
        {
            "metadata": {"name": "fleet", "namespace": "ns", "uid": "u", "generation": 1},
            "spec": {"selector": {"matchLabels": {"fleet": "demo"}}},
        },
    )

    def set_back(*_: object) -> None:
        clock.offset = -3600.0

    kube.before_write = set_back
    expectations = Expectations(clock)
    reconciler = Reconciler(
        kube,
        gatherer=gatherer(clock, Silent(clock)),
        actor=Actor(
            kube,
            adapter=DeploymentAdapter(),
            events=EventRecorder(kube, identity="one"),
            limiter=RateLimiter(10, 10, clock),
            expectations=expectations,
        ),
        metrics=Metrics(),
        clock=clock,
    )
    ended = await reconciler.reconcile(KEY)
    assert kube.writes == [("patch", "precisionpolicies", "fleet")]
    assert ended is not None
    assert ended.next_seconds == INTERVAL_SECONDS
