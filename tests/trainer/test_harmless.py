"""Training with the sentinel is training without it, whatever the script does in its loss."""

from __future__ import annotations

import copy
import functools
import json
import random
import threading
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.step.carried import Collections
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.training.harmless_scenarios import CASES, EAGER, OFF, Case, Loss, losses
from tests.support.training.process_group import ProcessGroup

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_watched_training_has_the_losses_of_an_unwatched_one(name: str) -> None:
    kind = CASES[name]
    assert losses(kind(), EAGER) == losses(kind(), OFF)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script without threads of its own: the workers of the tests, and tests before, have some."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_of_an_accumulated_step_one_micro_batch_is_kept() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    class Counted(Case):
        def batch(self, step: int) -> torch.Tensor:
            nonlocal most
            batch = super().batch(step)
            most = max(most, sum(reference() is not None for reference in alive))
            alive.append(weakref.ref(batch))
            return batch

    case = Counted()
    watched = losses(case, EAGER, accumulation=64, steps=3, replay=case.loss)
    assert most <= 2  # the one before, in the loop's own hands, and the last one of the step before
    assert watched == losses(Case(), OFF, accumulation=64, steps=3)


def _noted(capsys: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, object]]]:
    found: dict[str, list[dict[str, object]]] = {}
    for line in capsys.readouterr().out.splitlines():
        event = json.loads(line)
        found.setdefault(event["event"], []).append(event)
    return found


# An iterator cannot be put back.
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", sorted({*CASES} - {"IteratorInLoss"}))
def test_a_replay_that_is_not_pure_changes_nothing_and_is_reported_once(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]()
    assert losses(case, EAGER, replay=case.loss) == losses(CASES[name](), OFF)
    checks = [event["check"] for event in _noted(capsys).get("sentinel_check_off", [])]
    assert len(checks) == len(set(checks))
    if name not in ("PythonDraws", "NumpyDraws", "OddOutputs"):
        assert checks


def closing_over_its_state() -> Loss:
    hidden = torch.zeros(4, 8)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nonlocal hidden
        out: torch.Tensor = model(batch + hidden).float()
        hidden = out.detach().tanh()
        return out.square().mean()

    return loss


