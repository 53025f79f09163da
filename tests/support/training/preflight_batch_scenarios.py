"""Losses that consume their batches, or fail for a moment, in the first step of a mode among ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.request import PrecisionRequest

from .preflight_scenarios import SETTINGS, WIDTH, Averaging, Result, Settings, batch, loss_of, model_that_fails

BF16 = PrecisionMode.MIXED_BF16
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]


def _train(
    model: torch.nn.Module,
    rank: int,
    world: int,
    loss_fn: Loss,
    *,
    asked: bool = True,
    given: Callable[[torch.Tensor], object] = lambda data: data,
    settings: Settings | None = None,
) -> Result:
    """In FP32; after three steps asked for BF16, if ``asked``. Batches that are used up are left out."""
    config = ExtendedFP16Config(precision_mode=PrecisionMode.FP32, use_ddp=True, **(settings or {}))  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    request = PrecisionRequest(1, BF16)
    trainer.request_source = lambda newest: request if asked and trainer.step >= 3 and newest < 1 else None
    used_up = number = 0
    while trainer.step < 8:
        number += 1
        try:
            trainer.backward_and_step(trainer.training_step(given(batch(number * world + rank)), loss_fn))
        except IndexError:
            used_up += 1
    trainer.drain()
    return {
        "weights": [p.tolist() for p in model.parameters()],
        "mode": trainer.mode.wire,
        "refused": refused,
        "used up": used_up,
    }


def consumes_its_batch(rank: int, world: int) -> Result:
    """Rank 1 alone fails in BF16, with a loss that takes its inputs out of the batch: without a request, and with one."""
    found: Result = {}
    for where in ("forward", "backward"):
        plain, asked = (
            _train(
                model_that_fails(where, torch.bfloat16 if rank == 1 else torch.float64),
                rank,
                world,
                lambda model, data: loss_of(model, data.pop("x")),
                asked=asked,
                given=lambda data: {"x": data},
            )
            for asked in (False, True)
        )
        found[where] = {
            "same": plain["weights"] == asked["weights"],
            "mode": asked["mode"],
            "used up": asked["used up"],
        }
    return found


def uses_its_batch_up(rank: int, world: int) -> Result:
    """Rank 1 alone fails in BF16, with batches that cannot be put back: both ranks fail in FP32, in another way."""

    def loss_fn(model: torch.nn.Module, data: deque[torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = model(data.popleft())
        if rank and out.dtype is torch.bfloat16:
            raise RuntimeError("no such kernel")
        return out.float().square().mean()

    return _train(torch.nn.Linear(WIDTH, 1), rank, world, loss_fn, given=lambda data: deque([data]))


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fails: list[str]) -> torch.Tensor:  # noqa: ANN401
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401
        if ctx.fails:
            raise ValueError(ctx.fails.pop())
        return gradients[0], None


def fails_for_a_moment(rank: int, world: int) -> Result:
    """Rank 1 fails in each pass of its first micro-batch in BF16, once; and not at all."""

    def train(where: str, settings: Settings) -> Result:
        torch.manual_seed(0)
        model = torch.nn.Sequential(Averaging(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
        fails = ["of a moment"] if where and rank else []

        def loss_fn(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
            out = net(data)
            low = out.dtype is torch.bfloat16
            if low and fails and where == "forward":
                raise ValueError(fails.pop())
            loss = (out.float() - 1).square().mean()
            passed: torch.Tensor = _Passes.apply(loss, fails) if low else loss
            return passed

        return {**_train(model, rank, world, loss_fn, settings=settings), "left": len(fails)}

    return {
        f"{name} {where}": {"passed": train(where, settings), "plain": train("", settings)}
        for name, settings in SETTINGS.items()
        for where in ("forward", "backward")
    }


def one_rank_moves_weights(rank: int, world: int) -> Result:
    """Rank 1 alone fails in BF16; rank 0 alone changes weights in each pass, by nothing."""
    model = torch.nn.Linear(WIDTH, 1)
    computed: list[str] = []

    def loss_fn(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for parameter in net.parameters() if rank == 0 else ():
                parameter.add_(0)
        out: torch.Tensor = net(data)
        computed.append(str(out.dtype))
        if rank and out.dtype is torch.bfloat16:
            raise RuntimeError("no such kernel")
        return out.float().square().mean()

    return {**_train(model, rank, world, loss_fn), "in bf16": computed.count("torch.bfloat16")}
