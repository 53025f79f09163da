"""The metrics page against docs/contract.md, and the server."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from precision_trainer.errors import ConfigError
from precision_trainer.telemetry.baseline import POINTS, BaselineRecorder, fingerprint
from precision_trainer.telemetry.exporter import Exporter
from precision_trainer.telemetry.memory import headroom_bytes
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.telemetry.warm_up import WarmUp
from precision_trainer.values.modes import PrecisionMode

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"
NEEDS_CUDA = {"genesis_cuda_memory_allocated_bytes"}
ABSENT_AT_START = {
    "genesis_training_loss",
    "genesis_fp32_baseline_loss",
    "genesis_fp32_baseline_samples_per_second",
    "genesis_fp32_baseline_step",
    "genesis_fp32_baseline_step_p95_seconds",
    "genesis_fp32_baseline_peak_bytes",
    "genesis_fp32_baseline_success_ratio",
    "genesis_fp32_baseline_timestamp_seconds",
    "genesis_memory_headroom_bytes",
    "genesis_grad_norm",
    "genesis_checkpoint_last_success_timestamp_seconds",
    "genesis_checkpoint_step",
    "genesis_checkpoint_seconds",
    "genesis_checkpoint_step_added_seconds",
    "genesis_checkpoint_lease_held",
    "genesis_checkpoint_lease_wait_seconds",
    "genesis_last_healthy_checkpoint_step",
    "genesis_precision_gradient_cosine",
    "genesis_precision_gradient_error_ratio",
}


def _promised() -> dict[str, tuple[str, set[str]]]:
    """The contract's table: name -> (type, labels)."""
    section = CONTRACT.read_text(encoding="utf-8").split("## From the trainer: metrics")[1].split("\n## ")[0]
    promised: dict[str, tuple[str, set[str]]] = {}
    for names, kind in re.findall(r"^\| (`genesis_[^|]*?) \| (\w+)[^|]*\|", section, re.MULTILINE):
        for name, labels in re.findall(r"`(genesis_\w+)(?:\{([\w,]+)\})?`", names):
            promised[name] = (kind, set(labels.split(",")) if labels else set())
    return promised


def _page(exporter: Exporter, path: str = "/metrics", accept: str = "text/plain") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{exporter.port}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as response:
        text: str = response.read().decode()
    return text


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def exporter(metrics: Metrics):  # type: ignore[no-untyped-def]
    exporter = Exporter(metrics, 0, "127.0.0.1")
    yield exporter
    exporter.close()


def _fill(metrics: Metrics) -> None:
    """As after some steps of a real process."""
    import torch

    from precision_trainer.job.options import TrainOptions
    from precision_trainer.job.run_info import run_info

    metrics.acknowledge("fp16", 4)
    labels = run_info(
        TrainOptions(), "transformer", torch.nn.Linear(2, 2), world_size=2, device=torch.device("cpu"), allow_tf32=False
    )
    metrics.run_info(labels)
    names = {
        *ABSENT_AT_START,
        "genesis_precision_changed_timestamp_seconds",
        "genesis_training_step",
        "genesis_sentinel_level",
        "genesis_sentinel_pinned_layers",
        "genesis_loss_scale",
    }
    metrics.add({"genesis_training_steps": 1.0}, dict.fromkeys(names, 1.0))
    metrics.step_seconds(0.02)
    metrics.run_seconds(3.0)
    metrics.memory("fp16", 1.0)


def test_names_types_and_labels_are_those_of_the_contract(metrics: Metrics, exporter: Exporter) -> None:
    promised = _promised()
    assert len(promised) >= 22
    _fill(metrics)
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(_page(exporter)):
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, set(family.samples[0].labels) - {"le"})
    assert found == promised


def test_every_counter_is_there_at_zero_before_the_first_step(exporter: Exporter) -> None:
    samples = {}
    for family in text_string_to_metric_families(_page(exporter)):
        for sample in family.samples:
            samples[sample.name, tuple(sample.labels.values())] = sample.value
    counters = {name for name, (kind, _) in _promised().items() if kind in ("counter", "histogram")}
    for name in counters:
        values = [value for (sample, _), value in samples.items() if sample in (name, f"{name}_count", f"{name}_sum")]
        assert values, name
        assert set(values) == {0.0}, name
    for reason in ("Malformed", "UnknownMode", "StaleGeneration"):
        assert samples["genesis_request_errors_total", (reason,)] == 0.0
    assert not {name for name, _ in samples} & ABSENT_AT_START


