"""The update of the weights: what clipping comes to, and the two ways to skip a step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_tools.bench.switching import HostWaits
from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, FP16Trainer, PrecisionMode
from precision_trainer.step.scaler import LossScaler
from precision_trainer.step.update import GradientUpdate

MAX_NORM = 0.01
STEPS = 8


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(24, 24) for _ in range(9)), nn.LayerNorm(24))


def _grouped(model: nn.Module) -> torch.optim.Optimizer:
    """Weights before vectors, as scripts that decay only the weights have them."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


def _loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(batch)
    return (output - 1).square().mean()


def _batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(16, 24, generator=generator) for _ in range(STEPS)]


def _same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def _train(model: nn.Module, trainer: ExtendedFP16Trainer | FP16Trainer) -> nn.Module:
    for batch in _batches():
        trainer.backward_and_step(trainer.training_step(batch, _loss))
    return model


def _train_bare(max_norm: float) -> nn.Module:
    model = _model()
    optimizer = _grouped(model)
    for batch in _batches():
        _loss(model, batch).backward()
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_clipped_fp32_is_clip_grad_norm_bit_for_bit_where_groups_reorder_the_parameters() -> None:
    model = _model()
    config = ExtendedFP16Config(enabled=False, max_grad_norm=MAX_NORM)
    _train(model, ExtendedFP16Trainer(model, _grouped(model), config))
    assert _same_weights(model, _train_bare(MAX_NORM))


def test_the_norm_is_summed_in_the_models_order_of_the_parameters() -> None:
    model = _model()
    optimizer = _grouped(model)
    update = GradientUpdate(optimizer, 0.0, device=torch.device("cpu"), order=model.parameters())
    differs = False
    generator = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=generator) * torch.randn((), generator=generator).exp()
        norms = {p: p.grad.norm() for p in model.parameters() if p.grad is not None}
        reordered = [p for group in optimizer.param_groups for p in group["params"]]
        expected = torch.linalg.vector_norm(torch.stack(list(norms.values())))
        differs |= bool(expected != torch.linalg.vector_norm(torch.stack([norms[p] for p in reordered])))
        assert torch.equal(update(None, measure=True).norm or torch.zeros(()), expected)
    assert differs  # otherwise this would not have caught it


def test_a_parameter_without_a_gradient_has_no_part_in_the_norm() -> None:
    model = _model()
    optimizer = _grouped(model)
    update = GradientUpdate(optimizer, 0.0, device=torch.device("cpu"), order=model.parameters())
    _loss(model, _batches()[0]).backward()
    first = next(model.parameters())
    first.grad = None
    expected = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(update(None, measure=True).norm or torch.zeros(()), expected)


def test_nothing_is_clipped_unless_asked_for_with_the_extended_class() -> None:
    model = _model()
    _train(model, ExtendedFP16Trainer(model, _grouped(model), ExtendedFP16Config(enabled=False)))
    assert _same_weights(model, _train_bare(0.0))


def test_nothing_is_clipped_with_the_basic_class() -> None:
    model = _model()
    _train(model, FP16Trainer(model, _grouped(model), enabled=False))
    assert _same_weights(model, _train_bare(0.0))


@pytest.mark.parametrize("scaled", [False, True], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_the_host_skips_what_the_fused_kernel_skips(kind: type[torch.optim.Optimizer], *, scaled: bool) -> None:
    device = torch.device("cpu")
    weights: list[list[torch.Tensor]] = []
    for on_device in (False, True):
        model = _model()
        optimizer = kind(model.parameters(), lr=1e-2, fused=True)  # type: ignore[call-arg]  # not of the base class
        update = GradientUpdate(optimizer, MAX_NORM, device=device)
        update.on_device = on_device
        scaler = LossScaler(ExtendedFP16Config(), device) if scaled else None
        found: list[float] = []
        for index, batch in enumerate(_batches()):
            loss = _loss(model, batch)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if index in (2, 3, 6):
                gradient = next(model.parameters()).grad
                assert gradient is not None
                gradient[0, 0] = float("inf") if index == 3 else float("nan")
            found.append(update(scaler, measure=False).found_inf.item())
        assert found == [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]
        weights.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_the_fused_way_of_a_gpu_never_waits_for_the_host() -> None:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    update = GradientUpdate(optimizer, MAX_NORM, device=torch.device("cpu"), order=model.parameters())
    update.on_device = True
    _loss(model, _batches()[0]).backward()
    with HostWaits() as waits:
        update(None, measure=True)
    assert waits.count == 0


def test_a_mode_is_still_reported_by_a_process_group_of_one_with_nothing_to_say() -> None:
    model = _model()
    config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_BF16)
    trainer = ExtendedFP16Trainer(model, _grouped(model), config, allow_cpu=True)
    _train(model, trainer)
    records = trainer.drain().records
    assert [record.mode for record in records] == [PrecisionMode.MIXED_BF16]
    assert records[0].step == STEPS - 1
    assert records[0].loss_scale == 1.0


class _Own(torch.optim.Optimizer):
    """Has a ``grad_scale`` of its own, and no kernel that reads it for torch."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self.grad_scale = 2.0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad, alpha=self.grad_scale)


def test_a_gradient_scale_of_an_optimizers_own_is_left_alone() -> None:
    model = torch.nn.Linear(8, 8)
    config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16)
    trainer = ExtendedFP16Trainer(model, _Own(list(model.parameters())), config, allow_cpu=True)
    for _ in range(4):
        trainer.backward_and_step(trainer.training_step(torch.ones(8, 8), lambda net, x: net(x).square().mean()))
