"""What must be refused at construction, with a reason, since it would not be trained rightly."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lab.harmless.script import Setting, Start, refusal
from precision_trainer import PrecisionMode


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


@refusal(ranks=2)
def fsdp2_example(start: Start) -> object:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return start(model, _adam(model))


@refusal(ranks=2)
def wrapped_by_the_script(start: Start) -> object:
    model = DistributedDataParallel(nn.Linear(8, 8))
    return start(model, _adam(model))


@refusal()
def lbfgs(start: Start) -> object:
    """Neural style transfer and time_sequence_prediction use it."""
    model = nn.Linear(8, 8)
    return start(model, torch.optim.LBFGS(model.parameters()))


class _Sam(torch.optim.SGD):
    """Sharpness-aware minimisation in the usual shape: up to where the loss is worst nearby, and down from there."""

    def first_step(self) -> None:
        """Up."""

    def second_step(self) -> None:
        """Down."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Both."""
        assert closure is not None, "Sharpness Aware Minimization requires closure, but it was not provided"


@refusal()
def sharpness_aware(start: Start) -> object:
    model = nn.Linear(8, 8)
    return start(model, _Sam(model.parameters(), lr=0.1))


@refusal()
def sparse_embeddings(start: Start) -> object:
    model = nn.Sequential(nn.Embedding(16, 8, sparse=True), nn.Linear(8, 8))
    return start(model, torch.optim.SGD(model.parameters(), lr=0.1))


@refusal()
def half_weights(start: Start) -> object:
    model = nn.Linear(8, 8).half()
    return start(model, _adam(model))


@refusal()
def double_weights(start: Start) -> object:
    model = nn.Linear(8, 8).double()
    return start(model, _adam(model))


@refusal()
def complex_weights(start: Start) -> object:
    """Fourier neural operators have them."""
    model = nn.Linear(8, 8, dtype=torch.complex64)
    return start(model, _adam(model))


@refusal()
def used_optimizer_in_a_cold_mode(start: Start) -> object:
    model = nn.Linear(8, 8)
    optimizer = _adam(model)
    torch.autograd.backward(model(torch.ones(1, 8)).sum())
    optimizer.step()
    return start(model, optimizer, Setting(mode=PrecisionMode.BF16))
