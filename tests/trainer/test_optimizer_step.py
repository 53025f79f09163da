"""A step of an optimizer: torch's own, quicker where nobody listens, and heard by whoever does."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from precision_trainer.step import optimizer as module
from precision_trainer.step.optimizer import take_step

RECORD = "Optimizer.step#AdamW.step"
Listener = Callable[[Optimizer, list[str], pytest.MonkeyPatch], object]


def optimizer(kind: type[Optimizer] = torch.optim.AdamW) -> Any:  # noqa: ANN401  (proxies of it are no Optimizer)
    parameter = torch.nn.Parameter(torch.arange(6.0))
    parameter.grad = torch.arange(6.0).flip(0)
    return kind([parameter], lr=0.1)  # type: ignore[call-arg]  # not of the base class


def weights(of: Optimizer) -> torch.Tensor:
    found: torch.Tensor = of.param_groups[0]["params"][0]
    return found.detach()


def stepped(kind: type[Optimizer] = torch.optim.AdamW) -> torch.Tensor:
    """The weights after a step by torch itself."""
    plain = optimizer(kind)
    plain.step()
    return weights(plain)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_a_step_that_nobody_listens_to_is_torchs_own_without_a_record_in_python(
    kind: type[Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stepped(kind)

    def opened(*_: object) -> None:
        pytest.fail("torch listens to the steps of its optimizers in another way now: see step/optimizer.py")

    monkeypatch.setattr(torch.autograd.profiler, "record_function", opened)
    ours = optimizer(kind)
    take_step(ours)
    assert torch.equal(weights(ours), expected)


def hook_before(of: Optimizer, heard: list[str], _patch: pytest.MonkeyPatch) -> object:
    return of.register_step_pre_hook(lambda *_: heard.append("step"))


def hook_after(of: Optimizer, heard: list[str], _patch: pytest.MonkeyPatch) -> object:
    return of.register_step_post_hook(lambda *_: heard.append("step"))


def hook_before_all(_: Optimizer, heard: list[str], _patch: pytest.MonkeyPatch) -> object:
    return register_optimizer_step_pre_hook(lambda *_: heard.append("step"))


def hook_after_all(_: Optimizer, heard: list[str], _patch: pytest.MonkeyPatch) -> object:
    return register_optimizer_step_post_hook(lambda *_: heard.append("step"))


def replaced(of: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    step = of.step

    def told() -> None:
        heard.append("step")
        step()

    patch.setattr(of, "step", told)


def replaced_in_the_class(of: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    step = type(of).step

    @functools.wraps(step)
    def told(self: Optimizer) -> object:
        heard.append("step")
        return step(self)

    patch.setattr(type(of), "step", told)


def code_of_a_profiler(of: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(of), "_optimizer_step_code", lambda self: heard.append("step"))


@pytest.mark.parametrize(
    "listen",
    [hook_before, hook_after, hook_before_all, hook_after_all, replaced, replaced_in_the_class, code_of_a_profiler],
)
def test_whoever_listens_to_an_optimizer_hears_each_step(listen: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, heard, expected = optimizer(), list[str](), stepped()
    handle = listen(ours, heard, monkeypatch)
    try:
        take_step(ours)
    finally:
        if isinstance(handle, RemovableHandle):
            handle.remove()
    assert heard == ["step"]
    assert torch.equal(weights(ours), expected)


@pytest.mark.parametrize("all_threads", [False, True], ids=["this thread", "all threads"])
def test_a_profiler_that_runs_sees_the_step(*, all_threads: bool) -> None:
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads)
    ours = optimizer()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, experimental_config=config) as profile:
        take_step(ours)
    assert RECORD in {event.key for event in profile.key_averages()}


def test_an_observer_without_a_profiler_sees_the_step(tmp_path: Path) -> None:
    ours, observer = optimizer(), torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "trace.json"))
    observer.start()
    try:
        take_step(ours)
    finally:
        observer.stop()
        observer.unregister_callback()
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    assert RECORD in {node["name"] for node in nodes}


def test_a_learning_rate_schedule_knows_that_the_step_before_it_was_taken(recwarn: pytest.WarningsRecorder) -> None:
    ours = optimizer()
    schedule = torch.optim.lr_scheduler.StepLR(ours, step_size=1, gamma=0.5)
    take_step(ours)
    schedule.step()
    assert not [str(warning.message) for warning in recwarn if "lr_scheduler.step()" in str(warning.message)]
    assert schedule.get_last_lr() == [0.05]


class Doubled(torch.optim.SGD):
    """A script's own optimizer."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Twice as far."""
        super().step(closure)
        super().step(closure)


def test_a_scripts_own_optimizer_takes_its_own_step() -> None:
    ours, expected = optimizer(Doubled), stepped(Doubled)
    take_step(ours)
    assert torch.equal(weights(ours), expected)
    assert not torch.equal(expected, stepped(torch.optim.SGD))


class Proxy:
    """Is asked for everything in another's place."""

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class Watched(torch.optim.AdamW):
    """Is told of each look at an attribute of it."""

    looked: tuple[str, ...] = ()

    def __getattribute__(self, name: str) -> object:
        if name == "step":
            Watched.looked = (*Watched.looked, name)
        return super().__getattribute__(name)


def borrowed(inner: Optimizer) -> object:
    """Of a class that lends the step of another optimizer."""
    return type("Borrowed", (), {"step": inner.step})()


@pytest.mark.parametrize("wrap", [Proxy, borrowed, lambda inner: MagicMock(wraps=inner)])
def test_what_stands_in_an_optimizers_place_takes_its_step(wrap: Callable[[Optimizer], Any]) -> None:
    ours, expected = optimizer(), stepped()
    take_step(wrap(ours))
    assert torch.equal(weights(ours), expected)


def test_a_class_that_answers_for_its_attributes_is_asked_for_the_step() -> None:
    ours = optimizer(Watched)
    Watched.looked = ()
    take_step(ours)
    assert "step" in Watched.looked


@pytest.fixture
def reloaded() -> Iterator[Callable[[], None]]:
    """Loads the module anew, as in a process where torch is as it was made to be now."""
    yield lambda: _reload()
    _reload()


def _reload() -> None:
    importlib.reload(module)


def hearing(heard: list[str]) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def profile_hook_step(step: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*arguments: object) -> object:
            heard.append("step")
            return step(*arguments)

        return wrapper

    return profile_hook_step


def test_another_way_to_listen_than_torchs_is_left_to_itself(
    monkeypatch: pytest.MonkeyPatch, reloaded: Callable[[], None]
) -> None:
    heard = list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "profile_hook_step", staticmethod(hearing(heard)))
        reloaded()

        class Own(torch.optim.SGD):
            def step(self, closure: None = None) -> None:  # type: ignore[override]
                super().step(closure)

        module.take_step(optimizer(Own))
    assert heard == ["step"]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (torch_optimizer, "_global_optimizer_pre_hooks"),
        (Optimizer, "_optimizer_step_code"),
        (torch.autograd.profiler, "_is_profiler_enabled"),
        (torch._C._autograd, "_record_function_with_args_enter"),
    ],
)
def test_a_torch_that_lacks_what_is_asked_for_takes_its_steps_all_the_same(
    place: object, name: str, monkeypatch: pytest.MonkeyPatch, reloaded: Callable[[], None]
) -> None:
    ours, steps = optimizer(), list[str]()
    monkeypatch.setattr(type(ours), "step", lambda self: steps.append("step"))
    with monkeypatch.context() as patch:
        patch.delattr(place, name)
        reloaded()
        assert module._WRAPPER is None
        module.take_step(ours)
    assert steps == ["step"]
