"""Scripts that do what few do, and are trained as they would be without us, or told why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import ConfigError
from precision_trainer.values.request import PrecisionRequest

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16

pytestmark = pytest.mark.usefixtures("one_thread")

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(batch)
    return (output.float() - 1).square().mean()


def _batches(count: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(6, 8, generator=generator) for _ in range(count))


def _sgd(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _trainer(
    model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **settings: object
) -> ExtendedFP16Trainer:
    config = ExtendedFP16Config(**{"precision_mode": FP32, **settings})  # type: ignore[arg-type]
    return ExtendedFP16Trainer(model, optimizer or _sgd(model.parameters()), config, allow_cpu=True)


def _step(trainer: ExtendedFP16Trainer, batch: torch.Tensor, loss: Loss = _loss) -> torch.Tensor:
    found = trainer.training_step(batch, loss)
    trainer.backward_and_step(found)
    return found.detach()


def _warnings(text: str) -> list[dict[str, str]]:
    return [line for line in map(json.loads, text.splitlines()) if line.get("level") == "warning"]


@pytest.mark.parametrize(("mode", "entered"), [(FP16, FP32), (BF16, BF16)])
def test_a_loss_scale_does_not_reach_what_another_optimizer_trains(
    mode: PrecisionMode, entered: PrecisionMode, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _model()
    trainer, others = _trainer(model, _sgd(model[2].parameters())), _sgd(model[0].parameters())
    trainer.request_source = lambda applied: PrecisionRequest(7, mode) if applied < 7 else None
    for batch in _batches(6):
        others.zero_grad()
        _step(trainer, batch)
        others.step()
    assert trainer.mode is entered
    assert max(float(p.detach().abs().max()) for p in model.parameters()) < 2
    refused = [line["message"] for line in _warnings(capsys.readouterr().out) if line["event"] == "request_refused"]
    assert len(refused) == (mode is FP16)
    assert all("of shape (16, 8) is trained, but not by the trainer's optimizer" in message for message in refused)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_loss_of_one_element_is_one(steps: int) -> None:
    model, flat = _model(), _model()
    plain, viewed = (_trainer(one, gradient_accumulation_steps=steps) for one in (model, flat))
    for batch in _batches(6):
        one = _step(plain, batch)
        other = _step(viewed, batch, lambda model, batch: _loss(model, batch).view(1))
        assert torch.equal(one, other)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), flat.parameters(), strict=True))


def test_a_loss_of_64_bits_is_divided_among_micro_batches_in_64_bits() -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return _loss(model, batch).double()

    bare, ours = _model(), _model()
    trainer, optimizer = _trainer(ours, gradient_accumulation_steps=3), _sgd(bare.parameters())
    for number, batch in enumerate(_batches(30)):
        (loss(bare, batch) / 3).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
        _step(trainer, batch, loss)
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), ours.parameters(), strict=True))


def test_fp32_is_fp32_inside_an_autocast_of_the_scripts_own_and_that_is_said_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: set[torch.dtype] = set()
    model = _model()
    model[0].register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    trainer = _trainer(model)
    for batch in _batches(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            _step(trainer, batch)
            assert torch.is_autocast_enabled("cpu")
    assert seen == {torch.float32}
    assert [line["event"] for line in _warnings(capsys.readouterr().out)] == ["autocast_off"]


def test_blocks_of_parameters_that_take_turns_in_the_optimizer_are_clipped_as_torch_does() -> None:
    def swap(optimizer: torch.optim.Optimizer, model: nn.Sequential, turn: int) -> list[nn.Parameter]:
        weight, bias = (model[0] if turn % 2 else model[2]).parameters()
        optimizer.param_groups[0]["params"] = [bias, weight]
        return [weight, bias]

    bare, ours = _model(), _model()
    plain, optimizer = _sgd(bare.parameters()), _sgd(ours.parameters())
    trainer = _trainer(ours, optimizer, max_grad_norm=0.01)
    for turn, batch in enumerate(_batches(8)):
        block = swap(plain, bare, turn)
        swap(optimizer, ours, turn)
        _loss(bare, batch).backward()
        nn.utils.clip_grad_norm_(block, 0.01)
        plain.step()
        bare.zero_grad()
        _step(trainer, batch)
        ours.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(bare.parameters(), ours.parameters(), strict=True))


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (nn.LazyLinear(4), "parameter weight has no shape yet"),
        (nn.Linear(2, 2, dtype=torch.complex64), "keep torch.view_as_real"),
        (nn.Linear(2, 2, dtype=torch.float64), "call model.float"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_what_to_do(layer: nn.Module, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        _trainer(layer)
