"""What the operator says of slow training when an investigation opens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from precision_operator.api.signals import Signal
from precision_operator.errors import SourceUnavailable
from precision_operator.kube.events import EventRecorder
from precision_operator.kube.fake import FakeKube
from precision_operator.report.incident import Pass
from precision_operator.report.slowness import CHECKS, say
from precision_operator.shell.investigator import REASON, Investigator
from precision_operator.signals.port import Sample
from tests.property.test_mitigation import QUICK, SLOW
from tests.property.test_story import promoted
from tests.property.world import World

BATCH, TENSOR, CPU = CHECKS
PODS = {"a-1": "a", "b-1": "b", "b-2": "b"}


def sample(pod: str, value: float = 1.0, **labels: str) -> Sample:
    return Sample({"pod": pod, **labels}, value)


class Exporters:
    """A Prometheus that scrapes the trainers, no DCGM exporter, and has lost cAdvisor."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def vector(self, query: str) -> Sequence[Sample]:
        self.asked.append(query)
        if "cfs" in query:
            raise SourceUnavailable("refused")
        return [] if "DCGM" in query else [sample("hot-0-1", batch_size="30"), sample("elsewhere", batch_size="32")]


def passes(world: World, count: int) -> list[Pass]:
    found = []
    for _ in range(count):
        before, observation, now = world.status, world.observe(), world.now
        found.append(Pass(world.policy, before, observation, world.step(), now))
    return found


async def test_says_once_what_is_seen_and_what_is_not() -> None:
    kube, source, failed = FakeKube(), Exporters(), list[str]()
    investigator = Investigator({"default": source}, events=EventRecorder(kube, identity="one"), failed=failed.append)
    world = promoted(**QUICK)
    world.bad = {"hot-0": SLOW}
    for seen in passes(world, 10):
        investigator.observe(seen)
    await asyncio.wait_for(investigator.turn(), timeout=5)
    (event,) = [body for (plural, *_), body in kube.objects.items() if plural == "events"]
    assert event["reason"] == REASON
    assert event["note" if "note" in event else "message"] == (
        "batch: 30, no multiple of 8 (hot-0); tensor cores: unknown (no DCGM_FI_PROF_PIPE_TENSOR_ACTIVE); "
        "CPU: unknown (MetricsUnavailable)"
    )
    assert failed == ["MetricsUnavailable"]
    assert len(source.asked) == len(CHECKS)
    assert all('namespace="ns"' in query for query in source.asked)


async def test_overflow_is_not_investigated() -> None:
    investigator = Investigator(
        {"default": Exporters()}, events=EventRecorder(FakeKube(), identity="one"), failed=lambda _: None
    )
    world = promoted(**QUICK)
    world.bad = {"hot-0": {Signal.OVERFLOW: 0.25}}
    for seen in passes(world, 10):
        investigator.observe(seen)
    assert investigator.waiting == 0


def test_workloads_that_fare_alike_are_said_together_the_bad_first() -> None:
    answer = [sample("a-1", batch_size="64"), sample("b-1", batch_size="64"), sample("b-2", batch_size="12")]
    assert say(BATCH, answer, PODS) == "batch: 12, no multiple of 8 (b); batch: 64, a multiple of 8 (a)"


def test_a_workload_without_series_is_unknown_and_never_good() -> None:
    assert say(TENSOR, [sample("a-1", 0.0)], PODS) == "tensor cores: busy 0% of the time (a); unknown in b"
    assert say(CPU, [sample("a-1", float("nan"))], PODS).startswith("CPU: unknown")
    assert say(CPU, "QueryInvalid", PODS) == "CPU: unknown (QueryInvalid)"


def test_the_worst_pod_speaks_for_its_workload() -> None:
    answer = [sample("a-1", 0.0), sample("b-1", 0.4), sample("b-2", 0.1)]
    assert say(CPU, answer, PODS) == "CPU: throttled in 40% of its periods (b); CPU: throttled in 0% of its periods (a)"
    busy = [sample("b-1", 0.6), sample("b-2", 0.0)]
    assert "busy 0% of the time (b)" in say(TENSOR, busy, PODS)
