"""Models that fail in a mode, and what ranks do with them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.request import PrecisionRequest

Result = dict[str, object]
Settings = dict[str, object]
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


class Averaging(torch.nn.Module):
    """Reads in training what it keeps of its data: ranks train apart unless buffers are broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        average = self.get_buffer("average")
        average.mul_(0.9).add_(x.detach().float().mean(0), alpha=0.1)
        return x * average


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
    request: PrecisionRequest | None = None,
    *,
    mode: PrecisionMode = PrecisionMode.FP32,
    guarded: bool = True,
    settings: Settings,
) -> Result:
    """Ten steps; ``guarded`` False: as if every mode had run before, which is what DDP itself does."""
    torch.manual_seed(rank)
    config = ExtendedFP16Config(precision_mode=mode, use_ddp=True, **settings)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    number = 0
    while trainer.step < 10:
        if rank == 0 and trainer.step == 3 and request is not None:
            trainer.request_source = lambda applied: request if request.generation > applied else None
        trainer.begin_step()
        if not guarded:
            trainer.modes.trial = None
        for _ in range(config.gradient_accumulation_steps):
            trainer.backward_and_step(trainer.training_step(batch(number * world + rank), loss_of))
            number += 1
    trainer.drain()
    return {
        "weights": [p.tolist() for p in model.parameters()],
        "buffers": [b.tolist() for b in model.buffers()],
        "mode": trainer.mode.wire,
        "generation": trainer.generation,
        "refused": refused,
    }


SETTINGS: dict[str, Settings] = {
    "plain": {},
    "unused_parameters_sought": {"find_unused_parameters": True},
    "buffers_broadcast": {"broadcast_buffers": True},
    "static_graph": {"static_graph": True},
    "accumulation": {"gradient_accumulation_steps": 3},
    "accumulation_and_buffers": {"gradient_accumulation_steps": 3, "broadcast_buffers": True},
}
"""Under which a mode is tried: what DDP does about them must not be noticed."""


def one_rank_fails(rank: int, world: int) -> Result:
    """Rank 1 alone fails in each pass under each setting, and every rank goes back to FP32."""

    def model(where: str) -> torch.nn.Module:
        return model_that_fails(where, torch.bfloat16 if rank == 1 else torch.float64)

    found: Result = {}
    for name, settings in SETTINGS.items():
        for where in ("forward", "backward"):
            asked = _train(model(where), rank, world, PrecisionRequest(1, PrecisionMode.MIXED_BF16), settings=settings)
            found[f"{name} {where}"] = {**asked, "plain": _train(model(where), rank, world, settings=settings)}
    return found


def one_rank_fails_from_the_start(rank: int, world: int) -> Result:
    """As a restart under a request goes, under each setting."""
    found: Result = {}
    for name, settings in SETTINGS.items():
        model = model_that_fails("forward", torch.bfloat16 if rank == 1 else torch.float64)
        found[name] = _train(model, rank, world, mode=PrecisionMode.MIXED_BF16, settings=settings)
    return found


def a_mode_that_works(rank: int, world: int) -> Result:
    """Guarded and not, under each setting: BF16 from the start, and asked for."""

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        layers = (Averaging(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1))
        return torch.nn.Sequential(*layers)

    found: Result = {}
    for name, settings in SETTINGS.items():
        for how, mode, request in (
            ("started", PrecisionMode.MIXED_BF16, None),
            ("asked", PrecisionMode.FP32, PrecisionRequest(1, PrecisionMode.MIXED_BF16)),
        ):
            guarded, plain = (
                _train(model(), rank, world, request, mode=mode, guarded=guards, settings=settings)
                for guards in (True, False)
            )
            found[f"{name} {how}"] = {"guarded": guarded, "plain": plain}
    return found


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


def _one_rank_leaves_batches_out(rank: int, world: int, leave_out: str, accumulation: int) -> Result:
    """Rank 1 leaves two batches out in the first step of a mode, as a loop does that catches errors or looks at losses."""
    trainer, refused = _among_ranks(rank, world, gradient_accumulation_steps=accumulation)
    left_out = number = taken = 0
    while trainer.step < 9:
        number += 1
        if taken % accumulation == 0:
            trainer.begin_step()
        last = taken % accumulation == accumulation - 1
        bad = rank == 1 and last and trainer.modes.trial is not None and left_out < 2

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
            taken += 1
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


