"""The analyzer: its facts about formats are exact, its findings about a module are what the module does."""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from precision_tools.analyzer.alignment import misalignments
from precision_tools.analyzer.comparison import compare
from precision_tools.analyzer.figure import compose, draw
from precision_tools.analyzer.formats import BY_NAME, FORMATS, analyze_format
from precision_tools.analyzer.known import known
from precision_tools.analyzer.probe import probe
from precision_trainer import PrecisionAnalyzer, cli
from precision_trainer.errors import ConfigError
from tests.support.analyzed import CPU, mean_square, small


@pytest.mark.parametrize(
    ("name", "largest", "smallest", "epsilon"),
    [
        ("fp16", 65504.0, 2.0**-24, 2.0**-10),
        ("bf16", (2 - 2.0**-7) * 2.0**127, 2.0**-133, 2.0**-7),
        ("tf32", (2 - 2.0**-10) * 2.0**127, 2.0**-136, 2.0**-10),
        ("fp8_e4m3", 448.0, 2.0**-9, 2.0**-3),
        ("fp8_e5m2", 57344.0, 2.0**-16, 2.0**-2),
    ],
)
def test_ranges_are_those_of_the_standards(name: str, largest: float, smallest: float, epsilon: float) -> None:
    found = analyze_format(BY_NAME[name])
    assert (found.max, found.smallest_subnormal, found.epsilon) == (largest, smallest, epsilon)


@pytest.mark.parametrize("item", FORMATS[1:], ids=lambda item: item.name)
def test_the_thresholds_are_where_the_conversion_really_gives_way(item: object) -> None:
    assert isinstance(item, type(FORMATS[0]))
    found = analyze_format(item)
    below, beyond = torch.tensor([found.underflow_at, found.overflow_at], dtype=torch.float64)
    up = below * 1.001  # FP32's own subnormals, on the way to BF16 and TF32, are no finer
    assert item.rounded(below[None]).item() == 0
    assert item.rounded(up[None]).item() > 0
    assert item.rounded(((beyond + found.max) / 2)[None]).item() == found.max
    became = item.rounded((beyond * 2)[None]).item()
    assert found.overflow_becomes == ("max" if math.isfinite(became) else str(became))


def test_tf32_rounds_as_fp16_does_where_fp16_reaches() -> None:
    values = torch.rand(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 100 + 1e-3
    values = torch.cat((values, -values)).float().double()  # both have 10 bits of mantissa
    assert torch.equal(BY_NAME["tf32"].rounded(values), BY_NAME["fp16"].rounded(values))
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0], dtype=torch.float64)
    assert torch.equal(BY_NAME["tf32"].rounded(special).nan_to_num(7.0), special.nan_to_num(7.0))


def test_only_the_short_exponents_need_a_loss_scale() -> None:
    scales = {item.name: analyze_format(item).recommended_loss_scale for item in FORMATS}
    assert {name for name, scale in scales.items() if scale > 1} == {"fp16", "fp8_e5m2"}
    assert scales["fp16"] == 2.0**15
    rates = {item.name: analyze_format(item).underflow_rate for item in FORMATS}
    assert rates["fp16"] == pytest.approx((math.log10(2.0**-25) + 10) / 9, abs=2e-3)
    assert rates["bf16"] == 0


@pytest.mark.parametrize("item", FORMATS[1:], ids=lambda item: item.name)
def test_rounding_errors_are_not_mixed_with_underflow_or_overflow(item: object) -> None:
    assert isinstance(item, type(FORMATS[0]))
    found = analyze_format(item)
    assert found.max_error <= item.epsilon / 2 * (1 + 1e-9)
    assert found.outside_rate == pytest.approx(
        {"fp16": 0.324, "fp8_e4m3": 0.6, "fp8_e5m2": 0.324}.get(item.name, 0), abs=0.01
    )


