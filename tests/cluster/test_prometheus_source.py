"""The built-in queries on a real Prometheus that scrapes trainers whose every number is known.

The trainers are exporters of prometheus_client with the metrics of docs/contract.md; Prometheus attaches ``namespace`` and
``pod`` to each as its service discovery would.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from threading import Thread
from typing import TypeVar
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lab.prometheus import Prometheus
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.core.model import Evaluation, RunsOn
from precision_operator.errors import QueryInvalid, SourceUnavailable
from precision_operator.reasons import Reason
from precision_operator.settings import PrometheusEndpoint
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.prometheus import PrometheusSource
from precision_operator.signals.promql import confine
from precision_operator.signals.queries import ALWAYS_ASKED, FP32_MEMORY
from tests.support.signals import ROWS, reported

T = TypeVar("T")

NAMESPACE = "team"
WINDOW = 4.0
PLAN = EvaluationPlan(
    endpoint="main",
    namespace=NAMESPACE,
    window_seconds=WINDOW,
    min_steps=10,
    interval_seconds=0.2,
    queries=tuple((signal.value, "") for signal in Signal),
    besides=(FP32_MEMORY,),
)


class Trainer(Collector):
    """What one trainer exports: counters that rise at a known rate since ever, and gauges."""

    def __init__(
        self,
        *,
        mode: str,
        generation: int,
        series: dict[str, float],
        run: dict[str, str] | None = None,
    ) -> None:
        """``series``: metric → value, or growth a second of a counter; ``run``: labels of genesis_run_info."""
        self.run = run
        self.mode = mode
        self.generation = generation
        self.series = series
        self._began, self._base = time.monotonic(), 1000
        self.speaks = True
        registry = CollectorRegistry()
        registry.register(self)
        server, thread = start_http_server(0, "127.0.0.1", registry)
        self._server: WSGIServer = server
        self._thread: Thread = thread
        self.port = self._server.server_port

    def collect(self) -> Iterator[Metric]:
        """One scrape."""
        if not self.speaks:
            return
        info = GaugeMetricFamily("genesis_precision_info", "Mode.", labels=["mode", "generation"])
        info.add_metric([self.mode, str(self.generation)], 1)
        yield info
        if self.run is not None:
            what = GaugeMetricFamily("genesis_run_info", "What runs.", labels=list(self.run))
            what.add_metric(list(self.run.values()), 1)
            yield what
        elapsed = time.monotonic() - self._began
        for metric, value in self.series.items():
            name, *own = re.split(r'[{="}]+', f"genesis_{metric}")
            if name.endswith("_total"):
                # Far from 0: there `increase` would not look beyond the first sample.
                yield CounterMetricFamily(name, name, value=self._base + math.floor(value * elapsed * 100) / 100)
            else:
                gauge = GaugeMetricFamily(name, name, labels=own[:1])
                gauge.add_metric(own[1:2], value)
                yield gauge

    def restart(self) -> None:
        """Its process begins anew: counters at 0."""
        self._base, self._began = 0, time.monotonic()

    def stop(self) -> None:
        """The pod is gone."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@pytest.fixture(scope="module")
