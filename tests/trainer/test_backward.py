"""The backward pass of a step: torch's own, without its checks, and through whoever has put something in its place."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import ClassVar

import pytest
import torch

from precision_trainer.step import backward as module
from precision_trainer.step.backward import run_backward
from tests.support.training.calls import called


def roots() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, and two roots of it."""
    weight = torch.nn.Parameter(torch.arange(1.0, 7.0))
    return weight, (weight * weight).sum(), weight.exp()


def by_torch() -> torch.Tensor:
    weight, loss, other = roots()
    torch.autograd.backward((loss, other), (torch.tensor(3.0), torch.arange(6.0)))
    assert weight.grad is not None
    return weight.grad


def test_the_gradients_are_those_of_torch_and_its_checks_are_not_run() -> None:
    code = torch.autograd.backward.__code__
    assert code in called(by_torch)
    weight, loss, other = roots()
    # Otherwise torch does something else before the engine runs: see step/backward.py.
    assert code not in called(lambda: run_backward((loss, other), (torch.tensor(3.0), torch.arange(6.0))))
    assert weight.grad is not None
    assert torch.equal(weight.grad, by_torch())


@pytest.mark.parametrize("name", ["backward", "_engine_run_backward"])
def test_what_was_put_in_its_place_is_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, given, before = list[str](), list[tuple[object, ...]](), getattr(torch.autograd, name)

    def told(*arguments: object, **options: object) -> object:
        heard.append(name)
        given.append(arguments[:2])
        return before(*arguments, **options)

    monkeypatch.setattr(torch.autograd, name, told)
    weight, loss, _ = roots()
    scale = torch.tensor(3.0)
    run_backward((loss,), (scale,))
    assert heard == [name]
    ((root, gradient),) = given
    # A single root stands alone, as where a tensor's own backward() calls it.
    assert (root, gradient) == ((loss, scale) if name == "backward" else ((loss,), (scale,)))
    assert weight.grad is not None


def test_code_that_was_put_into_torchs_function_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def instrumented(tensors: torch.Tensor, gradient: torch.Tensor) -> None:
        raise RuntimeError("instrumented")

    monkeypatch.setattr(torch.autograd.backward, "__code__", instrumented.__code__)
    _, loss, _ = roots()
    with pytest.raises(RuntimeError, match="instrumented"):
        run_backward((loss,), (torch.tensor(3.0),))


class Told(torch.Tensor):
    """A script's own tensor, which hears what is done with it."""

    heard: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        """As torch would do it."""
        cls.heard.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)


def test_a_tensor_with_a_say_of_its_own_is_asked() -> None:
    weight, loss, _ = roots()
    told = loss.as_subclass(Told)
    Told.heard.clear()
    run_backward((told,), (torch.tensor(3.0),))
    assert "backward" in Told.heard
    assert weight.grad is not None


def test_a_function_mode_is_asked() -> None:
    heard = list[str]()

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            heard.append(func.__name__)
            return func(*args, **(kwargs or {}))

    weight, loss, _ = roots()
    with Mode():
        run_backward((loss,), (torch.tensor(3.0),))
    assert "backward" in heard
    assert weight.grad is not None


def test_hooks_of_tensors_run() -> None:
    weight, loss, _ = roots()
    heard = list[str]()
    weight.register_hook(lambda _: heard.append("gradient"))
    weight.register_post_accumulate_grad_hook(lambda _: heard.append("accumulated"))
    run_backward((loss,), (torch.tensor(1.0),))
    assert heard == ["gradient", "accumulated"]


@pytest.fixture
def debugged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Torch's log of what the engine executes."""
    with caplog.at_level(logging.DEBUG, logger="torch.autograd.graph"):
        yield caplog


def test_torchs_log_of_the_pass_is_written(debugged: pytest.LogCaptureFixture) -> None:
    _, loss, _ = roots()
    run_backward((loss,), (torch.tensor(1.0),))
    assert "Executing" in debugged.text


@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.ones(1, requires_grad=True) * 2, torch.tensor(1.0)),
        lambda: (torch.tensor(1.0), torch.tensor(1.0)),
    ],
    ids=["not 0-dim", "no graph"],
)
def test_what_torch_refuses_is_refused_in_its_words(make: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
    with pytest.raises(RuntimeError) as torchs:
        torch.autograd.backward(*make())
    root, gradient = make()
    with pytest.raises(RuntimeError) as ours:
        run_backward((root,), (gradient,))
    assert str(ours.value) == str(torchs.value)


def test_a_transform_of_functions_is_refused_as_torch_refuses_it() -> None:
    def loss(weight: torch.Tensor) -> torch.Tensor:
        found = (weight * weight).sum()
        run_backward((found,), (torch.tensor(1.0),))
        return found

    with pytest.raises(RuntimeError, match="functorch"):
        torch.func.grad(loss)(torch.ones(3))


def changed() -> Callable[..., object]:
    """Torch's function, as a version that does one thing more."""
    torchs = torch.autograd.backward
    assert isinstance(torchs, FunctionType)
    more = torchs.__code__.replace(co_names=(*torchs.__code__.co_names, "tell_somebody"))
    return FunctionType(more, torchs.__globals__, "backward", torchs.__defaults__)


def wrapped() -> Callable[..., object]:
    """Torch's function, as another library had wrapped it before the trainer was imported."""

    @functools.wraps(torch.autograd.backward)
    def told(*arguments: object, **options: object) -> None:
        torchs(*arguments, **options)

    torchs: Callable[..., None] = torch.autograd.backward
    return told


@pytest.mark.parametrize("other", [changed, wrapped])
def test_a_function_that_is_not_known_is_called(
    other: Callable[[], Callable[..., object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = other()
    monkeypatch.setattr(torch.autograd, "backward", unknown)
    try:
        importlib.reload(module)
        weight, loss, _ = roots()
        assert isinstance(unknown, FunctionType)
        assert unknown.__code__ in called(lambda: module.run_backward((loss,), (torch.tensor(1.0),)))
        assert weight.grad is not None
    finally:
        monkeypatch.undo()
        importlib.reload(module)
