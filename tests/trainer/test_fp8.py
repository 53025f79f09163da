"""FP8 training: torch's own scaled product, which also runs on a CPU, so that numbers and switches are tested anywhere."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from precision_tools.analyzer.fp8 import rounded_to
from precision_tools.bench.switching import HostWaits
from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode, cli
from precision_trainer.errors import ConfigError
from precision_trainer.job.options import TrainOptions
from precision_trainer.job.signals import StopFlag
from precision_trainer.job.tasks import build_task
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from precision_trainer.sentinel.guard import Guard
from precision_trainer.sentinel.islands import Islands
from precision_trainer.sentinel.layers import Layers
from precision_trainer.step import fp8
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.request import PrecisionRequest

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
CPU = torch.device("cpu")


def layer(recipe: str = "current") -> tuple[nn.Linear, nn.Linear]:
    """A layer in FP8, and the same one as it was."""
    torch.manual_seed(0)
    plain = nn.Linear(48, 32)
    converted = copy.deepcopy(plain)
    assert fp8.install(converted, recipe) == ("",)
    return converted, plain


def in_bf16(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output: torch.Tensor = module(inputs)
    return output


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [16, 5])  # 5: the sum over rows is filled up with zeros
def test_its_three_products_are_those_of_rounded_numbers(rows: int) -> None:
    module, _ = layer()
    inputs, gradient = torch.randn(rows, 48).bfloat16().float(), torch.randn(rows, 32).bfloat16().float()
    asked = inputs.clone().requires_grad_()
    output = in_bf16(module, asked)
    output.backward(gradient.bfloat16())

    def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return rounded_to(values, dtype, "current", values.abs().max().item())

    small, weight = rounded(inputs, E4M3), rounded(module.weight.detach(), E4M3)
    small_gradient = rounded(gradient, E5M2)
    assert output.dtype is torch.bfloat16
    assert difference(output.detach(), small @ weight.T + module.bias.detach()) < 2.0**-7
    assert asked.grad is not None
    # A tie of E5M2's coarse steps may fall to the other side: this scale is FP32, that one FP64.
    assert difference(asked.grad, small_gradient @ weight) < 2.0**-5
    assert module.weight.grad is not None
    assert module.weight.grad.dtype is torch.float32
    assert difference(module.weight.grad, small_gradient.T @ small) < 2.0**-5
    assert difference(output.detach(), inputs @ module.weight.detach().T + module.bias.detach()) > 0.01  # it is FP8


def test_a_delayed_scale_cuts_off_what_grew_and_follows_one_pass_later() -> None:
    current, delayed, plain = layer()[0], layer("delayed")[0], layer()[1]
    quiet = torch.randn(16, 48)
    assert torch.equal(in_bf16(current, quiet), in_bf16(delayed, quiet))  # nothing known yet: its own largest value
    loud = 100 * quiet
    expected = plain(loud).detach()
    assert difference(in_bf16(current, loud).detach(), expected) < 0.1
    assert difference(in_bf16(delayed, loud).detach(), expected) > 0.9
    assert difference(in_bf16(delayed, loud).detach(), expected) < 0.1


@pytest.mark.parametrize("recipe", fp8.RECIPES)
@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
def test_what_is_not_finite_comes_out_so_and_is_forgotten(recipe: str, bad: float) -> None:
    module, _ = layer(recipe)
    inputs = torch.randn(16, 48)
    before = in_bf16(module, inputs)
    broken = inputs.clone()
    broken[0, 0] = bad
    assert not in_bf16(module, broken).isfinite().any()
    assert torch.equal(in_bf16(module, inputs), before)


def test_outside_bf16_it_is_the_layer_it_was_bit_for_bit() -> None:
    module, plain = layer()
    inputs = torch.randn(16, 48)
    assert torch.equal(module(inputs), plain(inputs))
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(module(inputs), plain(inputs))
    assert module.state_dict().keys() == plain.state_dict().keys()
    pinned = Islands(Layers(module, torch.optim.SGD(module.parameters())), CPU, Guard(JsonLog()))
    pinned.set([0])
    assert torch.equal(in_bf16(module, inputs), plain(inputs))
    pinned.set([])
    assert in_bf16(module, inputs).dtype is torch.bfloat16


def trainer(recipe: str | None, mode: PrecisionMode) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = ByteTransformer(TransformerConfig(width=32, layers=2, context=16))
    if recipe is not None:
        names = fp8.install(model, recipe)
        assert len(names) == 2 * 4 + 1
        assert "blocks.0.qkv" in names
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    return ExtendedFP16Trainer(model, optimizer, ExtendedFP16Config(precision_mode=mode), allow_cpu=True)


def train(subject: ExtendedFP16Trainer, text: LibraryText, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = subject.training_step(text.batch(subject.step * 8, 8), next_byte_loss)
        subject.backward_and_step(loss)
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("recipe", fp8.RECIPES)
def test_it_learns_as_fp32_does_within_the_limit_of_a_rollout(recipe: str) -> None:
    text = LibraryText(16, max_bytes=1 << 16)
    expected = sum(train(trainer(None, FP32), text, 60)[-10:])
    subject = trainer(recipe, BF16)
    found = train(subject, text, 60)
    assert subject.mode is BF16
    assert abs(sum(found[-10:]) - expected) / expected < 0.05
    assert found[-1] < found[0] - 1


def test_a_switch_leaves_fp8_and_comes_back_without_waiting_for_the_device() -> None:
    text = LibraryText(16, max_bytes=1 << 16)
    subject = trainer("delayed", BF16)
    train(subject, text, 3)
    subject.begin_step()
    subject.apply(PrecisionRequest(1, FP32))
    twin = trainer(None, FP32)
    twin.model.load_state_dict(subject.model.state_dict())
    batch = text.batch(0, 8)
    assert torch.equal(subject.training_step(batch, next_byte_loss), twin.training_step(batch, next_byte_loss))
    again = trainer("delayed", BF16)
    train(again, text, 2)
    with HostWaits() as waits:
        again.backward_and_step(again.training_step(batch, next_byte_loss))
    assert waits.count == 0


# --- the option -------------------------------------------------------------------------------------------------------


def test_where_the_hardware_has_none_it_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precision_trainer.job.signals.StopFlag.install", StopFlag)
    assert cli.main(["train", "--fp8", "current", "--backend", "gloo", "--steps", "1", "--metrics-port", "-1"]) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["event"], last["kind"]) == ("failed", "ConfigError")
    assert "--fp8 current: not here, because FP8 matrix products need a CUDA GPU of capability 8.9" in last["message"]
    assert "leave it out to train in BF16" in last["message"]


def test_a_gpu_that_is_too_old_is_refused_and_a_new_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_trainer.step.hardware.cuda_capability", lambda: (8, 6))
    with pytest.raises(ConfigError, match=r"this GPU has 8\.6"):
        build_task(TrainOptions(fp8="delayed"))
    monkeypatch.setattr("precision_trainer.step.hardware.cuda_capability", lambda: (9, 0))
    task = build_task(TrainOptions(fp8="delayed", context=16))
    assert sum("forward" in vars(module) for module in task.model.modules()) == 2 * 4 + 1


def test_models_and_values_that_it_cannot_serve_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--fp8='mx': expected off, current or delayed"):
        TrainOptions(fp8="mx")
    with pytest.raises(ConfigError, match="multiples of 16, found none in Sequential"):
        fp8.install(nn.Sequential(nn.Linear(12, 24)), "current")