def trainers() -> Iterator[dict[str, Trainer]]:
    """``bad`` overflows, diverges, fails; ``calm`` trains in FP32; ``new`` has made too few FP16 steps."""
    made = {
        "bad": Trainer(
            mode="fp16",
            generation=3,
            series={**reported(good=False), "training_steps_total": 20, "memory_headroom_bytes": 5e8},
            run={"device": "cuda", "model": "world", "torch": "2.6.0", "capability": "9.0", "world_size": "8"},
        ),
        "calm": Trainer(
            mode="fp32",
            generation=0,
            series={
                "training_steps_total": 10,
                "training_samples_total": 40,
                "fp16_training_steps_total": 0,
                "fp16_overflow_steps_total": 0,
                "nonfinite_loss_steps_total": 0,
                "training_total": 0,
                "training_success_total": 0,
                "training_loss": 2.0,
            },
            run={"device": "cpu", "model": "world"},
        ),
        "placid": Trainer(
            mode="fp32",
            generation=0,
            series={
                "training_steps_total": 10,
                "training_loss": 1.8,
                'cuda_memory_allocated_bytes{mode="fp32"}': 4e9,
            },
            run={"device": "cuda", "model": "world"},
        ),
        "new": Trainer(
            mode="fp16",
            generation=3,
            series={
                "training_steps_total": 10,
                "fp16_training_steps_total": 1,
                "fp16_overflow_steps_total": 1,
                "training_loss": math.nan,
                "fp32_baseline_loss": 2.0,
            },
        ),
        "late": Trainer(
            mode="fp16",
            generation=3,
            series={"training_samples_total": 80, "fp32_baseline_samples_per_second": 100},
        ),
        "foreign": Trainer(mode="fp16", generation=9, series={"training_steps_total": 10}),
        "doomed": Trainer(mode="fp16", generation=3, series={"training_steps_total": 10}),
    }
    made["late"].speaks = False
    yield made
    for trainer in made.values():
        trainer.stop()


