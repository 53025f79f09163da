"""What scripts do between steps: freeze, restore, copy, skip, catch, and train parts in turn."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

from lab.harmless.script import Setting, Start, case, noise
from precision_trainer import PrecisionMode

STEPS, WIDTH = 20, 8


def _small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))


def _square(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net(x).float()
    return out.square().mean()


@case("habits, SGD, averaged weights, their schedule, batch norm computed anew", shape="SWA tutorial")
def averaged_weights(start: Start) -> Iterator[float]:
    model = _small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = start(model, optimizer)
    average, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.01, anneal_epochs=4)
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)
        if step > 10:
            average.update_parameters(model)
            schedule.step()
    update_bn([noise(16, WIDTH, seed=step) for step in range(4)], average)
    average.eval()
    with torch.no_grad():
        yield _square(average, noise(16, WIDTH, seed=99)).item()


@case("habits, Adam, frozen at first, groups added later", shape="transfer learning tutorial")
def gradual_unfreezing(start: Start) -> Iterator[float]:
    model = _small()
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(model[3].parameters(), lr=1e-2)
    loop = start(model, optimizer)
    for step in range(STEPS):
        if step == 8:
            model[0].requires_grad_(requires_grad=True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
        yield loop.step(noise(16, WIDTH, seed=step), _square)


@case("habits, Adam, the best weights are copied and put back, BF16", shape="early stopping")
def best_weights(start: Start) -> Iterator[float]:
    model = _small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loop = start(model, optimizer, Setting(mode=PrecisionMode.MIXED_BF16))
    best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)
        if step == 6:
            best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 13:
            model.load_state_dict(best[0])
            optimizer.load_state_dict(best[1])


@case("habits, Adam, weights that became NaN are noticed late and put back, BF16", shape="NaN recovery")
def recovers_from_nan(start: Start) -> Iterator[float]:
    model = _small()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    loop = start(model, optimizer, Setting(mode=PrecisionMode.MIXED_BF16))
    best, lost = copy.deepcopy((model.state_dict(), optimizer.state_dict())), 0
    for step in range(STEPS):
        if step == 6:
            best = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            with torch.no_grad():
                model[0].get_parameter("weight").fill_(float("nan"))
        loss = loop.step(noise(16, WIDTH, seed=step), _square)
        lost = lost + 1 if math.isnan(loss) else 0
        if lost == 7:
            model.load_state_dict(best[0])
            optimizer.load_state_dict(best[1])
        yield loss


@case("habits, SGD, a DataLoader that shuffles", shape="quickstart tutorial")
def data_loader(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 2))
    data = TensorDataset(noise(64, WIDTH, seed=1), (noise(64, seed=2) > 0).long())
    loop = start(model, torch.optim.SGD(model.parameters(), lr=1e-2), Setting(replay=True))
    for _ in range(4):
        for inputs, labels in DataLoader(data, batch_size=16, shuffle=True):
            yield loop.step((inputs, labels), lambda net, pair: F.cross_entropy(net(pair[0]), pair[1]))


class _Passing(Exception):
    """Stands for a batch that does not fit into memory."""


def _fragile(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss = _square(net, x)
    if float(x[0, 0]) > 1.0:
        raise _Passing
    return loss


def _catches(start: Start, setting: Setting) -> Iterator[float]:
    """The batch is left out and training goes on."""
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), setting)
    for step in range(3 * STEPS):
        try:
            yield loop.step(noise(16, WIDTH, seed=step), _fragile)
        except _Passing:
            continue


@case("habits, Adam, a batch that fails in the loss is left out", shape="fairseq's handling of memory errors")
def failing_batches(start: Start) -> Iterator[float]:
    yield from _catches(start, Setting())


class _Breaks(torch.autograd.Function):
    """The identity, whose backward pass fails for large inputs."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        if float(x[0, 0]) > 1.0:
            raise _Passing
        return gradient


def _breaking(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    inside: torch.Tensor = _Breaks.apply(x.requires_grad_())
    return _square(net, inside)


@case("habits, Adam, a batch that fails in the backward pass is left out, gradients and all")
def failing_backward(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 4))
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    for step in range(3 * STEPS):
        try:
            yield loop.step(noise(16, WIDTH, seed=step), _breaking)
        except _Passing:
            model.zero_grad()


class _Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 1) for _ in range(2))

    def forward(self, x: torch.Tensor, task: int) -> torch.Tensor:
        out: torch.Tensor = self.heads[task](x)
        return out


def _of_task(net: nn.Module, batch: tuple[torch.Tensor, int]) -> torch.Tensor:
    out: torch.Tensor = net(*batch).float()
    return (out - 1).square().mean()


def _tasks(start: Start, setting: Setting) -> Iterator[float]:
    """Only the first head is trained. Batches of the second task ask for the gradient of their input alone."""
    model = _Heads()
    model.heads[1].requires_grad_(requires_grad=False)
    loop = start(model, torch.optim.SGD(model.heads[0].parameters(), lr=0.1), setting)
    for step in range(STEPS):
        x = noise(16, WIDTH, seed=step).requires_grad_()
        yield loop.step((x, 1 - step % 2), _of_task)


@case("habits, SGD, steps in which no optimized parameter has a gradient")
def steps_without_gradients(start: Start) -> Iterator[float]:
    yield from _tasks(start, Setting())


@case("habits, SGD, clipped, steps in which no optimized parameter has a gradient, BF16")
def clipped_steps_without_gradients(start: Start) -> Iterator[float]:
    yield from _tasks(start, Setting(mode=PrecisionMode.MIXED_BF16, max_grad_norm=1.0))


@case("habits, Adam, hooks of the script's own forward and backward, BF16")
def own_hooks(start: Start) -> Iterator[float]:
    model = _small()
    seen: list[float] = []

    def note_forward(_: nn.Module, __: object, out: torch.Tensor) -> None:
        seen.append(out.detach().float().std().item())

    def note_backward(_: nn.Module, __: object, gradients: object) -> None:
        assert isinstance(gradients, tuple)
        seen.append(gradients[0].float().norm().item())

    for layer in model:
        layer.register_forward_hook(note_forward)
        layer.register_full_backward_hook(note_backward)
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=PrecisionMode.MIXED_BF16))
    for step in range(2 * STEPS):
        yield loop.step(noise(16, WIDTH, seed=step).requires_grad_(), _square)
    yield from seen


@case("habits, Adam, a model under torch.jit.script, BF16")
def scripted(start: Start) -> Iterator[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and still in use
        model = torch.jit.script(_small())
    loop = start(
        model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=PrecisionMode.MIXED_BF16, replay=True)
    )
    for step in range(2 * STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)


class _Lion(torch.optim.Optimizer):
    """An optimizer that the script brings along."""

    def __init__(self, parameters: Iterator[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                parameter.add_(average.lerp(parameter.grad, 0.1).sign_(), alpha=-group["lr"])
                average.lerp_(parameter.grad, 0.01)


@case("habits, an optimizer of the script's own, BF16", shape="Lion")
def own_optimizer(start: Start) -> Iterator[float]:
    model = _small()
    loop = start(model, _Lion(model.parameters(), lr=1e-3), Setting(mode=PrecisionMode.MIXED_BF16, replay=True))
    for step in range(STEPS):
        yield loop.step(noise(16, WIDTH, seed=step), _square)
