"""Scripts of two ranks over gloo. Each rank yields its own losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from lab.harmless.language import GPT, decayed
from lab.harmless.script import Setting, Start, case, noise, numbers
from precision_trainer import PrecisionMode

STEPS, WIDTH = 12, 8


def _batch(step: int, rows: int = 8) -> torch.Tensor:
    return noise(rows, WIDTH, seed=1000 * dist.get_rank() + step)


def _square(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net(x).float()
    return (out - 1).square().mean()


@case("two ranks, SGD", shape="DDP example", ranks=2)
def ddp_example(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 10), nn.ReLU(), nn.Linear(10, 5))
    loop = start(model, torch.optim.SGD(model.parameters(), lr=1e-2))
    for step in range(STEPS):
        yield loop.step((_batch(step), noise(8, 5, seed=step)), lambda net, pair: F.mse_loss(net(pair[0]), pair[1]))


@case("two ranks, SGD with momentum, batch norm, DistributedSampler", shape="imagenet loop with DDP", ranks=2)
def ddp_imagenet(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop = start(model, optimizer)
    data = TensorDataset(noise(64, 1, 8, 8, seed=1), numbers(3, 64, seed=2))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, shuffle=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for images, labels in DataLoader(data, batch_size=8, sampler=sampler):
            yield loop.step((images, labels), lambda net, pair: F.cross_entropy(net(pair[0]), pair[1]))


@case("two ranks, AdamW fused, accumulation without reduction, clipped, BF16", shape="nanoGPT with DDP", ranks=2)
def ddp_nano_gpt(start: Start) -> Iterator[float]:
    model = GPT()
    setting = Setting(mode=PrecisionMode.MIXED_BF16, accumulation=2, max_grad_norm=1.0, replay=True)
    loop = start(model, decayed(model), setting)
    for step in range(2 * STEPS):
        tokens = numbers(24, 4, 9, seed=1000 * dist.get_rank() + step)
        yield loop.step(
            tokens, lambda net, t: F.cross_entropy(net(t[:, :-1]).float().flatten(0, 1), t[:, 1:].flatten())
        )


@case(
    "two ranks, Adam, two networks, the generator's loss goes through the wrapped judge",
    shape="dcgan with DDP",
    ranks=2,
)
def ddp_gan(start: Start) -> Iterator[float]:
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    judge = nn.Sequential(nn.Linear(WIDTH, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    makes = start(generator, torch.optim.Adam(generator.parameters(), lr=1e-3))
    judges = start(judge, torch.optim.Adam(judge.parameters(), lr=1e-3))

    def judged(net: nn.Module, both: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.softplus(-net(both[0])).mean() + F.softplus(net(both[1])).mean()

    for step in range(STEPS):
        code = noise(8, 4, seed=500 * dist.get_rank() + step)
        yield judges.step((_batch(step), generator(code).detach()), judged)
        yield makes.step(code, lambda net, latent: F.softplus(judges.module(net(latent)).neg_()).mean())


@case("two ranks, Adam, the model is called twice a step", shape="SimCLR", ranks=2)
def ddp_two_views(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 8))

    def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        one, other = net(x), net(x.flip(1))
        return F.cross_entropy(one.float() @ other.float().T, torch.arange(len(x)))

    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=PrecisionMode.MIXED_BF16))
    for step in range(STEPS):
        yield loop.step(_batch(step), loss_of)


class _Gathered(torch.autograd.Function):
    """All ranks' rows; the gradient of this rank's own."""

    @staticmethod
    def forward(ctx: object, mine: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.contiguous()
        dist.all_reduce(whole)
        return whole.chunk(dist.get_world_size())[dist.get_rank()]


class _TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image, text = F.normalize(self.image(x).float()), F.normalize(self.text(x.flip(1)).float())
        logits: torch.Tensor = self.scale.exp() * _Gathered.apply(image) @ _Gathered.apply(text).T
        return logits


def _contrast(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = net(x)
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def _clip(start: Start, *, replay: bool) -> Iterator[float]:
    model = _TwoTowers()
    setting = Setting(mode=PrecisionMode.MIXED_BF16, replay=replay)
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2), setting)
    for step in range(2 * STEPS):
        yield loop.step(_batch(step), _contrast)


@case("two ranks, AdamW, all ranks' samples in the loss, BF16", shape="CLIP", ranks=2)
def clip(start: Start) -> Iterator[float]:
    yield from _clip(start, replay=False)


@case("two ranks, AdamW, all ranks' samples in a loss that is called pure, BF16", shape="CLIP", ranks=2)
def clip_called_pure(start: Start) -> Iterator[float]:
    yield from _clip(start, replay=True)


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, mine: torch.Tensor) -> torch.Tensor:
        whole = mine.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        whole = gradient.clone()
        dist.all_reduce(whole)
        return whole


class _SyncBatchNorm(nn.Module):
    """torch's own is for GPUs: collectives in forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x) * dist.get_world_size()
        mean = _Summed.apply(x.sum(0)) / rows
        variance = _Summed.apply((x - mean).square().sum(0)) / rows
        normed: torch.Tensor = self.weight * (x - mean) * torch.rsqrt(variance + 1e-5)
        return normed


