"""What the analyzer recommends, and what it says of FP8 and of the machine."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from torch import nn

from precision_tools.analyzer import fp8, gemm
from precision_tools.analyzer.comparison import ModeRun
from precision_tools.analyzer.formats import BY_NAME
from precision_tools.analyzer.probe import ModeProbe, ModuleProbe, Probe, probe
from precision_tools.analyzer.recommend import recommend
from precision_trainer import ExtendedFP16Trainer, PrecisionAnalyzer
from precision_trainer.errors import ConfigError
from precision_trainer.step.hardware import Hardware, detect, fp8_missing
from precision_trainer.values.config import read_boot
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.analyzed import CPU, mean_square, small
from tests.support.training.preflight_scenarios import WIDTH, Half, batch, loss_of, model_that_fails

A_GPU = Hardware(
    "cuda",
    "a GPU",
    "8.0",
    1,
    tensor_cores=True,
    tf32=True,
    bf16=True,
    fp16=True,
    fp8_missing="",
    cpu_flags=None,
    torch="2",
)


def passed(mode: str, *, finite: bool = True, cosine: float = 1.0) -> ModeProbe:
    return ModeProbe(mode, 1.0, 0.0, cosine, 0.0, finite, 100)


def ran(mode: str, loss: float = 1.0, *, speedup: float = 2.0, success: float = 1.0, in_mode: int = 10) -> ModeRun:
    return ModeRun(mode, 10, in_mode, (loss,) * 10, 1.0, 1.0, success, 1 / speedup, 0.1, 0.9, speedup, None)


GOOD = Probe((), (passed("fp32"), passed("bf16"), passed("fp16")), 1.0, 4096.0)


RUNS = (ran("fp32", speedup=1.0), ran("bf16"), ran("fp16"))


def _has_no_bf16(model: nn.Module, data: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(data)
    if out.dtype is torch.bfloat16:
        raise RuntimeError('"half_only" not implemented')
    return out.square().mean()


def test_a_mode_that_the_loss_fails_in_is_a_finding_with_its_reason() -> None:
    found = PrecisionAnalyzer(CPU).analyze(nn.Linear(WIDTH, 1), batch(0), _has_no_bf16, steps=3)
    failed = {item.mode: item.failed for item in found.probe.modes if item.failed}
    assert failed == {"bf16": 'RuntimeError ("half_only" not implemented)'}
    assert "bf16" not in {run.mode for run in found.runs}
    advice = recommend(A_GPU, found.probe, found.runs, ())
    assert any(line.startswith("bf16: the model fails in it: RuntimeError") for line in advice.evidence)
    assert f"bf16: {failed['bf16']}." in found.markdown()
    json.dumps(found.to_wire(), allow_nan=False)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_module_that_fails_in_a_mode_is_kept_in_fp32_by_a_setting_to_paste(
    where: str,
) -> None:
    model = model_that_fails(where)
    found = PrecisionAnalyzer(CPU).analyze(model, batch(0), loss_of, steps=3)
    passed = found.probe.passed("bf16")
    assert passed is not None
    assert (passed.failed, passed.finite) == ("", True)
    assert [item.module for item in passed.keep_fp32] == ["1"]
    assert f"fails in bf16: RuntimeError{' in its backward pass' if where == 'backward' else ''} in 1 (" in (
        passed.keep_fp32[0].why
    )
    assert "bf16, with `1` in FP32: the model fails in bf16" in found.markdown()
    json.dumps(found.to_wire(), allow_nan=False)

    advice = recommend(A_GPU, found.probe, RUNS, ())
    assert advice.mode == "bf16"
    assert "PRECISION_FP32_MODULES=1" in advice.settings
    assert advice.evidence == (f"bf16: with 1 in FP32, {advice.evidence[0].partition('FP32, ')[2]}",)

    env = dict(setting.split("=", 1) for setting in advice.settings) | {"PRECISION_ALLOW_CPU": "true"}
    boot = read_boot(env, has_cuda=False)
    config = dataclasses.replace(boot.scaling, precision_mode=boot.mode)
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), config, allow_cpu=True)
    trainer.backward_and_step(trainer.training_step(batch(0), loss_of))
    assert trainer.mode.wire == "bf16"


@pytest.mark.parametrize(
    ("name", "kept"), [("a[0]", "a[[]0]"), ("a*", "a[*]"), ("x,y", None), ("the model", "the model")]
)
def test_a_module_whose_name_reads_as_a_glob_is_kept_alone_and_one_that_no_list_can_name_is_not(
    name: str, kept: str | None
) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    model.add_module(name, Half("forward", torch.bfloat16))
    model.add_module("ab", nn.Linear(WIDTH, 1))
    found = probe(model, batch(0), mean_square, CPU).passed("bf16")
    assert found is not None
    assert [item.pattern for item in found.keep_fp32] == ([kept] if kept else [])
    assert bool(found.failed) == (kept is None)


def test_a_model_most_of_whose_modules_fail_in_a_mode_fails_in_it() -> None:
    layers = [layer for _ in range(9) for layer in (nn.Linear(WIDTH, WIDTH), Half("forward", torch.bfloat16))]
    found = probe(nn.Sequential(*layers), batch(0), mean_square, CPU).passed("bf16")
    assert found is not None
    assert "in 17 (" in found.failed
    assert found.keep_fp32 == ()


def test_the_first_mode_that_the_hardware_is_good_at_wins_where_nothing_speaks_against() -> None:
    advice = recommend(A_GPU, GOOD, RUNS, ())
    assert (advice.mode, advice.loss_scale) == ("bf16", 1.0)
    assert advice.settings == ("ENABLE_FP16_TRAINING=true", "PRECISION_MODE=bf16")
    old = dataclasses.replace(A_GPU, bf16=False)
    advice = recommend(old, GOOD, RUNS, ())
    assert (advice.mode, advice.loss_scale) == ("fp16", 4096.0)
    assert "FP16_LOSS_SCALE=4096" in advice.settings


@pytest.mark.parametrize(
    ("against", "reason"),
    [
        (ran("bf16", speedup=0.9), "0.90x"),
        (ran("bf16", loss=1.06), "differs from FP32's by 6.0%"),
        (ran("bf16", loss=math.nan), "differs from FP32's by nan"),
        (ran("bf16", success=0.5), "only 50% of 10 updates"),
        (ran("bf16", in_mode=4), "4 of 10 steps were in bf16"),
        (None, "speed and loss are unknown"),
    ],
)
def test_what_was_measured_against_a_mode_is_said_and_the_next_one_taken(against: ModeRun | None, reason: str) -> None:
    runs = (RUNS[0], *([against] if against else []), RUNS[2])
    advice = recommend(A_GPU, GOOD, runs, ())
    assert advice.mode == "fp16"
    assert reason in advice.evidence[0]


@pytest.mark.parametrize(
    "bad", [passed("bf16", finite=False), passed("bf16", cosine=0.9), passed("bf16", cosine=math.nan)]
)
def test_gradients_that_are_not_fp32s_rule_a_mode_out(bad: ModeProbe) -> None:
    seen = dataclasses.replace(GOOD, modes=(passed("fp32"), bad, passed("fp16", finite=False)))
    assert recommend(A_GPU, seen, RUNS, ()).mode == "fp32"


def test_without_training_nothing_but_fp32_is_recommended() -> None:
    assert recommend(A_GPU, GOOD, (), ()).mode == "fp32"


def test_a_module_near_fp16s_limit_or_that_loses_its_gradients_is_kept_in_fp32() -> None:
    loud, fading, fine = (
        ModuleProbe("loud", "Linear", 4e4, 1.0),
        ModuleProbe("fading", "Linear", 1.0, 1e-12),
        ModuleProbe("fine", "", 1.0),
    )
    fading.gradient_exponents[100] = 5  # 2^-60
    old = dataclasses.replace(A_GPU, bf16=False)
    seen = dataclasses.replace(GOOD, modules=(loud, fading, fine))
    advice = recommend(old, seen, RUNS, ())
    assert [item.module for item in advice.keep_fp32] == ["loud", "fading"]
    assert "65504" in advice.keep_fp32[0].why
    assert recommend(A_GPU, seen, RUNS, ()).keep_fp32 == ()  # BF16 reaches as far as FP32


def test_the_line_for_a_layer_to_keep_in_fp32_pins_it_in_a_trainer_it_is_given_to() -> None:
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("loud", nn.Linear(8, 8))
    model.add_module("fine", nn.Linear(8, 8))
    modules = ModuleProbe("loud", "Linear", 4e4, 1.0), ModuleProbe("fine", "Linear", 1.0)
    old = dataclasses.replace(A_GPU, bf16=False)
    advice = recommend(old, dataclasses.replace(GOOD, modules=modules), RUNS, ())
    assert "PRECISION_FP32_MODULES=loud" in advice.settings
    boot = read_boot(dict(setting.split("=", 1) for setting in advice.settings), has_cuda=True)
    assert boot.errors == ()
    config = dataclasses.replace(boot.scaling, precision_mode=boot.mode, sentinel=SentinelConfig(enabled=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)
    seen: dict[str, torch.dtype] = {}
    for name, module in model.named_children():
        module.register_forward_hook(lambda _m, _i, output, name=name: seen.update({name: output.dtype}))
    trainer.backward_and_step(trainer.training_step(torch.randn(2, 8), mean_square))
    assert seen == {"loud": torch.float32, "fine": torch.float16}


def test_fp8_says_why_not() -> None:
    assert "this is a CPU" in str(fp8_missing(None))
    assert "this GPU has 8.0" in str(fp8_missing((8, 0)))
    assert fp8_missing((8, 9)) is None


def test_fp8_rounding_by_every_recipe_errs_as_its_mantissa_says_and_a_late_scale_cuts_off() -> None:
    model, quiet = small(), torch.randn(16, 12)
    found = {item.recipe: item for item in fp8.study(model, lambda _: quiet, mean_square, CPU)}
    assert found.keys() == {"current", "delayed", "mx"}
    for item in found.values():
        assert item.layers == 2
        assert 0.01 < item.forward_median < 2.0**-4  # half a step of 3 bits, at most
        assert item.forward_median < item.backward_median < 2.0**-2
    assert found["delayed"].forward_worst == found["current"].forward_worst  # nothing changed from batch to batch
    grows = fp8.study(model, lambda step: quiet * (100.0 if step == fp8.HISTORY else 1.0), mean_square, CPU)
    late = {item.recipe: item.forward_worst for item in grows}
    assert late["delayed"] > 0.5 > 0.1 > late["current"]
    assert fp8.study(nn.Embedding(4, 4), lambda _: torch.tensor([1, 2]), mean_square, CPU) == ()


def test_a_block_of_32_with_an_outlier_spoils_only_itself() -> None:
    values = torch.full((1, 70), 1e-3)
    values[0, 0] = 1e5
    blocks = fp8.rounded_to(values, torch.float8_e4m3fn, "mx", 1e5)
    tensor = fp8.rounded_to(values, torch.float8_e4m3fn, "current", 1e5)
    assert blocks.shape == values.shape
    assert torch.allclose(blocks[0, 32:], values[0, 32:], rtol=0.07)
    assert (tensor[0, 1:] == 0).all()
    assert blocks[0, 0].item() == pytest.approx(1e5, rel=0.07)


def test_the_machine_is_asked() -> None:
    here = detect()
    assert here.device == ("cuda" if torch.cuda.is_available() else "cpu")
    if here.cpu_flags is not None:
        # torch asks the processor itself.
        assert ("avx512f" in here.cpu_flags) == torch.cpu._is_avx512_supported()


def test_products_are_measured_or_it_is_said_why_not() -> None:
    found = {item.format: item for item in gemm.measure(CPU, tf32=False, size=64)}
    assert found.keys() == BY_NAME.keys()
    for name in ("fp64", "fp32", "bf16", "fp16"):
        assert (found[name].gflops or 0) > 0
    assert {name for name, item in found.items() if item.gflops is None and item.missing} == {
        "tf32",
        "fp8_e4m3",
        "fp8_e5m2",
    }


def test_scaled_products_in_fp8_are_measured_where_the_device_has_them() -> None:
    found = {item.format: item for item in gemm.measure(CPU, tf32=False, fp8=True, size=32)}
    for name in ("fp8_e4m3", "fp8_e5m2"):
        assert (found[name].gflops or 0) > 0
        assert (found[name].gflops_unaligned, found[name].missing) == (None, None)


def test_a_mode_that_the_device_only_emulates_is_not_trained_for_minutes_and_it_is_said() -> None:
    found = [gemm.Gemm(name, speed, speed, None) for name, speed in (("fp32", 100.0), ("bf16", 11.0), ("fp16", 9.0))]
    assert gemm.emulated([*found, gemm.Gemm("tf32", None, None, "none")], ("fp32", "bf16", "fp16")) == {
        "fp16": "its matrix products run at 9.0 GFLOP/s here, FP32's at 100.0"
    }


def test_frozen_weights_may_have_any_type_and_one_weight_must_be_trained() -> None:
    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(requires_grad=False)
            self.adapter = nn.Linear(WIDTH, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.adapter(self.base(x.bfloat16()).float())
            return out

    model = Adapted()
    found = PrecisionAnalyzer(CPU).analyze(model, batch(0), loss_of, steps=3)
    assert {run.mode for run in found.runs} >= {"fp32"}
    with pytest.raises(ConfigError, match="no parameter is trained"):
        PrecisionAnalyzer(CPU).analyze(model.requires_grad_(requires_grad=False), batch(0), loss_of, steps=3)