@pytest.mark.parametrize(
    ("device", "entry"),
    [
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 3090", "RTX 30"),
        ("NVIDIA GeForce RTX 5090", "RTX 50"),
        ("AMD Instinct MI300X", "MI300"),
        ("NVIDIA RTX 4000 Ada Generation", None),
        ("NVIDIA L40", None),
        ("NVIDIA A10G", None),
    ],
)
def test_a_device_is_known_by_its_drivers_name(device: str, entry: str | None) -> None:
    found = known(device)
    assert (found.name if found else None) == entry


def test_the_module_is_left_as_it_was() -> None:
    model = small()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    PrecisionAnalyzer().analyze(model, torch.randn(8, 12, generator=torch.Generator()), mean_square, steps=2)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("scale", [1.0, 2.0**6, 2.0**12])
def test_lost_gradients_are_those_that_fp16_turns_to_zero(scale: float) -> None:
    model = nn.Sequential(nn.Linear(1, 500, bias=False))
    gradients = torch.logspace(-12, -3, 500)

    def weighted(module: nn.Module, batch: object) -> torch.Tensor:
        output: torch.Tensor = module(batch)
        return (output * gradients).sum()

    seen = probe(model, torch.ones(1, 1), weighted, CPU)
    expected = ((gradients * scale).half() == 0).float().mean().item()
    assert seen.modules[0].lost_gradients("fp16", scale) == pytest.approx(expected, abs=1e-6)
    assert seen.modules[0].lost_gradients("bf16", scale) == 0
    assert seen.gradient_max == pytest.approx(1e-3)
    assert seen.loss_scale * seen.gradient_max * 8 <= 65504 < seen.loss_scale * seen.gradient_max * 16


def test_the_scale_leaves_room_for_weights_whose_gradients_sum_over_many_rows() -> None:
    def mean(module: nn.Module, batch: object) -> torch.Tensor:
        output: torch.Tensor = module(batch)
        return output.float().mean()

    seen = probe(nn.Sequential(nn.Linear(4, 4, bias=False)), torch.full((8192, 4), 10.0), mean, CPU)
    assert seen.modules[0].gradient_max < 1e-4
    assert seen.gradient_max == pytest.approx(2.5)
    assert seen.loss_scale == 2048
    assert seen.modes[-1].finite


