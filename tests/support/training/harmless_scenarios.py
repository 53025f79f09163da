"""Training loops that look alike without us and with us: what the ranks of a process group do, and what one process does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.distributed as dist

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.sentinel import SentinelConfig

Result = dict[str, object]
Loss = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]
STEPS, WIDTH = 70, 8
EAGER = SentinelConfig(window_steps=8, patience_windows=1024, probe_steps=16, shadow_steps=16)
"""Looks as often as it can, and never changes the mode: what differs from no sentinel at all is its looking."""
OFF = SentinelConfig(enabled=False)


class Case:
    """A model and the loss that a script computes with it."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))

    def batch(self, step: int) -> torch.Tensor:
        return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        return out.float().square().mean()


class HiddenState(Case):
    """A recurrent state is carried from step to step, outside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(4, WIDTH)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch + self.hidden).float()
        self.hidden = out.detach().tanh()
        return out.square().mean()


class IteratorInLoss(Case):
    """The loss draws its own data."""

    def __init__(self) -> None:
        super().__init__()
        self.data: Iterator[torch.Tensor] = (super(IteratorInLoss, self).batch(i) for i in itertools.count())

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return super().loss(model, next(self.data))


class LateBound(Case):
    """The loss reads a variable that the loop clears after the step."""

    current: torch.Tensor | None = None

    def batch(self, step: int) -> torch.Tensor:
        self.current = super().batch(step)
        return self.current

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        assert self.current is not None
        loss = super().loss(model, self.current)
        self.current = None
        return loss


class MadeUnderAutocast(Case):
    """The batch is the output of another, frozen network under the mode's own autocast."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)

    def batch(self, step: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            out: torch.Tensor = self.encoder(super().batch(step))
        return out


class UsedGraph(Case):
    """The batch hangs on a graph of the model itself, which the step's backward pass frees."""

    def batch(self, step: int) -> torch.Tensor:
        out: torch.Tensor = self.model(super().batch(step)).tanh()
        return out


class InPlace(Case):
    """The loss divides the batch where it lies, and the loop fills the same one again a few steps later."""

    def __init__(self) -> None:
        super().__init__()
        self.data = super().batch(0)

    def batch(self, step: int) -> torch.Tensor:
        return self.data if step % 8 else self.data.copy_(super().batch(step))

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return super().loss(model, batch.div_(2))


class HalfOnly(Case):
    """A kernel that exists in 16 bits only."""

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        if out.dtype is torch.float32:
            raise RuntimeError('"half_only" not implemented for Float')
        return out.float().square().mean()


class OtherNetwork(Case):
    """A second network's running statistics advance with each call of the loss, as a discriminator's do."""

    def __init__(self) -> None:
        super().__init__()
        self.other = torch.nn.BatchNorm1d(WIDTH)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.other(model(batch).float())
        assert self.other.running_var is not None
        again: torch.Tensor = model(batch)
        return out.square().mean() + (again.float() * self.other.running_var).square().mean()


class Experts(Case):
    """One of two experts is used a step; the other has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        assert isinstance(model, torch.nn.Sequential)
        self.turn += 1
        return super().loss(model[self.turn % 2], batch)


class PythonDraws(Case):
    """The loss mixes by a share that Python draws, as mixup does."""

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return super().loss(model, batch * random.random())


class NumpyDraws(Case):
    """The same, drawn by NumPy."""

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return super().loss(model, batch * float(np.random.beta(0.2, 0.2)))


class OwnGenerator(Case):
    """The loss adds noise from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(5)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return super().loss(model, batch + torch.randn(batch.shape, generator=self.noise))


class OddOutputs(Case):
    """Layers whose output has no element at all: there is nothing to measure."""

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nothing: torch.Tensor = model(batch[:0])
        return super().loss(model, batch) + nothing.float().sum()


CASES: dict[str, type[Case]] = {
    kind.__name__: kind
    for kind in (
        HiddenState, IteratorInLoss, LateBound, MadeUnderAutocast, UsedGraph, InPlace, HalfOnly, OtherNetwork, Experts,
        PythonDraws, NumpyDraws, OwnGenerator, OddOutputs,
    )
}  # fmt: skip


def losses(
    case: Case,
    sentinel: SentinelConfig,
    *,
    accumulation: int = 1,
    steps: int = STEPS,
    loss: Loss | None = None,
    replay: Loss | None = None,
) -> list[float]:
    """Train in FP16 from a scale that overflows at first, so that bad steps are looked into and good ones too."""
    random.seed(1)
    np.random.seed(1)
    config = ExtendedFP16Config(
        precision_mode=PrecisionMode.MIXED_FP16,
        loss_scale=2.0**24,
        sentinel=sentinel,
        gradient_accumulation_steps=accumulation,
    )
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-2, fused=True)
    trainer = ExtendedFP16Trainer(case.model, optimizer, config, allow_cpu=True)
    seen = []
    for micro in range(steps * accumulation):
        batch = case.batch(micro)
        value = trainer.training_step(batch, loss or case.loss, replay)
        trainer.backward_and_step(value)
        seen.append(float(value.detach()))
    return seen