@pytest.fixture(scope="module")
def prometheus(trainers: dict[str, Trainer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that scrapes them twice a second, one of them by two jobs."""
    targets = [
        {
            "targets": [f"127.0.0.1:{trainer.port}"],
            "labels": {"namespace": "elsewhere" if name == "foreign" else NAMESPACE, "pod": name},
        }
        for name, trainer in trainers.items()
    ]
    config = {
        "global": {"scrape_interval": "500ms"},
        "scrape_configs": [
            {"job_name": "trainers", "static_configs": targets},
            {"job_name": "again", "static_configs": targets[:1]},
        ],
    }
    with Prometheus(tmp_path_factory.mktemp("prometheus"), config) as running:
        yield running


async def until(what: str, probe: Callable[[], Awaitable[T]], good: Callable[[T], bool], seconds: float = 30) -> T:
    """Ask until the answer is good."""
    deadline = time.monotonic() + seconds
    while True:
        answer = await probe()
        if good(answer):
            return answer
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s; last answer {answer}"
        await asyncio.sleep(0.1)


def source_of(prometheus: Prometheus) -> PrometheusSource:
    return PrometheusSource("main", PrometheusEndpoint(url=prometheus.url))


async def test_the_built_in_queries_give_the_numbers_that_were_exported(prometheus: Prometheus) -> None:
    source = source_of(prometheus)
    evaluator = Evaluator({"main": source}, {})

    # Ten samples lie at least 4.5 s apart: each trainer's window is full.
    covered = 'min(count_over_time(genesis_training_steps_total{namespace="team"}[6s]))'
    await until("a full window", lambda: source.vector(covered), lambda s: bool(s) and s[0].value >= 10)
    made = {"bad": 20 * WINDOW, "calm": 10 * WINDOW}

    def in_time(evaluation: Evaluation) -> bool:
        """A trainer that got no CPU at a scrape seems to have made fewer steps, and more at the next one."""
        steps = {name: pod.steps for name, pod in evaluation.pods.items()}
        return {name: steps.get(name) for name in made} == {name: pytest.approx(n, rel=0.1) for name, n in made.items()}

    evaluation = await until("the steps that were made", lambda: evaluator.evaluate(PLAN), in_time)
    assert evaluation.errors == {}
    source.close()
    assert set(evaluation.pods) == {"bad", "calm", "placid", "new", "doomed"}, "no pod of another namespace"
    now = time.time()

    bad = evaluation.pods["bad"]
    assert (bad.mode, bad.generation) == (Mode.FP16, 3)
    assert bad.sampled_at is not None
    assert now - 5 < bad.sampled_at <= now
    assert bad.values == {
        signal: pytest.approx(row.over(WINDOW)[1], rel=row.scraped_within) for signal, row in ROWS.items()
    }
    assert bad.fp32_shortage_bytes == pytest.approx(1e8), "4 GB are needed: 3.4 are allocated, 0.5 are left"

    assert bad.runs_on == RunsOn("2.6.0", "cuda", "9.0", 8)

    calm = evaluation.pods["calm"]
    assert (calm.runs_on, calm.fp32_memory) == (RunsOn("", "cpu", ""), 0.0)
    assert calm.fp32_shortage_bytes is None
    assert (calm.mode, calm.generation) == (Mode.FP32, 0)
    assert calm.values == {
        signal: pytest.approx(row.on_cpu, nan_ok=True) for signal, row in ROWS.items() if row.on_cpu is not None
    }, "no FP16 step, no baseline, no run ended"
    assert Signal.MEMORY not in evaluation.pods["placid"].values, "FP32's own memory is no ratio"

    new = evaluation.pods["new"]
    assert Signal.OVERFLOW not in new.values, "4 steps are fewer than minSteps"
    assert math.isnan(new.values[Signal.DIVERGENCE])
    assert Signal.MEMORY not in new.values, "what it runs on is not known"


async def test_without_a_baseline_the_fp32_cohort_of_the_same_model_is_the_measure(prometheus: Prometheus) -> None:
    source = source_of(prometheus)
    plan = replace(PLAN, queries=(("divergence", "divergence-cohort"),))
    evaluator = Evaluator({"main": source}, {})

    def known(evaluation: Evaluation) -> bool:
        return Signal.DIVERGENCE in getattr(evaluation.pods.get("bad"), "values", {})

    evaluation = await until("the cohort", lambda: evaluator.evaluate(plan), known)
    source.close()
    assert evaluation.errors == {}
    assert evaluation.pods["bad"].values[Signal.DIVERGENCE] == pytest.approx(2.5 / 1.9 - 1), (
        "its loss against that of calm and placid"
    )
    assert Signal.DIVERGENCE not in evaluation.pods["new"].values, "of no known model"


async def test_a_policys_own_query_sees_no_other_namespace_on_a_real_prometheus(prometheus: Prometheus) -> None:
    source = source_of(prometheus)
    steps = "genesis_training_steps_total"
    await until("a scrape", lambda: source.vector(steps), lambda found: len(found) >= 6)
    for query in (
        steps,
        f"rate({steps}[10s])",
        f"max_over_time({steps}[10s:1s])",
        f"sum by (namespace, pod) ({steps})",
        f'{steps}{{pod=~".*"}} * on (pod) group_left () {steps}{{job="trainers"}}',
        f'{steps}{{pod!="\\\\\\" # é\\n"}}',
        f'-({steps} unless on (pod) {steps}{{pod="bad"}})',
    ):
        found = await source.vector(confine(query, NAMESPACE))
        assert {"calm", "new"} <= {sample.labels.pod for sample in found}
        assert "foreign" not in {sample.labels.pod for sample in found}
        past = await source.history(confine(query, NAMESPACE), time.time() - 1, time.time(), 1.0)
        assert {series.labels.get("namespace", NAMESPACE) for series in past} == {NAMESPACE}
    source.close()


async def test_a_counter_that_starts_again_is_no_fall_and_another_pod_starts_its_own(
    prometheus: Prometheus, trainers: dict[str, Trainer]
) -> None:
    """A container that restarts keeps its pod's name and counts from 0 again."""
    source, placid = source_of(prometheus), trainers["placid"]
    evaluator = Evaluator({"main": source}, {})
    steps = 'count_over_time(genesis_training_steps_total{pod="placid"}[4s])'
    await until("a full window", lambda: source.vector(steps), lambda found: bool(found) and found[0].value >= 7)
    placid.restart()
    resets = 'resets(genesis_training_steps_total{pod="placid"}[4s])'
    await until("the reset", lambda: source.vector(resets), lambda found: bool(found) and found[0].value >= 1)
    evaluation = await evaluator.evaluate(PLAN)
    source.close()
    found = evaluation.pods["placid"].steps
    assert found is not None
    assert 0 < found <= 10 * WINDOW * 1.2, "as many as were made, and no fewer than none"


async def test_a_young_pod_and_a_gap_in_its_scrapes_look_neither_slow_nor_fast(
    prometheus: Prometheus, trainers: dict[str, Trainer]
) -> None:
    source, late, seen = source_of(prometheus), trainers["late"], list[float]()
    evaluator = Evaluator({"main": source}, {})

    async def speed() -> float | None:
        pod = (await evaluator.evaluate(PLAN)).pods.get("late")
        found = pod.values.get(Signal.SPEED) if pod else None
        seen.extend([] if found is None else [found])
        return found

    async def scrapes(window: str) -> int:
        found = await source.vector(f'count_over_time(genesis_training_samples_total{{pod="late"}}[{window}])')
        await speed()
        return int(found[0].value) if found else 0

    late.speaks = True
    await until("half a window", lambda: scrapes("4s"), lambda n: n >= 4)
    assert seen == [], "a window has not passed yet"
    await until("a speed", speed, lambda found: found is not None)
    late.speaks = False
    await until("a gap", lambda: scrapes("2s"), lambda n: n == 0)
    late.speaks = True
    await until("a full window after it", lambda: scrapes("6s"), lambda n: n >= 10)
    await until("a speed again", speed, lambda found: found is not None)
    source.close()
    assert seen == [pytest.approx(0.8, rel=0.1)] * len(seen)


async def test_a_change_of_mode_is_acknowledged_once_and_a_pod_that_ends_falls_silent(
    prometheus: Prometheus, trainers: dict[str, Trainer]
) -> None:
    source = source_of(prometheus)
    evaluator = Evaluator({"main": source}, {})
    doomed = trainers["doomed"]

    async def look() -> Evaluation:
        return await evaluator.evaluate(PLAN)

    await until("the first acknowledgement", look, lambda e: e.pods["doomed"].generation == 3 if e.pods else False)
    doomed.mode, doomed.generation = "fp32", 4
    evaluation = await until("the second one", look, lambda e: e.pods["doomed"].generation == 4 if e.pods else False)
    assert evaluation.errors == {}
    assert evaluation.pods["doomed"].mode is Mode.FP32
    doomed.stop()
    evaluation = await until("silence", look, lambda e: "doomed" not in e.pods or e.pods["doomed"].sampled_at is None)
    assert evaluation.pods["bad"].sampled_at is not None
    source.close()


async def test_what_prometheus_refuses_is_told_apart_from_what_it_cannot_do(prometheus: Prometheus) -> None:
    source = source_of(prometheus)
    with pytest.raises(QueryInvalid, match="parse"):
        await source.vector("sum(rate(x[1m])")
    with pytest.raises(SourceUnavailable, match="found scalar"):
        await source.vector("1")
    with pytest.raises(SourceUnavailable, match="found matrix"):
        await source.vector("up[5s]")
    with pytest.raises(SourceUnavailable, match="execution: found duplicate series"):
        await source.vector("up / on(job) up")
    assert await source.vector("nothing_of_the_kind") == []
    source.close()


async def test_a_prometheus_that_is_not_there_is_an_error_of_every_query_and_comes_back(
    prometheus: Prometheus,
) -> None:
    source = source_of(prometheus)
    evaluator = Evaluator({"main": source}, {})
    prometheus.stop()
    try:
        evaluation = await evaluator.evaluate(PLAN)
    finally:
        prometheus.start()
    assert evaluation.pods == {}
    assert set(evaluation.errors) == {*ALWAYS_ASKED, FP32_MEMORY, *(signal.value for signal in Signal)}
    # After four failures in a row the endpoint is asked less often.
    assert {error.reason for error in evaluation.errors.values()} == {
        Reason.METRICS_UNAVAILABLE,
        Reason.ENDPOINT_NOT_ANSWERING,
    }
    await until("recovery", lambda: evaluator.evaluate(PLAN), lambda e: not e.errors and "bad" in e.pods)
    source.close()
