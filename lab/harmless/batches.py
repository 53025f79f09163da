"""What scripts do with their batches: bind them late, draw them in the loss, write to them, make them of a graph."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from lab.harmless.script import Setting, Start, case, noise, numbers
from precision_trainer import PrecisionMode

STEPS, WIDTH = 24, 8
_BF16 = PrecisionMode.MIXED_BF16


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))


def _square(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net(x).float()
    return (out - 1).square().mean()


def _batch(step: int) -> torch.Tensor:
    return noise(16, WIDTH, seed=step)


@case("batches, Adam, the loss reads a variable of the loop, BF16")
def bound_late(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=_BF16))
    for step in range(STEPS):
        batch = _batch(step)
        yield loop.step(None, lambda net, _: _square(net, batch))  # noqa: B023  (what is tried)


@case("batches, Adam, the loss draws the next batch itself, BF16")
def drawn_in_the_loss(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=_BF16))
    batches = map(_batch, range(STEPS))
    for _ in range(STEPS):
        yield loop.step(batches, lambda net, drawn: _square(net, next(drawn)))


@case("batches, Adam, made by a frozen network under autocast, BF16", shape="latent diffusion")
def made_under_autocast(start: Start) -> Iterator[float]:
    model, encoder = _small(), nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
    setting = Setting(mode=_BF16, replay=True)
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), setting)
    for step in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            encoded = encoder(_batch(step))
        yield loop.step(encoded, _square)


@case("batches, Adam, hanging on a graph that the backward pass frees, BF16")
def of_a_graph(start: Start) -> Iterator[float]:
    model, warp = _small(), nn.Linear(WIDTH, WIDTH)
    trained = torch.optim.Adam([*model.parameters(), *warp.parameters()], lr=1e-2)
    loop = start(nn.ModuleList((model, warp)), trained, Setting(mode=_BF16, replay=True))
    for step in range(STEPS):
        yield loop.step(warp(_batch(step)), lambda nets, x: _square(nets.get_submodule("0"), x))


@case("batches, Adam, divided in place by the loss, of a buffer that the loop fills again, BF16")
def written_to(start: Start) -> Iterator[float]:
    model, buffer = _small(), torch.empty(16, WIDTH)
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=_BF16, replay=True))
    for step in range(STEPS):
        buffer.copy_(_batch(step))
        yield loop.step(buffer, lambda net, x: _square(net, x.div_(2)))


@case("batches, AdamW, the usual sentinel over more steps than lie between its looks, BF16")
def usual_sentinel(start: Start) -> Iterator[float]:
    model = _small()
    setting = Setting(mode=_BF16, replay=True, usual_sentinel=True)
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-3), setting)
    for step in range(560):
        yield loop.step(_batch(step), _square)


@case("batches, AdamW, each label of one batch in ten is masked, the usual sentinel, BF16", shape="instruction tuning")
def masked_labels(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-3), Setting(mode=_BF16, usual_sentinel=True))
    for step in range(280):
        labels = numbers(4, 16, seed=step) if step % 10 else torch.full((16,), -100)
        yield loop.step((_batch(step), labels), lambda net, pair: F.cross_entropy(net(pair[0]).float(), pair[1]))


@case("batches, AdamW, the loss pops the labels of its batch, BF16", shape="compute_loss of Hugging Face's Trainer")
def popped_labels(start: Start) -> Iterator[float]:
    def loss_of(net: nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = inputs.pop("labels")
        return F.cross_entropy(net(inputs["x"]).float(), labels)

    model = _small()
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2), Setting(mode=_BF16))
    for step in range(STEPS):
        yield loop.step({"x": _batch(step), "labels": numbers(4, 16, seed=step)}, loss_of)


@case("batches, SGD, 64 of them a step, clipped, FP16")
def sixty_four_a_step(start: Start) -> Iterator[float]:
    model = _small()
    setting = Setting(
        mode=PrecisionMode.MIXED_FP16, accumulation=64, max_grad_norm=1.0, loss_scale=2.0**20, replay=True
    )
    loop = start(model, torch.optim.SGD(model.parameters(), lr=0.1), setting)
    for number in range(64 * STEPS):
        yield loop.step(_batch(number), _square)