def test_openmetrics_is_served_to_who_asks_for_it(metrics: Metrics, exporter: Exporter) -> None:
    _fill(metrics)
    page = _page(exporter, accept="application/openmetrics-text; version=1.0.0")
    assert page.endswith("# EOF\n")


def test_a_scrape_sees_exactly_one_mode_at_any_moment(metrics: Metrics, exporter: Exporter) -> None:
    metrics.acknowledge("fp16", 0)
    stop = threading.Event()

    def flip() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            metrics.acknowledge(("fp16", "fp32", "bf16")[number % 3], number)

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        for _ in range(50):
            assert len(re.findall(r"^genesis_precision_info\{", _page(exporter), re.MULTILINE)) == 1
    finally:
        stop.set()
        thread.join()


def test_healthz_fails_once_steps_stop(metrics: Metrics) -> None:
    exporter = Exporter(metrics, 0, "127.0.0.1", stale_seconds=0.0)
    try:
        metrics.last_step_at -= 1
        with pytest.raises(urllib.error.HTTPError) as caught:
            _page(exporter, "/healthz")
        with caught.value as answer:
            assert answer.code == 503
            assert json.loads(answer.read())["last_step_age_seconds"] >= 1
    finally:
        exporter.close()


def test_healthz_and_unknown_paths(exporter: Exporter) -> None:
    assert json.loads(_page(exporter, "/healthz"))["ok"] is True
    with pytest.raises(urllib.error.HTTPError) as caught:
        _page(exporter, "/")
    with caught.value as answer:
        assert answer.code == 404


def test_the_api_tells_the_same_as_the_page_and_nothing_that_is_not_there(metrics: Metrics, exporter: Exporter) -> None:
    before = json.loads(_page(exporter, "/api/training/status"))
    assert (before["training"], before["step"], before["precision"]) == (True, None, None)
    assert json.loads(_page(exporter, "/api/training/stats"))["overflow_rate"] is None
    _fill(metrics)
    metrics.add({"genesis_fp16_training_steps": 8.0, "genesis_fp16_overflow_steps": 2.0})
    metrics.set({"genesis_grad_norm": float("inf")})
    status = json.loads(_page(exporter, "/api/training/status"))
    assert status["step"] == 1.0
    assert status["precision"] == {"mode": "fp16", "generation": "4"}
    assert status["run"]["world_size"] == "2"
    stats = json.loads(_page(exporter, "/api/training/stats"))
    assert (stats["overflow_rate"], stats["success_rate"], stats["genesis_grad_norm"]) == (0.25, None, None)
    exported = {family["name"]: family for family in json.loads(_page(exporter, "/api/metrics/export"))["metrics"]}
    shown = {family.name for family in text_string_to_metric_families(_page(exporter))}
    assert set(exported) == shown
    assert exported["genesis_loss_scale"]["samples"] == [{"name": "genesis_loss_scale", "labels": {}, "value": 1.0}]


def test_the_api_cannot_be_written_to(exporter: Exporter) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{exporter.port}/api/training/status", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=5)
    with caught.value as answer:
        assert answer.code == 501


def test_a_taken_port_is_a_clear_error(metrics: Metrics, exporter: Exporter) -> None:
    with pytest.raises(ConfigError, match="--metrics-port"):
        Exporter(metrics, exporter.port, "127.0.0.1")


@pytest.mark.parametrize(
    "use",
    [
        lambda metrics: metrics.set({"genesis_no_such": 1.0}),
        lambda metrics: metrics.set({"genesis_rewinds": 1.0}),
        lambda metrics: metrics.add({"genesis_training_step": 1.0}),
        lambda metrics: metrics.add({"genesis_request_errors": 1.0}),
        lambda metrics: metrics.clear("genesis_rewinds"),
        lambda metrics: metrics.gauge("genesis_rewinds"),
    ],
)
def test_a_metric_of_another_kind_or_of_none_is_a_mistake(metrics: Metrics, use: Callable[[Metrics], object]) -> None:
    with pytest.raises(KeyError, match="genesis_"):
        use(metrics)


