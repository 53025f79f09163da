"""What a change of precision, and what stands around it, must not disturb."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from lab.harmless.language import GPT, decayed
from lab.harmless.script import Setting, Start, case, noise, numbers
from precision_trainer import PrecisionMode

STEPS, WIDTH = 30, 8


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def _square(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(net(x).float().squeeze(1), x.sum(1).sin())


@case("modes, AdamW fused, FP16 whose first steps overflow")
def overflowing_fp16(start: Start) -> Iterator[float]:
    model = _small()
    setting = Setting(mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**30, replay=True)
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True), setting)
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)


@case("modes, SGD with momentum, accumulation, FP16 whose first steps overflow")
def overflowing_momentum(start: Start) -> Iterator[float]:
    model = _small()
    setting = Setting(mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**30, accumulation=2, max_grad_norm=0.5)
    # Not fused: there torch leaves the momentum undefined where the first step is skipped.
    loop = start(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), setting)
    for step in range(2 * STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)


@case("modes, AdamW, FP32 to BF16 to FP32 while training")
def switched_while_training(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2), Setting(replay=True))
    for step in range(STEPS):
        if step in (10, 20):
            loop.switch(PrecisionMode.MIXED_BF16 if step == 10 else PrecisionMode.FP32)
        yield loop.step(noise(16, WIDTH, seed=step), _square)


@case("modes, AdamW, torch.compile (aot_eager)", shape="torch.compile tutorial")
def compiled(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2), Setting(compile_backend="aot_eager"))
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)


@case("modes, SGD, a model that the script compiled itself")
def compiled_before(start: Start) -> Iterator[float]:
    model = torch.compile(_small(), backend="aot_eager")
    assert isinstance(model, nn.Module)
    loop = start(
        model, torch.optim.SGD(model.parameters(), lr=0.1), Setting(mode=PrecisionMode.MIXED_BF16, replay=True)
    )
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)


@case("modes, Adam, the script has an autocast of its own in its loss")
def own_autocast(start: Start) -> Iterator[float]:
    model = _small()

    def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return _square(net, x)

    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(replay=True))
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), loss_of)


@case("modes, Adam, deterministic algorithms and anomaly detection on", shape="imagenet loop with --seed")
def deterministic(start: Start) -> Iterator[float]:
    torch.use_deterministic_algorithms(True)
    try:
        with torch.autograd.set_detect_anomaly(True):
            model = GPT()
            loop = start(model, decayed(model), Setting(mode=PrecisionMode.MIXED_BF16, max_grad_norm=1.0))
            for step in range(STEPS):
                tokens = numbers(24, 4, 9, seed=step)
                yield loop.step(
                    tokens, lambda net, t: F.cross_entropy(net(t[:, :-1]).float().flatten(0, 1), t[:, 1:].flatten())
                )
    finally:
        torch.use_deterministic_algorithms(False)


def _with_double_default(start: Start, mode: PrecisionMode) -> Iterator[float]:
    torch.set_default_dtype(torch.float64)
    try:
        model = _small().float()
        setting = Setting(mode=mode, max_grad_norm=1.0)
        loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), setting)
        for step in range(STEPS):
            yield loop.step(noise(16, WIDTH, seed=step).float(), _square)
    finally:
        torch.set_default_dtype(torch.float32)


@case("modes, Adam, clipped, FP64 is the default type of new tensors")
def double_default(start: Start) -> Iterator[float]:
    yield from _with_double_default(start, PrecisionMode.FP32)


@case("modes, Adam, clipped, FP64 is the default type of new tensors, FP16 with loss scaling")
def double_default_fp16(start: Start) -> Iterator[float]:
    yield from _with_double_default(start, PrecisionMode.MIXED_FP16)


@case("modes, NAdam, the loss is FP64, BF16")
def double_loss(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(
        model, torch.optim.NAdam(model.parameters(), lr=1e-2), Setting(mode=PrecisionMode.MIXED_BF16, replay=True)
    )
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), lambda net, x: net(x).double().square().mean())