class Criterion(torch.nn.Module):
    """A loss that is a module, and keeps a running mean in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (model(batch).float() - self.mean).square().mean()
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss


class Recurrence:
    """A loss that keeps its state, and how often it was called, in itself."""

    def __init__(self) -> None:
        self.hidden: torch.Tensor | None = None
        self.calls = 0

    def __call__(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch if self.hidden is None else batch + self.hidden).float()
        self.hidden = out.detach().tanh()
        self.calls += 1
        return out.square().mean() * (1.0 + self.calls % 2)


def through_its_object() -> Loss:
    loss = Recurrence()
    return lambda model, batch: loss(model, batch)


def unassigned_between_steps() -> Loss:
    hidden: torch.Tensor

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        nonlocal hidden
        try:
            batch = batch + hidden
            del hidden
        except NameError:
            hidden = batch.mean()  # noqa: F841  (the next call reads it)
        out: torch.Tensor = model(batch)
        return out.float().square().mean()

    return loss


def on_itself() -> Loss:
    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch + vars(loss).get("hidden", 0)).float()
        loss.hidden = out.detach().tanh()  # type: ignore[attr-defined]
        return out.square().mean()

    return loss


CARRYING = [
    closing_over_its_state, Recurrence, lambda: functools.partial(closing_over_its_state()), through_its_object, on_itself
]  # fmt: skip
CARRYING_IDS = ["closure", "object", "partial", "object in a closure", "function"]


def with_its_own_replay(make: Callable[[], Loss], sentinel: SentinelConfig) -> list[float]:
    loss = make()
    return losses(Case(), sentinel, loss=loss, replay=loss)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("make", CARRYING, ids=CARRYING_IDS)
def test_a_state_that_a_replay_carries_is_put_back_and_reported(
    make: Callable[[], Loss], capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_its_own_replay(make, EAGER) == with_its_own_replay(make, OFF)
    errors = [str(event["error"]) for event in _noted(capsys)["sentinel_check_off"]]
    assert errors
    assert all("changed: a replay_fn carries nothing from call to call" in error for error in errors)


def test_a_variable_that_a_loss_unassigns_is_never_assigned_for_it() -> None:
    # What is gone cannot be told from what was never there: training goes on, whatever its numbers.
    assert len(with_its_own_replay(unassigned_between_steps, EAGER)) == len(losses(Case(), OFF))


def test_a_module_of_the_scripts_own_stays_as_it_was_its_buffers_in_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    order: list[list[str]] = []

    def criterion() -> Loss:
        module = Criterion()
        module.register_buffer("last", torch.zeros(()))
        order.append(list(module.state_dict()))
        made.append(module)
        return module

    made: list[Criterion] = []
    assert with_its_own_replay(criterion, EAGER) == with_its_own_replay(criterion, OFF)
    assert [list(module.state_dict()) for module in made] == order == [["mean", "last"]] * 2
    assert "sentinel_check_off" not in _noted(capsys)


def test_a_flag_that_a_signals_handler_sets_during_a_replay_stays_set() -> None:
    class Runner(Recurrence):
        stop = False

        def __call__(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:  # in a replay
                self.stop = True
            return Case().loss(model, batch)

    runner = Runner()
    losses(Case(), EAGER, loss=runner, replay=runner)
    assert runner.stop


def test_what_another_thread_may_have_drawn_is_not_drawn_again() -> None:
    class Drawing(Recurrence):
        drawn: tuple[object, ...] = ()

        def __call__(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:  # in a replay
                self.drawn = (*self.drawn, random.random())
            return Case().loss(model, batch)

    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        loss = Drawing()
        losses(Case(), EAGER, loss=loss, replay=loss)
    finally:
        done.set()
        thread.join()
    assert len(loss.drawn) == len(set(loss.drawn)) > 0


def test_a_state_that_a_module_carries_is_not_advanced_by_a_replay() -> None:
    class Recurrent(torch.nn.Linear):
        hidden = torch.zeros(4, 8)

        def forward(self, input: torch.Tensor) -> torch.Tensor:
            out = super().forward(input + self.hidden)
            self.hidden = out.detach().float().tanh()
            return out

    def trained(sentinel: SentinelConfig) -> list[float]:
        case = Case()
        torch.manual_seed(3)
        case.model = torch.nn.Sequential(Recurrent(8, 8))
        return losses(case, sentinel, replay=case.loss)

    assert trained(EAGER) == trained(OFF)


class Remembering(torch.nn.Linear):
    """Subtracts the mean of what it gave out last, of which it keeps a list, and counts in a dict."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.recent: list[torch.Tensor] = []
        self.counts = {"calls": [0]}
        self.ids: set[int] = set()
        self.queue: deque[float] = deque(maxlen=3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        out = super().forward(input)
        self.counts["calls"][0] += 1
        self.recent.append(out.detach().float().mean(0))
        del self.recent[:-3]
        self.ids.add(self.counts["calls"][0])
        self.queue.append(float(len(self.ids)))
        return out - torch.stack(self.recent).mean(0) * min(1.0, self.counts["calls"][0] / 9) * sum(self.queue) / 9


def test_what_a_modules_collections_hold_is_not_advanced_by_a_replay(capsys: pytest.CaptureFixture[str]) -> None:
    def trained(sentinel: SentinelConfig, *, in_loss: bool) -> list[float]:
        case = Case()
        torch.manual_seed(3)
        layer = Remembering()
        case.model = torch.nn.Sequential(torch.nn.Linear(8, 8)) if in_loss else torch.nn.Sequential(layer)

        def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = model(batch)
            return (layer(out) if in_loss else out).float().square().mean()

        return losses(case, sentinel, loss=loss, replay=loss)

    for in_loss in (False, True):
        assert trained(EAGER, in_loss=in_loss) == trained(OFF, in_loss=in_loss)
    assert "sentinel_check_off" not in _noted(capsys)


def filling_a_list() -> Loss:
    seen: list[float] = []

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(batch).float().square().mean()
        seen.append(value.item())
        return value * (1.0 + len(seen) % 2)

    return loss


@pytest.mark.usefixtures("alone")
def test_a_list_that_a_replay_fills_is_put_back_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert with_its_own_replay(filling_a_list, EAGER) == with_its_own_replay(filling_a_list, OFF)
    errors = [str(event["error"]) for event in _noted(capsys)["sentinel_check_off"]]
    assert errors
    assert all(error.startswith("seen changed") for error in errors)


def test_collections_are_put_back_as_they_were_whatever_they_are() -> None:
    inner = [1]
    held: list[Any] = [
        [1, inner], {"a": 1, "b": inner}, {1, 2}, deque([1, 2], maxlen=2), OrderedDict(a=1, b=2), Counter("aab"),
        defaultdict(list, a=[1]),
    ]  # fmt: skip
    before = copy.deepcopy(held)
    collections = Collections(held)
    assert not collections.put_back()
    inner.append(2)
    held[0].clear()
    held[1]["c"] = 1
    held[2].add(3)
    held[3].append(3)
    held[4].move_to_end("a")
    held[5]["a"] += 1
    held[6]["b"].append(1)
    assert collections.put_back(only_look=True)
    assert held != before
    assert collections.put_back()
    assert held == before
    assert held[0][1] is held[1]["b"] is inner
    assert not collections.put_back(only_look=True)


def test_a_collection_as_long_as_a_data_set_is_not_watched() -> None:
    assert not Collections([[0] * 100_001])


def _clips_by_a_running_norm(model: torch.nn.Module, seen: list[float]) -> None:
    def hook(gradient: torch.Tensor) -> torch.Tensor:
        norm = float(gradient.float().norm())
        norm = norm if norm < 1e6 else 1e6  # of a step that overflows: NaN
        seen.append(0.9 * seen[-1] + 0.1 * norm)
        return gradient * min(1.0, seen[-1] / (norm + 1e-6))

    for parameter in model.parameters():
        parameter.register_hook(hook)


def _divides_by_a_running_spread(model: torch.nn.Module, seen: list[float]) -> None:
    def hook(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        seen.append(0.9 * seen[-1] + 0.1 * float(output.detach().float().std()))
        return output / (seen[-1] + 0.1)

    next(iter(model.children())).register_forward_hook(hook)


def _scales_the_gradient_of_its_output(model: torch.nn.Module, seen: list[float]) -> None:
    def hook(_module: torch.nn.Module, gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        seen.append(seen[-1] * 0.99)
        return tuple(gradient * seen[-1] for gradient in gradients)

    next(iter(model.children())).register_full_backward_pre_hook(hook)


@pytest.mark.parametrize(
    "hooked", [_clips_by_a_running_norm, _divides_by_a_running_spread, _scales_the_gradient_of_its_output]
)
def test_hooks_of_the_scripts_own_are_never_run_by_a_replay(
    hooked: Callable[[torch.nn.Module, list[float]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(sentinel: SentinelConfig) -> tuple[list[float], list[float]]:
        case, seen = Case(), [1.0]
        hooked(case.model, seen)
        return losses(case, sentinel, replay=case.loss), seen

    assert trained(EAGER) == trained(OFF)
    errors = [str(event["error"]) for event in _noted(capsys)["sentinel_check_off"]]
    assert errors
    assert all("hook of the script's own" in error for error in errors)


class _Drifting:
    """FP32 until its loss is known, then BF16, where it rises: by harder data, or by gradients that point elsewhere."""

    def __init__(self, *, harder: float = 1.0, reversed_in_bf16: bool = False) -> None:
        self.harder, self.reversed = harder, reversed_in_bf16
        case = Case()
        config = ExtendedFP16Config(
            precision_mode=PrecisionMode.FP32, sentinel=SentinelConfig(window_steps=8, shadow_steps=2000)
        )
        optimizer = torch.optim.SGD(case.model.parameters(), lr=1e-3)
        self.trainer = ExtendedFP16Trainer(case.model, optimizer, config, allow_cpu=True)
        self.batch, self.target = case.batch(0), case.batch(1)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch)
        loss = (out.float() - self.target).square().mean()
        low = out.dtype is torch.bfloat16
        if low and self.reversed:
            loss = 2 * loss.detach() - loss  # the same value, the opposite gradient
        return loss * self.harder if batch is not self.batch else loss

    def train(self, *, replay: bool) -> PrecisionMode:
        for step in range(600):
            if step == 300:
                self.trainer.apply(PrecisionRequest(1, PrecisionMode.MIXED_BF16))
            batch = self.batch if step < 300 else self.batch.clone()
            loss = self.trainer.training_step(batch, self.loss, self.loss if replay else None)
            self.trainer.backward_and_step(loss)
        return self.trainer.mode


@pytest.mark.parametrize("replay", [False, True])
def test_harder_data_is_reported_as_drift_and_leaves_no_mode(replay: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert _Drifting(harder=1.5).train(replay=replay) is PrecisionMode.MIXED_BF16
    assert [event["reason"] for event in _noted(capsys)["sentinel_warning"]].count("LossDrift") == 1


def test_drift_leaves_the_mode_only_where_a_replay_shows_that_precision_changes_the_gradients(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _Drifting(harder=1.5, reversed_in_bf16=True).train(replay=False) is PrecisionMode.MIXED_BF16
    assert _Drifting(harder=1.5, reversed_in_bf16=True).train(replay=True) is PrecisionMode.FP32
    assert [event["reason"] for event in _noted(capsys)["sentinel_transition"]] == ["LossDrift"]


def test_collectives_in_loss_and_forward_neither_hang_nor_change_the_weights() -> None:
    process_group = ProcessGroup(2, timeout_seconds=20)
    try:
        for result in process_group.run("harmless_scenarios.collectives_in_the_loss"):
            assert result["clip with"] == result["clip without"]
            assert result["norm with"] == result["norm without"]
            assert result["clip replayed"] == result["clip without"]
    finally:
        process_group.kill()