# --- the FP32 baseline -------------------------------------------------------------------------------------------------


def _stretch(recorder: BaselineRecorder, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        recorder.observe(float(step), step, samples=8, seconds=0.2 if step % 10 == 0 else 0.1)


def test_the_baseline_is_what_the_fp32_stretch_came_to() -> None:
    recorder = BaselineRecorder("abc")
    _stretch(recorder, 100, first=40)
    recorder.run_ended(True)
    recorder.run_ended(False)
    record = recorder.end(1000.0, None)
    assert record is not None
    assert (record.first_step, record.steps, record.stride) == (40, 100, 1)
    assert record.losses == tuple(float(step) for step in range(40, 140))
    assert record.p95_seconds == 0.2
    assert record.samples_per_second == pytest.approx(800 / 11.0)
    assert record.success_ratio == 0.5
    gauges = record.gauges()
    assert gauges["genesis_fp32_baseline_step"] == 140.0
    assert "genesis_fp32_baseline_peak_bytes" not in gauges, "not known on a CPU: absent, not 0"


def test_the_loss_curve_stays_bounded_and_keeps_its_mean() -> None:
    recorder = BaselineRecorder("abc")
    _stretch(recorder, 5 * POINTS)
    record = recorder.end(0.0, None)
    assert record is not None
    assert POINTS / 2 <= len(record.losses) <= POINTS
    assert record.stride * len(record.losses) == pytest.approx(record.steps, abs=record.stride)
    assert record.losses[0] == (record.stride - 1) / 2


def test_a_short_stretch_leaves_the_old_baseline_and_a_gap_is_null() -> None:
    recorder = BaselineRecorder("abc")
    recorder.observe(float("nan"), 0, samples=8, seconds=0.1)
    _stretch(recorder, 20, first=1)
    first = recorder.end(1.0, 7)
    _stretch(recorder, 5)
    assert recorder.end(2.0, 7) is None
    assert recorder.record is first is not None
    wire = first.to_wire()
    assert json.loads(json.dumps(wire, allow_nan=False))["losses"][:2] == [None, 1.0]


def test_a_baseline_comes_back_for_its_own_training_only() -> None:
    facts = {"model": "m", "data": "d", "device_name": "x"}
    assert fingerprint(facts) != fingerprint({**facts, "device_name": "y"})
    recorder = BaselineRecorder(fingerprint(facts))
    _stretch(recorder, 20)
    recorder.end(1.0, 7)
    state = recorder.state_dict()
    same, other = BaselineRecorder(fingerprint(facts)), BaselineRecorder("other")
    same.load_state_dict(state)
    other.load_state_dict(state)
    assert same.record == recorder.record
    assert (other.record, other.stale, same.stale) == (None, True, False)
    assert BaselineRecorder("x").state_dict() == {}
    newer = BaselineRecorder(fingerprint(facts))
    newer.load_state_dict({**state, "field_of_tomorrow": 1})
    assert (newer.record, newer.stale) == (None, True)


def test_headroom_is_what_the_limit_leaves_and_unknown_without_one(tmp_path: Path) -> None:
    import torch

    cpu = torch.device("cpu")
    assert headroom_bytes(cpu, tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert headroom_bytes(cpu, tmp_path) is None
    (tmp_path / "memory.max").write_text("4096\n")
    assert headroom_bytes(cpu, tmp_path) == 3096


def test_each_stretch_of_fp16_warms_up_and_nothing_else_does() -> None:
    fp32, fp16, bf16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
    modes = [fp16] * 20 + [fp32] * 5 + [fp16] * 20 + [bf16] * 5 + [fp16] * 3
    warm_up = WarmUp()
    warming = [index for index, mode in enumerate(modes) if warm_up.observe(mode)]
    assert warming == [*range(16), *range(25, 41), *range(50, 53)]
