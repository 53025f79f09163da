"""A step of an optimizer: torch's own, quicker where nobody listens, and heard by whoever does."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from precision_trainer.step import optimizer as module
from precision_trainer.step.optimizer import take_step
from tests.support.training.calls import called

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
def test_a_step_that_nobody_listens_to_is_torchs_own_without_what_torch_wraps_around_it(kind: type[Optimizer]) -> None:
    plain, ours = optimizer(kind), optimizer(kind)
    wrapper = kind.step.__code__
    assert wrapper in called(plain.step)
    # Otherwise torch listens in another way now: see step/optimizer.py.
    assert wrapper not in called(lambda: take_step(ours))
    assert torch.equal(weights(ours), weights(plain))


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


def code_of_the_instance(of: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(of, "_optimizer_step_code", lambda: heard.append("step"))


def another_record(_: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    class Record(torch.autograd.profiler.record_function):
        def __enter__(self) -> Record:
            heard.append("step")
            super().__enter__()
            return self

    patch.setattr(torch.autograd.profiler, "record_function", Record)


class Observer:
    """Of a profiler that torch tells of its records in Python."""

    def __init__(self, heard: list[str]) -> None:
        self._heard = heard

    def push_annotation(self, _name: str) -> int:
        self._heard.append("step")
        return 0

    def pop_annotation(self) -> None:
        """The step is done."""


def observer_in_python(_: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.autograd.profiler, "_active_cuspy_profiler_observer", Observer(heard))


class Stand:
    """In a function's place: it looks like it in all, as patches of tracing tools do."""

    def __init__(self, function: FunctionType, heard: list[str]) -> None:
        self.function, self.heard = function, heard

    __class__ = FunctionType  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        return getattr(self.function, name)

    def __get__(self, of: object, kind: type | None = None) -> object:
        return self if of is None else MethodType(self, of)

    def __call__(self, *arguments: object) -> object:
        self.heard.append("step")
        return self.function(*arguments)


def traced(of: Optimizer, heard: list[str], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(of), "step", Stand(type(of).step, heard))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "listen",
    [
        hook_before, hook_after, hook_before_all, hook_after_all, replaced, replaced_in_the_class, code_of_a_profiler,
        code_of_the_instance, another_record, observer_in_python, traced,
    ],
)  # fmt: skip
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


def test_a_profiler_of_python_is_told_of_the_optimizers_parameters() -> None:
    ours = optimizer()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, with_stack=True, record_shapes=True, profile_memory=True
    ) as profile:
        take_step(ours)
    results: Any = profile.profiler
    todo, told = list(results.kineto_results.experimental_event_tree()), 0
    while todo:
        event = todo.pop()
        todo += event.children
        told += getattr(event.extra_fields, "optimizer", None) is not None
    assert told == 1


@contextlib.contextmanager
def observed(path: Path) -> Iterator[None]:
    """Without a profiler, by an observer that writes to ``path``."""
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(path))
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.unregister_callback()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_an_observer_without_a_profiler_sees_the_step(kind: type[Optimizer], tmp_path: Path) -> None:
    ours = optimizer(kind)
    with observed(tmp_path / "trace.json"):
        take_step(ours)
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    assert f"Optimizer.step#{kind.__name__}.step" in {node["name"] for node in nodes}


def test_the_record_of_a_step_that_fails_is_closed(tmp_path: Path) -> None:
    ours = optimizer()
    ours.param_groups[0]["lr"] = None
    with observed(tmp_path / "trace.json"):
        with pytest.raises(TypeError) as kept:  # with the error, the frame that holds the record lives on
            take_step(ours)
        torch.ones(3)
    nodes = json.loads((tmp_path / "trace.json").read_text())["nodes"]
    names = {node["id"]: node["name"] for node in nodes}
    parents = {node["name"]: names.get(node["ctrl_deps"]) for node in nodes}
    assert parents["aten::ones"] == "[pytorch|profiler|execution_trace|thread]"
    del kept


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


def test_documentation_copied_from_another_step_does_not_make_it_that_step() -> None:
    class Own(torch.optim.AdamW):
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            super().step(closure)

    ours, expected = optimizer(Own), stepped()
    functools.update_wrapper(Own.step, torch.optim.SGD.step)
    take_step(ours)
    assert torch.equal(weights(ours), expected)


def test_a_class_that_answers_for_its_attributes_is_asked_for_the_step() -> None:
    ours = optimizer(Watched)
    Watched.looked = ()
    take_step(ours)
    assert "step" in Watched.looked


@pytest.fixture
def reloaded() -> Iterator[Callable[[], None]]:
    """Loads the module anew, as in a process where torch is as it was made to be now."""

    def reload() -> None:
        importlib.reload(module)

    yield reload
    reload()


def hearing(heard: list[str]) -> Callable[[Callable[..., object]], Callable[..., object]]:
    tell = functools.partial(heard.append, "step")

    def profile_hook_step(func: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*arguments: object) -> object:  # uses nothing that torch's does not
            tell()
            return func(*arguments)

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


@pytest.mark.parametrize(("place", "name"), [(place, name) for place, names in module._NEEDED for name in names])
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
