"""The benchmarks: what they compute with is right, and one command measures everything."""

from __future__ import annotations

import csv
import functools
import json
import random
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.progress import Progress

from precision_tools.bench import figures, hardware, models, report, scenarios, speed, switching
from precision_tools.bench.rounds import OwnTime, Tick, interleave, median_interval, paired
from precision_tools.bench.workloads import transformer
from precision_trainer import cli
from precision_trainer.checkpoint import files
from precision_trainer.checkpoint.format import TrainingState
from precision_trainer.step.hardware import detect
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.values.modes import PrecisionMode

CPU = torch.device("cpu")
TINY = figures.Effort(
    overhead_rounds=6,
    speed_rounds=1,
    seeds=1,
    parity_steps=2,
    flips=2,
    saves=1,
    width=32,
    layers=1,
    context=16,
    world_width=32,
)


def test_the_interval_of_a_median_is_that_of_the_binomial_table() -> None:
    """Order statistics 2 and 9 of 10, and 22 and 39 of 60 (Conover, Practical Nonparametric Statistics, table A3)."""
    ten = median_interval([float(value) for value in range(1, 11)])
    assert (ten.lower, ten.median, ten.upper) == (2.0, 5.5, 9.0)
    sixty = median_interval([float(value) for value in range(1, 61)])
    assert (sixty.lower, sixty.upper) == (22.0, 39.0)
    with pytest.raises(ValueError, match="at least 6"):
        median_interval([1.0] * 5)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    hits = 0
    for _ in range(2000):
        interval = median_interval([draw.expovariate(1.0) for _ in range(40)])
        hits += interval.lower <= 0.6931 <= interval.upper
    assert hits / 2000 >= 0.95


