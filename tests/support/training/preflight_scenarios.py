"""Models that fail in a mode, and what ranks do with them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.request import PrecisionRequest

Result = dict[str, object]
WIDTH = 8


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        raise RuntimeError('"half_only_backward" not implemented')


class Half(torch.nn.Module):
    """A kernel that does not exist for one dtype; it draws random numbers and counts its calls before it fails."""

    def __init__(self, where: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.where, self.dtype = where, dtype
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        self.get_buffer("calls").add_(1)
        if x.dtype is not self.dtype:
            return x
        if self.where == "forward":
            raise RuntimeError('"half_only" not implemented')
        out: torch.Tensor = _FailsBackward.apply(x)
        return out


def model_that_fails(where: str, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), Half(where, dtype), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1)
    )


class Stateful(torch.nn.Module):
    """Keeps state in every way that a module can: a buffer made anew, attributes, buffers that nothing can be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(1, WIDTH).expand(4, WIDTH))
        with torch.inference_mode():
            self.register_buffer("table", torch.ones(WIDTH))
        self.average: torch.Tensor
        self.register_buffer("average", torch.ones(WIDTH))
        self.hidden, self.calls = torch.zeros(WIDTH), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().float().mean(0)
        self.average = 0.9 * self.average + 0.1 * mean
        self.hidden = 0.9 * self.hidden + mean
        self.calls += 1
        out: torch.Tensor = x * self.average * self.get_buffer("mask") + self.hidden + self.calls
        return out


def batch(number: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number))


def loss_of(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(data)
    return (out.float() - 1).square().mean()


def failing_task() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor], object]:
    """For ``precision-trainer train``."""
    return model_that_fails("forward"), lambda position, size: torch.full((size, WIDTH), 1.0 + position % 7), loss_of


def _train(
    model: torch.nn.Module,
    rank: int,
    world: int,
    request: PrecisionRequest | None,
    *,
    bf16: bool = False,
    unused: bool = False,
) -> Result:
    torch.manual_seed(rank)
    mode = PrecisionMode.MIXED_BF16 if bf16 else PrecisionMode.FP32
    config = ExtendedFP16Config(precision_mode=mode, use_ddp=True, find_unused_parameters=unused)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    if bf16:
        trainer.modes.trial = None  # as if the mode had run before: what DDP itself does
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    for step in range(10):
        if rank == 0 and step == 3 and request is not None:
            trainer.request_source = lambda applied: request if request.generation > applied else None
        trainer.backward_and_step(trainer.training_step(batch(step * world + rank), loss_of))
    trainer.drain()
    return {
        "weights": [p.tolist() for p in model.parameters()],
        "mode": trainer.mode.wire,
        "generation": trainer.generation,
        "refused": refused,
    }


def _one_rank_fails(rank: int, world: int, where: str, *, unused: bool = False) -> Result:
    def model() -> torch.nn.Module:
        return model_that_fails(where, torch.bfloat16 if rank == 1 else torch.float64)

    found = _train(model(), rank, world, PrecisionRequest(1, PrecisionMode.MIXED_BF16), unused=unused)
    return {**found, "plain": _train(model(), rank, world, None, unused=unused)["weights"]}


def one_rank_fails_in_forward(rank: int, world: int) -> Result:
    """Rank 1 alone fails, and every rank goes back to FP32."""
    return _one_rank_fails(rank, world, "forward")


def one_rank_fails_in_backward(rank: int, world: int) -> Result:
    """The same, one pass later."""
    return _one_rank_fails(rank, world, "backward")


def one_rank_fails_in_forward_with_unused_parameters_sought(rank: int, world: int) -> Result:
    """As DDP's ``find_unused_parameters`` does it."""
    return _one_rank_fails(rank, world, "forward", unused=True)


def one_rank_fails_in_backward_with_unused_parameters_sought(rank: int, world: int) -> Result:
    """The same, one pass later."""
    return _one_rank_fails(rank, world, "backward", unused=True)


