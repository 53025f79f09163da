"""What a script is, and what it may ask of the loop around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch

from precision_trainer import PrecisionMode

Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a loop trains one model. Both sides get the same one."""

    mode: PrecisionMode = PrecisionMode.FP32
    trained_in: PrecisionMode | None = None
    """The mode that plain PyTorch trains in, where the model fails in ``mode``; None: ``mode``."""
    accumulation: int = 1
    """Micro-batches a step."""
    max_grad_norm: float = 0.0
    """0: no clipping."""
    loss_scale: float = 65536.0
    find_unused_parameters: bool = False
    static_graph: bool = False
    compile_backend: str = ""
    replay: bool = False
    """The loss is a pure function: the sentinel may compute it again."""
    usual_sentinel: bool = False
    """As a user has it: it may change the mode, and looks closer in one step of hundreds only."""


class Loop(Protocol):
    """Trains one model with one optimizer."""

    @property
    def module(self) -> torch.nn.Module:
        """What to call for a forward pass outside a step: the model, under DDP where it is on."""
        ...

    def step(self, batch: Batch, loss_of: Callable[[torch.nn.Module, Batch], torch.Tensor]) -> float:
        """Train on one micro-batch; returns its loss."""
        ...

    def switch(self, mode: PrecisionMode) -> None:
        """Change the mode before the next step."""
        ...


class Start(Protocol):
    """Makes a loop."""

    def __call__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting = ...) -> Loop:
        """For a model and an optimizer over its parameters."""
        ...


Train = Callable[[Start], Iterator[float]]
"""A script: builds its models and yields the losses. It seeds nothing: the random state is the same on both sides."""


@dataclass(frozen=True, slots=True)
class Case:
    """One script, as a line of build/harmless.json."""

    id: str
    stack: str
    train: Train
    public_shape: str = ""
    """The well-known script whose shape it has; empty: none."""
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """What must be refused at construction."""

    id: str
    build: Callable[[Start], object]
    ranks: int = 1


def in_bf16(found: Case) -> Case:
    """The same script where it trains in FP32, in BF16."""

    def train(start: Start) -> Iterator[float]:
        def low(model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting | None = None) -> Loop:
            setting = setting or Setting()
            fp32 = setting.mode is PrecisionMode.FP32
            return start(model, optimizer, replace(setting, mode=PrecisionMode.MIXED_BF16) if fp32 else setting)

        return found.train(low)

    return replace(found, id=f"{found.id}_in_bf16", stack=f"{found.stack}, in BF16", train=train)


CASES: dict[str, Case] = {}
REFUSALS: dict[str, Refusal] = {}


def case(stack: str, *, shape: str = "", ranks: int = 1) -> Callable[[Train], Train]:
    """Register a script under its function's name.

    Args:
        stack: a few words: domain, optimizer, what is special.
        shape: the public script it has the shape of.
        ranks: processes to train with.
    """

    def register(train: Train) -> Train:
        name = getattr(train, "__name__", "")
        CASES[name] = Case(name, stack, train, shape, ranks)
        return train

    return register


def refusal(*, ranks: int = 1) -> Callable[[Callable[[Start], object]], Callable[[Start], object]]:
    """Register what must be refused, under its function's name."""

    def register(build: Callable[[Start], object]) -> Callable[[Start], object]:
        name = getattr(build, "__name__", "")
        REFUSALS[name] = Refusal(name, build, ranks)
        return build

    return register


def noise(*shape: int, seed: int) -> torch.Tensor:
    """Normal numbers that depend on nothing but ``seed``."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbers(high: int, *shape: int, seed: int) -> torch.Tensor:
    """Whole numbers in [0, high) that depend on nothing but ``seed``."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))