def _synchronized(start: Start, setting: Setting) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), _SyncBatchNorm(), nn.ReLU(), nn.Linear(16, 1))
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), setting)
    for step in range(2 * STEPS):
        yield loop.step(_batch(step), _square)


@case("two ranks, Adam, collectives in forward and backward", shape="synchronized batch norm", ranks=2)
def synchronized_batch_norm(start: Start) -> Iterator[float]:
    yield from _synchronized(start, Setting())


@case("two ranks, Adam, the same in BF16, in a loss that is called pure", shape="synchronized batch norm", ranks=2)
def synchronized_batch_norm_called_pure(start: Start) -> Iterator[float]:
    yield from _synchronized(start, Setting(mode=PrecisionMode.MIXED_BF16, replay=True))


@dataclass
class _Output:
    logits: torch.Tensor
    chosen: int


class _Experts(nn.Module):
    """One of three experts a batch; the output is an object of the script's own."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor, number: int) -> _Output:
        return _Output(self.experts[number](x), number)


def _mixture(start: Start, setting: Setting, *, larger: float = 1.0) -> Iterator[float]:
    model = _Experts()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), setting)

    def loss_of(net: nn.Module, batch: tuple[torch.Tensor, int]) -> torch.Tensor:
        found: _Output = net(*batch)
        return found.logits.float().square().mean()

    for step in range(STEPS):
        inputs = _batch(step) * (larger if dist.get_rank() else 1.0)
        yield loop.step((inputs, (step + dist.get_rank()) % 3), loss_of)


@case(
    "two ranks, Adam, experts unused on some ranks, an object as output", shape="mixture of experts with DDP", ranks=2
)
def ddp_experts(start: Start) -> Iterator[float]:
    yield from _mixture(start, Setting(find_unused_parameters=True))


@case(
    "two ranks, Adam, experts unused on some ranks, FP16 that overflows on one rank",
    shape="mixture of experts with DDP",
    ranks=2,
)
def ddp_experts_fp16(start: Start) -> Iterator[float]:
    setting = Setting(mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**20, find_unused_parameters=True, replay=True)
    yield from _mixture(start, setting, larger=100.0)


@case("two ranks, AdamW, a static graph, activation checkpointing", shape="DDP with checkpointing", ranks=2)
def ddp_static_graph(start: Start) -> Iterator[float]:
    model = GPT(recompute=True)
    loop = start(model, decayed(model), Setting(static_graph=True))
    for step in range(STEPS):
        tokens = numbers(24, 4, 9, seed=1000 * dist.get_rank() + step)
        yield loop.step(tokens, lambda net, t: F.cross_entropy(net(t[:, :-1]).flatten(0, 1), t[:, 1:].flatten()))


@case("two ranks, AdamW fused, FP16 whose first steps overflow on one rank", ranks=2)
def ddp_overflow(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
    setting = Setting(mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**20, replay=True)
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), setting)
    for step in range(2 * STEPS):
        yield loop.step(_batch(step) * (1 + 100 * dist.get_rank()), _square)