def a_mode_that_works(rank: int, world: int) -> Result:
    """Started in BF16, guarded and not."""

    def model() -> torch.nn.Module:
        return model_that_fails("forward", torch.float64)

    torch.manual_seed(rank)
    config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_BF16, use_ddp=True)
    guarded = model()
    optimizer = torch.optim.AdamW(guarded.parameters(), lr=1e-2, fused=True)
    trainer = ExtendedFP16Trainer(guarded, optimizer, config, "cpu", rank, world, allow_cpu=True)
    torch.manual_seed(rank)
    for step in range(10):
        trainer.backward_and_step(trainer.training_step(batch(step * world + rank), loss_of))
    trainer.drain()
    plain = _train(model(), rank, world, None, bf16=True)
    return {
        "guarded": [p.tolist() for p in guarded.parameters()],
        "plain": plain["weights"],
        "mode": trainer.mode.wire,
    }


def _among_ranks(rank: int, world: int, **settings: object) -> tuple[ExtendedFP16Trainer, list[str]]:
    """In FP32 for three steps, then asked for BF16."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    config = ExtendedFP16Config(precision_mode=PrecisionMode.FP32, use_ddp=True, **settings)  # type: ignore[arg-type]
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    request = PrecisionRequest(1, PrecisionMode.MIXED_BF16)
    trainer.request_source = lambda applied: request if trainer.step >= 3 and applied < 1 else None
    return trainer, refused


def _one_rank_leaves_batches_out(rank: int, world: int, leave_out: str) -> Result:
    """Rank 1 leaves two batches out in the first step of a mode, as a loop does that catches errors or looks at losses."""
    trainer, refused = _among_ranks(rank, world)
    left_out = number = 0
    while trainer.step < 9:
        number += 1
        trainer.begin_step()
        bad = rank == 1 and trainer.modes.trial is not None and left_out < 2

        def loss_fn(model: torch.nn.Module, data: torch.Tensor, bad: bool = bad) -> torch.Tensor:
            if bad and leave_out == "forward":
                raise ValueError("a broken sample")
            loss = loss_of(model, data)
            out: torch.Tensor = _FailsBackward.apply(loss) if bad and leave_out == "backward" else loss
            return out

        try:
            loss = trainer.training_step(batch(number * world + rank), loss_fn)
            if bad and leave_out == "loss":
                left_out += 1
                continue
            trainer.backward_and_step(loss)
        except (ValueError, RuntimeError):
            assert bad
            left_out += 1
    trainer.drain()
    return {
        "weights": [p.tolist() for p in trainer.model.parameters()],
        "mode": trainer.mode.wire,
        "refused": refused,
        "left_out": left_out,
    }


def leaves_out_a_batch_that_fails_in_forward(rank: int, world: int) -> Result:
    """In every mode."""
    return _one_rank_leaves_batches_out(rank, world, "forward")


def leaves_out_a_batch_that_fails_in_backward(rank: int, world: int) -> Result:
    """In every mode. Without us such a rank has reduced some gradients; with us none, so that it can go on."""
    return _one_rank_leaves_batches_out(rank, world, "backward")


def leaves_out_a_batch_after_a_look_at_its_loss(rank: int, world: int) -> Result:
    """Nothing fails; its backward pass is never asked for."""
    return _one_rank_leaves_batches_out(rank, world, "loss")


def validates_with_gradients(rank: int, world: int) -> Result:
    """A loop that forgets no_grad() in its validation: DDP goes on waiting for these gradients."""
    found: Result = {}
    for accumulation in (1, 2):
        weights: list[torch.Tensor] = []
        for validates in (False, True):
            trainer, _ = _among_ranks(rank, world, gradient_accumulation_steps=accumulation)
            for number in range(7 * accumulation):
                if validates and number % accumulation == 0:
                    loss_of(trainer.module, batch(99))
                trainer.backward_and_step(trainer.training_step(batch(number * world + rank), loss_of))
            trainer.drain()
            weights.append(torch.cat([p.detach().flatten() for p in trainer.model.parameters()]))
            found["mode"] = trainer.mode.wire
        # With accumulation DDP, with or without us, reduces every micro-batch then: the same mean in another order.
        found[f"same {accumulation}"] = torch.allclose(
            weights[0], weights[1], rtol=0, atol=0 if accumulation == 1 else 1e-4
        )
    return found