class Detour(torch.autograd.Function):
    """The identity; its backward pass goes through numbers that no module's output shows."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 4096.0 / 4096.0


def test_a_scale_that_overflows_between_modules_is_lowered_until_a_pass_is_finite() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.second(Detour.apply(10 * self.first(x)))
            return output

    torch.manual_seed(0)
    seen = probe(Hidden(), torch.randn(4, 8), mean_square, CPU)
    expected = 2.0 ** math.floor(math.log2(65504 / (8 * seen.gradient_max)))
    assert seen.modes[-1].finite
    assert seen.loss_scale in (expected / 4, expected / 16)


def test_a_pass_in_each_mode_is_measured_against_fp32() -> None:
    seen = {item.mode: item for item in probe(small(), torch.randn(16, 12), mean_square, CPU).modes}
    assert seen["fp32"].gradient_error == 0
    assert 0 < seen["fp16"].gradient_error < seen["bf16"].gradient_error < 0.05
    big = nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Linear(256, 256, bias=False))
    kept = {item.mode: item.activation_bytes for item in probe(big, torch.randn(64, 256), mean_square, CPU).modes}
    assert kept["bf16"] == kept["fp16"]


def test_an_overflow_of_fp16_is_seen_and_where_it_comes_from() -> None:
    model = small()
    with torch.no_grad():
        next(model.parameters()).mul_(1e6)
    seen = probe(model, torch.randn(8, 12), mean_square, CPU)
    assert [item.finite for item in seen.modes] == [True, True, False]
    assert max(seen.modules, key=lambda item: item.output_max).name == "0"


def test_sizes_that_matrix_units_do_not_fill_are_named_with_the_next_that_they_do() -> None:
    model = nn.ModuleDict({"a": nn.Linear(768, 1000), "b": nn.Linear(50257, 12), "look_up": nn.Embedding(7, 3)})
    found = {(item.module, item.side): (item.use_16_bit, item.use_8_bit) for item in misalignments(model, ())}
    # 768 is aligned, whatever the source says; 1000 is for 16 bits only.
    assert found == {
        ("a", "outputs"): (1000, 1008), ("b", "inputs"): (50264, 50272), ("b", "outputs"): (16, 16),
    }  # fmt: skip


def test_training_starts_alike_in_all_modes_and_takes_turns() -> None:
    runs = compare(
        small(), lambda step: torch.full((4, 12), 0.1 * step), mean_square, CPU,
        modes=("fp32", "bf16", "fp16"), steps=6, loss_scale=1024.0,
    )  # fmt: skip
    first = [run.losses[0] for run in runs]
    assert first == pytest.approx([first[0]] * 3, rel=0.02)
    assert [run.steps_in_mode for run in runs] == [6, 6, 6]
    assert [run.final_scale for run in runs] == [1, 1, 1024]
    assert all(run.success_rate == 1 and run.peak_bytes is None for run in runs)
    assert runs[0].speedup == 1


def test_the_report_is_valid_json_markdown_and_six_panels(tmp_path: Path) -> None:
    report = PrecisionAnalyzer().analyze(small(), torch.randn(8, 12), mean_square, steps=3, name="mine")
    wire = json.loads(json.dumps(report.to_wire(), allow_nan=False))
    assert wire["subject"] == "mine"
    assert {item["mode"] for item in wire["training"]} | wire["not_trained"].keys() == {"fp32", "bf16", "fp16"}
    text = report.markdown()
    for part in (
        "# Precision of mine",
        "**Train in ",
        "## Formats",
        "fp8_e5m2",
        "## Hardware",
        "H100",
        "### production",
    ):
        assert part in text
    draw(report, tmp_path / "report.svg")
    panels = (tmp_path / "report.svg").read_text().count('<g id="axes_')
    assert panels == 6
    draw(PrecisionAnalyzer().analyze(small(), torch.randn(8, 12), mean_square, steps=0), tmp_path / "without.png")
    assert (tmp_path / "without.png").stat().st_size > 10_000


def test_each_bar_is_as_high_as_its_label_says() -> None:
    report = PrecisionAnalyzer().analyze(small(), torch.randn(8, 12), mean_square, steps=4)
    bars = 0
    for panel in compose(report).axes:
        for bar, label in zip(panel.patches, panel.texts, strict=False):
            shown = float(re.match(r"[\d.e+-]+", label.get_text()).group())  # type: ignore[union-attr]
            height = bar.get_height()  # type: ignore[attr-defined]
            assert shown == pytest.approx(height, rel=0.06, abs=0.51 if "%" in label.get_text() else 0.006)
            bars += 1
    assert bars >= 6 + 3 + 7 + 3


def test_figures_without_matplotlib_or_a_place_say_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = PrecisionAnalyzer().analyze(small(), torch.randn(8, 12), mean_square, steps=0)
    with pytest.raises(ConfigError, match=r"name a \.png, \.svg or \.pdf"):
        draw(report, tmp_path / "report.xyz")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[figures\]'"):
        draw(report, tmp_path / "report.png")


def test_what_is_no_question_of_precision_is_said_to_be_none() -> None:
    with pytest.raises(ConfigError, match="no question of precision"):
        PrecisionAnalyzer().analyze(small(), torch.full((2, 12), math.nan), mean_square)
    with pytest.raises(ConfigError, match=r"parameter 0\.weight is torch\.float16"):
        PrecisionAnalyzer().analyze(small().half(), torch.zeros(2, 12), mean_square)


@pytest.mark.parametrize("model", ["transformer", "world-model"])
def test_the_command_analyzes_the_built_in_models(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    small_size = ["--width", "16", "--layers", "1", "--context", "8", "--batch-size", "2"]
    assert cli.main(["analyze", model, "--steps", "2", "-o", "json", *small_size]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["modules"]
    assert found["recommendation"]["mode"] in ("fp32", "bf16", "fp16")


def test_the_command_says_what_is_wrong_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["analyze", "no.such:thing"]) == 1
    assert capsys.readouterr().err.startswith("precision-trainer analyze: no.such:thing: there is no module no.such")