def test_rounds_are_interleaved_and_paired() -> None:
    calls: list[str] = []
    ticks: list[int] = []
    timed = interleave(
        {name: lambda name=name: calls.append(name) for name in "abc"},  # type: ignore[misc]
        rounds=4,
        steps=2,
        warm_up=1,
        tick=lambda: ticks.append(len(calls)),
    )
    assert calls[:3] == ["a", "b", "c"]
    assert ticks == [9, 15, 21, 27]
    turns = [calls[start : start + 6 : 2] for start in range(3, 27, 6)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert all(len(values) == 4 for values in (*timed.wall.values(), *timed.cpu.values()))
    assert paired({"x": [3.0, 5.0], "y": [1.0, 2.0]}, "x", "y") == [2.0, 3.0]


def test_a_turn_of_a_group_is_right_beside_the_others_and_its_lead_is_not_counted() -> None:
    calls: list[str] = []
    contenders = {name: functools.partial(calls.append, name) for name in ("ours", "bare", "peer", "bare too")}
    groups = [("ours", "bare"), ("peer", "bare too")]
    timed = interleave(contenders, rounds=2, steps=6, warm_up=0, tick=lambda: None, groups=groups, turns=3, lead=1)
    turns = [calls[at : at + 3] for at in range(0, len(calls), 3)]
    assert all(len(set(turn)) == 1 for turn in turns)  # a lead and two steps
    beside = [{turns[at][0], turns[at + 1][0]} for at in range(0, len(turns), 2)]
    assert all(pair in [{*group} for group in groups] for pair in beside)
    assert len(beside) == 2 * 3 * len(groups)
    assert {name: len(values) for name, values in timed.wall.items()} == dict.fromkeys(contenders, 2)


def test_time_of_its_own_stands_still_outside_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    real = iter(float(second) for second in range(100, 200, 10))
    monkeypatch.setattr(time, "monotonic", lambda: next(real))
    outside = time.monotonic
    clock = OwnTime()  # 100
    seen = []
    for _ in range(2):
        with clock:  # 110, then 140
            seen.append(time.monotonic())  # 120, then 150
        # left at 130, then 160
    assert seen == [110.0, 130.0]
    assert time.monotonic is outside


def test_kept_activations_are_counted_once_and_without_parameters() -> None:
    """At this size the 16-bit copies of the weights, which BF16 keeps too, are fewer bytes than the activations."""
    load = transformer(width=64, layers=1, context=32, batch_size=4)
    fp32 = speed.activation_bytes(load, PrecisionMode.FP32)
    bf16 = speed.activation_bytes(load, PrecisionMode.MIXED_BF16)
    assert 0 < bf16 < fp32
    deeper = transformer(width=64, layers=2, context=32, batch_size=4)
    assert speed.activation_bytes(deeper, PrecisionMode.FP32) > fp32
    assert speed.state_bytes(load) == 16 * sum(p.numel() for p in load.make(0).model.parameters())


def test_the_counter_of_host_waits_sees_one() -> None:
    with switching.HostWaits() as waits:
        torch.zeros(()).item()
        torch.zeros(2).add_(1)
    assert waits.count == 1


def _write_after_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint is complete before the step that began it goes on, however slowly this process runs."""
    save, write, goes_on = Checkpointer.save, files.write, threading.Event()
    goes_on.set()

    def begin(checkpointer: Checkpointer, *, patient: bool = False) -> None:
        goes_on.clear()
        try:
            save(checkpointer, patient=patient)
        finally:
            goes_on.set()

    def late(final: Path, state: TrainingState, permit: Callable[[], None]) -> None:
        assert goes_on.wait(60)
        write(final, state, permit)

    monkeypatch.setattr(Checkpointer, "save", begin)
    monkeypatch.setattr(files, "write", late)


def test_one_run_measures_every_figure_and_says_on_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_after_the_copy(monkeypatch)
    threads = torch.get_num_threads()
    path = tmp_path / "build" / "trainer.json"
    with Progress(disable=True) as progress:
        figures.run(path, TINY, progress)
    found = json.loads(path.read_text(encoding="utf-8"))
    assert (found["complete"], found["failed"]) == (True, {})
    assert sum(found["part_seconds"].values()) <= found["seconds"] + 1
    cost = found["overhead_us"]
    assert {"ours", "ours_upper", "fabric", "accelerate"} <= set(cost)
    assert cost["unclipped"] == {
        name: cost[key]
        for name, key in (
            ("ours", "ours_unclipped"),
            ("ours_upper", "ours_unclipped_upper"),
            ("fabric", "fabric_unclipped"),
        )
    }
    assert len(cost["rounds_us"]["bare"]) == len(cost["rounds_us"]["ours"]) == TINY.overhead_rounds
    assert cost["ours"] == pytest.approx(
        statistics.median(a - b for a, b in zip(cost["rounds_us"]["ours"], cost["rounds_us"]["bare"], strict=True)),
        abs=0.2,
    )
    assert set(found["bf16_speedup"]) == {"transformer", "world_model"}
    for mode in ("fp16", "bf16"):
        assert {"delta", "fp32_seed_spread", "seeds"} <= set(found["parity"][mode])
    assert found["host_syncs_per_step"] == 0
    assert found["switch"]["steps"] <= 2
    assert found["switch"]["steps_lost"] == 0
    assert found["rewind_seconds"] > 0
    assert found["checkpoint"]["seconds"] >= found["checkpoint"]["step_added_seconds"] > 0
    assert min(found["activation_bytes"][mode] for mode in ("fp32", "bf16")) > 0
    assert found["hardware"]["torch"] == torch.__version__
    assert torch.cuda.is_available() or found["gpu"].startswith("not measured")
    assert torch.get_num_threads() == threads


_GOOD = {"ours": 5.0, "ours_upper": 59.0, "fabric": 80.0}


@pytest.mark.parametrize(
    ("clipped", "unclipped", "said"),
    [
        ({}, {}, []),
        ({"ours_upper": 61.0}, {}, ["overhead with clipping: expected an upper bound of at most 60 µs"]),
        ({}, {"ours": 81.0}, ["overhead without clipping: expected less than Fabric's 80 µs a step, found 81"]),
    ],
)
@pytest.mark.parametrize("quick", [False, True])
def test_an_overhead_above_its_budget_or_fabrics_is_said_and_ends_with_1_but_not_in_a_quick_run(
    clipped: dict[str, float],
    unclipped: dict[str, float],
    said: list[str],
    quick: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = {"complete": True, "overhead_us": {**_GOOD, **clipped, "unclipped": {**_GOOD, **unclipped}}}
    monkeypatch.setattr(figures, "run", lambda *_: result)
    found = cli.main(["bench", "figures", "--output", str(tmp_path / "x.json"), *(["--quick"] if quick else [])])
    lines = [line for line in capsys.readouterr().err.splitlines() if line]  # a bar's end is an empty one
    expected = [] if quick else said
    assert found == (1 if expected else 0)
    assert len(lines) == len(expected)
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True))


def test_a_part_that_failed_is_not_said_to_miss_its_budget() -> None:
    assert figures.missed({"complete": False}) == []


def test_what_was_measured_is_on_disk_after_each_part_and_a_part_that_fails_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trainer.json"
    seen: list[dict[str, object]] = []

    def missing(_: Tick) -> dict[str, object]:
        raise ImportError("No module named 'accelerate'")

    def good(_: Tick) -> dict[str, object]:
        seen.append(json.loads(path.read_text(encoding="utf-8")))
        return {"switch": {"steps": 1}}

    parts = (figures.Part("overhead", 1, missing), figures.Part("hot switch", 1, good))
    monkeypatch.setattr(figures, "_parts", lambda *_: parts)
    with Progress(disable=True) as progress:
        result = figures.run(path, TINY, progress)
    assert seen[0]["failed"] == {"overhead": "ImportError: No module named 'accelerate'"}
    assert seen[0]["complete"] is False
    assert (result["complete"], result["switch"]) == (False, {"steps": 1})
    assert "overhead_us" not in json.loads(path.read_text(encoding="utf-8"))


def test_synthetic_trajectories_are_the_same_for_the_same_seed_only() -> None:
    first, again, other = (scenarios.buffer(4, seed) for seed in (3, 3, 4))
    assert first.fingerprint == again.fingerprint != other.fingerprint


@pytest.mark.usefixtures("one_thread")
def test_a_scenario_is_reported_in_every_form_with_the_mode_that_really_ran(tmp_path: Path) -> None:
    ticks: list[None] = []
    rows = scenarios.measure((scenarios.Scenario("tiny", 8, 2),), lambda: ticks.append(None))
    assert [(row.asked, row.ran) for row in rows] == [("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16")]
    assert len(ticks) == 6
    assert all(len(row.losses) == 2 * scenarios.Scenario("tiny", 8, 2).steps_per_epoch for row in rows)
    assert (rows[0].speedup, rows[0].degradation_percent) == (1.0, 0.0)

    machine = {**hardware.describe(), "gpu": None}
    fell_back = [replace(row, ran="fp32") if row.asked == "fp16" else row for row in rows]
    timed = models.ModelRow("rssm", "cpu", "fp16", None, None, None, 1, None, None, None, "emulated")
    paths = {
        path.name.removeprefix("tiny"): path for path in report.write(tmp_path, "tiny", fell_back, machine, [timed])
    }
    lines = paths["-models.csv"].read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "rssm,cpu,fp16,,,,1,,,,emulated"
    lines = paths[".csv"].read_text(encoding="utf-8").splitlines()
    assert f"# torch: {json.dumps(torch.__version__)}" in lines
    table = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert [(row["asked"], row["ran"]) for row in table] == [("fp32", "fp32"), ("fp16", "fp32"), ("bf16", "bf16")]
    found = json.loads(paths[".json"].read_text(encoding="utf-8"))
    assert found["hardware"]["cpu"] == machine["cpu"]
    assert set(found["gpu"].values()) == {"not measured"}
    assert len(found["rows"][1]["losses"]) == len(rows[1].losses)
    text = paths[".md"].read_text(encoding="utf-8")
    assert "| fp16 | fp32 ⚠ |" in text
    assert "| A100 | 2.5–3.5× | 40–50 % | not measured |" in text
    assert paths[".png"].read_bytes().startswith(b"\x89PNG")


def test_the_quick_scenarios_have_an_eighth_of_the_trajectories() -> None:
    found = scenarios.quick(scenarios.COMPREHENSIVE)
    assert [(one.name, one.trajectories, one.epochs) for one in found] == [
        ("warmup", 16, 1),
        ("standard", 32, 3),
        ("stress", 64, 5),
    ]


def test_a_share_above_the_whole_peak_is_no_measurement() -> None:
    row = models.ModelRow("rssm", "cpu", "fp32", "fp32", 0.5, 1.0, 10**9, None, 0, None, None)
    assert models._share(row, 4.0) == 0.5  # 2 of 4 GFLOP/s
    assert models._share(row, 1.0) is None
    assert models._share(row, 0.0) is None


def test_a_model_is_timed_in_every_precision_or_it_is_said_why_not() -> None:
    ticks: list[None] = []
    small = partial(transformer, width=32, layers=1, context=16, batch_size=2)
    rows = {row.asked: row for row in models.measure(CPU, (small,), lambda: ticks.append(None), rounds=2)}
    assert rows.keys() == {"fp32", "tf32", "bf16", "fp16", "fp8"}
    assert len(ticks) == 2
    assert rows["fp32"].speedup == 1.0
    # 6 operations a token and weight of a product, and attention's two products, forward and twice backward.
    tokens, width = 2 * 16, 32
    assert rows["fp32"].flops == 6 * tokens * (12 * width * width + 256 * width) + 3 * 4 * tokens * 16 * width
    for row in rows.values():
        assert (row.step_seconds is None) == (row.missing is not None)
        assert row.missing is not None or row.ran == row.asked
        assert row.of_peak is None or 0 < row.of_peak <= 1
    assert rows["tf32"].missing == models.NO_TF32
    assert (rows["fp8"].missing or "").startswith("not here, because FP8 matrix products need a CUDA GPU")
    text = report.markdown("tiny", [], {}, list(rows.values()))
    assert f"| {rows['fp32'].workload} | tf32 | not measured: {models.NO_TF32} |" in text


def test_where_there_is_fp8_a_model_is_timed_with_its_linear_layers_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(detect(), fp8_missing=None)  # a CPU has the product too, and is slow at it
    monkeypatch.setattr(models, "detect", lambda: here)
    small = partial(transformer, width=32, layers=1, context=16, batch_size=2)
    rows = {row.asked: row for row in models.measure(CPU, (small,), lambda: None, rounds=2)}
    assert (rows["fp8"].ran, rows["fp8"].missing) == ("fp8", None)
    assert (rows["fp8"].step_seconds or 0.0) > 0.0