def _train_together(
    rank: int, world: int, model: torch.nn.Module, loss_of: Loss, sentinel: SentinelConfig, replay: Loss | None = None
) -> str:
    torch.manual_seed(rank)
    config = ExtendedFP16Config(
        precision_mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**24, use_ddp=True, sentinel=sentinel
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    for step in range(STEPS):
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step * world + rank))
        trainer.backward_and_step(trainer.training_step(batch, loss_of, replay))
    trainer.drain()
    return str([parameter.tolist() for parameter in model.parameters()])


def _clip_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Contrastive over all ranks' samples."""
    mine = model(batch).float().contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine.detach())
    parts[dist.get_rank()] = mine
    everyone = torch.cat(parts)
    return torch.nn.functional.cross_entropy(everyone @ everyone.T, torch.arange(len(everyone)))


class _SyncNorm(torch.nn.Module):
    """Normalizes by the mean over all ranks: a collective in forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().float().mean(0)
        dist.all_reduce(mean)
        return x - mean / dist.get_world_size()


def _mean_square(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(batch)
    return (out.float() - 1).square().mean()


def collectives_in_the_loss(rank: int, world: int) -> Result:
    """With the sentinel and without: the weights at the end."""
    found: Result = {}
    for name, sentinel in (("with", EAGER), ("without", OFF)):
        found[f"clip {name}"] = _train_together(rank, world, Case().model, _clip_loss, sentinel)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), _SyncNorm(), torch.nn.Linear(WIDTH, 4))
        found[f"norm {name}"] = _train_together(rank, world, model, _mean_square, sentinel)
    found["clip replayed"] = _train_together(rank, world, Case().model, _clip_loss, EAGER, _clip_loss)
    return found


class Masked(torch.nn.Module):
    """A causal mask of -inf, under two names: a buffer, as in many attention layers, or a frozen parameter."""

    mask: torch.Tensor

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))
        mask = torch.full((WIDTH, WIDTH), float("-inf")).triu(1)
        parameter = torch.nn.Parameter(mask, requires_grad=False)
        for name in ("mask", "same"):
            if frozen:
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight + self.mask).softmax(-1)


def masked_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``."""
    return Masked(frozen=False), lambda position, size: torch.full((size, WIDTH), 1.0 + position % 7), _mean_square


def frozen_mask_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``."""
    return Masked(frozen=True), lambda position, size: torch.full((size, WIDTH), 1.0 + position % 7), _mean_square


def _counting(position: int, size: int) -> torch.Tensor:
    return torch.full((size, WIDTH), 0.01 * position)


def spiked_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``: at sample 30 the loss is huge, and its gradient's square infinite."""
    torch.manual_seed(0)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return _mean_square(model, batch) * (1e22 if round(float(batch[0, 0]) * 100) == 30 else 1.0)

    return torch.nn.Linear(WIDTH, WIDTH), _counting, loss


class _MaskedLate(torch.nn.Module):
    """Its mask is of zeros until sample 30."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if float(x[0, 0]) > 0.295:
            self.get_buffer("mask")[1:] = float("-inf")
        out: torch.Tensor = self.linear(x) * (self.get_buffer("mask") + 1.0).softmax(-1)
        return out


def late_mask_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``."""
    torch.manual_seed(0)
    return _MaskedLate(), _counting, _mean_square


class _Expanded(torch.nn.Module):
    """A buffer that shows one number many times; torch does not load into such a one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(1).expand(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x) * self.scale
        return out


def expanded_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``."""
    torch.manual_seed(0)
    return _Expanded(), _counting, _mean_square


def normed_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``: running statistics, and one batch of NaN, at sample 240 (step 30 of 8 samples)."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH))

    def batch(position: int, size: int) -> torch.Tensor:
        found = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(position))
        return found * float("nan") if position == 240 else found

    return model, batch, _mean_square


class _Either(torch.nn.Module):
    """Of two layers a batch uses one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers[int(x[0, 0]) % 2](x)
        return out


def unused_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``."""
    return _Either(), lambda position, size: torch.full((size, WIDTH), float(position // size % 3)), _mean_square


class _Adapted(torch.nn.Module):
    """A trained FP32 adapter beside a frozen BF16 layer and an FP64 buffer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = torch.nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16).requires_grad_(requires_grad=False)
        self.adapter = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("exact", torch.full((2,), 0.1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x.bfloat16()).float() + self.adapter(x)
        return out


def broken_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``: a loss with a mistake in it."""

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("no batch of this size")

    return _Adapted(), lambda position, size: torch.full((size, WIDTH), 1.0), loss


def adapted_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], Loss]:
    """For ``precision-trainer train``."""
    return _Adapted(), lambda position, size: torch.full((size, WIDTH), 1.0 + position % 7), _mean_square