def leaves_out_batches(rank: int, world: int) -> Result:
    """That fail in every mode, in each pass; and after a look at the loss, where nothing fails and no gradient is asked for.

    Without us a rank whose backward pass failed has reduced some gradients; with us none, so that it can go on.
    """
    return {
        f"{leave_out} {accumulation}": _one_rank_leaves_batches_out(rank, world, leave_out, accumulation)
        for accumulation in (1, 3)
        for leave_out in ("forward", "backward", "loss")
    }


def what_scripts_do_around_a_trial(rank: int, world: int) -> Result:
    """Guarded and not: a forward pass of the same model between a step's two passes, and one without gradients before it."""

    def train(settings: Settings, *, between: bool, before: bool, guarded: bool) -> list[list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(Averaging(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
        config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_BF16, use_ddp=True, **settings)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
        number = 0
        while trainer.step < 4:
            trainer.begin_step()
            if not guarded:
                trainer.modes.trial = None
            if before:
                with torch.no_grad():
                    trainer.module(batch(90 + rank))
            for _ in range(config.gradient_accumulation_steps):
                number += 1
                loss = trainer.training_step(batch(number * world + rank), loss_of)
                if between:
                    loss_of(trainer.module, batch(80 + rank))
                trainer.backward_and_step(loss)
        trainer.drain()
        return [p.detach().flatten().tolist() for p in (*model.parameters(), *model.buffers())]

    found: Result = {}
    for name, settings in SETTINGS.items():
        for between, before in ((True, False), (False, True)):
            # DDP itself waits for the gradients of the later forward pass where it seeks unused parameters, and after one it
            # broadcasts before each micro-batch, where a trial does it once.
            if between and name in ("unused_parameters_sought", "accumulation_and_buffers"):
                continue
            guarded, plain = (
                train(settings, between=between, before=before, guarded=guards) for guards in (True, False)
            )
            found[f"{name} {'between' if between else 'before'}"] = {"guarded": guarded, "plain": plain}
    return found


def static_graph_and_buffers(rank: int, world: int) -> Result:
    """Rank 1 fails before it calls the model, in the first step of the process."""
    model = torch.nn.Sequential(Averaging(), torch.nn.Linear(WIDTH, 1))
    config = ExtendedFP16Config(
        precision_mode=PrecisionMode.MIXED_BF16, use_ddp=True, static_graph=True, broadcast_buffers=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    left_out = False

    def loss_fn(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        nonlocal left_out
        if rank == 1 and not left_out:
            left_out = True
            raise KeyError("label")
        return loss_of(net, data)

    number = 0
    while trainer.step < 4:
        number += 1
        try:
            trainer.backward_and_step(trainer.training_step(batch(number), loss_fn))
        except KeyError:
            continue
    trainer.drain()
    return {"steps": trainer.step, "weights": [p.tolist() for p in model.parameters()]}


class FailsOnMarked(torch.nn.Module):
    """A kernel that does not exist in BF16 for the data that only some batches have."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.kernel, self.inner = Half(where, torch.bfloat16), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner: torch.Tensor = self.inner(x)
        out: torch.Tensor = self.kernel(inner) if bool(x[0, 0] > 50) else inner
        return out


def model_that_fails_on_marked(where: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(FailsOnMarked(where), torch.nn.Linear(WIDTH, 1))


def marked(number: int, *, mark: bool) -> torch.Tensor:
    """A batch for :class:`FailsOnMarked`."""
    found = batch(number)
    found[0, 0] = 100.0 if mark else 0.0
    return found


def a_later_micro_batch_fails_on_one_rank(rank: int, world: int) -> Result:
    """The second of three, on rank 1: the first is left out of the step on every rank."""

    def data(step: int, micro: int, of_rank: int) -> torch.Tensor:
        return marked((step * 3 + micro) * world + of_rank, mark=micro == 1 and of_rank == 1)

    found: Result = {}
    for where in ("forward", "backward"):
        model = model_that_fails_on_marked(where)
        config = ExtendedFP16Config(
            precision_mode=PrecisionMode.MIXED_BF16, use_ddp=True, gradient_accumulation_steps=3
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
        while trainer.step < 4:
            for micro in range(3):
                trainer.backward_and_step(trainer.training_step(data(trainer.step, micro, rank), loss_of))
        trainer.drain()
        plain = model_that_fails_on_marked(where)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, fused=True)
        for step in range(4):
            micros, ranks = range(0 if step else 1, 3), range(world)
            losses = [loss_of(plain, data(step, micro, of_rank)) for micro in micros for of_rank in ranks]
            torch.autograd.backward(torch.stack(losses).mean())
            optimizer.step()
            optimizer.zero_grad()
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        found[where] = {
            "mode": trainer.mode.wire,
            "as the rest": all(torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6) for ours, theirs in pairs),
        }
    return found


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
