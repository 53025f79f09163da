"""A loss that consumes its batch, or fails for its batch's own sake, in the first step of a mode."""

from __future__ import annotations

import copy
import json
import queue
from collections import OrderedDict, UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.precision.batch import KeptBatch
from precision_trainer.precision.preflight import guarded, kind_of
from precision_trainer.values.levels import Level
from precision_trainer.values.request import PrecisionRequest
from tests.support.training.preflight_scenarios import WIDTH, Half, batch, loss_of, model_that_fails
from tests.support.training.session import Session

FP32, BF16, FP16 = PrecisionMode.FP32, PrecisionMode.MIXED_BF16, PrecisionMode.MIXED_FP16
Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

pytestmark = pytest.mark.usefixtures("one_thread")


def _trainer(model: torch.nn.Module, mode: PrecisionMode = FP32, **settings: object) -> ExtendedFP16Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    config = ExtendedFP16Config(precision_mode=mode, **settings)  # type: ignore[arg-type]
    return ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)


def _told(trainer: ExtendedFP16Trainer) -> list[str]:
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    return refused


@dataclass
class Sample:
    """What a loss may take its inputs out of."""

    x: torch.Tensor | None
    seen: int = 0


@dataclass(frozen=True)
class Frozen:
    """Holds a container."""

    held: dict[str, torch.Tensor] = field(default_factory=dict)


def _taken(data: Sample) -> torch.Tensor:
    taken, data.x = data.x, None
    data.seen += 1
    assert taken is not None
    assert data.seen == 1
    return taken


CONSUMED: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "dictionary": (lambda x: {"x": x, "y": 1}, lambda data: data.pop("x")),
    "ordered": (lambda x: OrderedDict(x=x, y=1), lambda data: data.popitem(last=False)[1]),
    "user's dictionary": (lambda x: UserDict(x=x), lambda data: data.pop("x")),
    "list": (lambda x: [x, "a name"], lambda data: data.pop(0)),
    "nested": (lambda x: (1, [{"x": {"x": x}}]), lambda data: data[1].pop()["x"].pop("x")),
    "dataclass": (Sample, _taken),
    "in a dataclass": (lambda x: Frozen({"x": x}), lambda data: data.held.pop("x")),
    "tensor of a dataclass": (Sample, lambda data: data.x.div_(2)),
}
"""How a batch is made of a tensor, and how a loss consumes it."""


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", CONSUMED)
def test_a_batch_that_its_loss_consumes_does_not_end_a_run_that_is_asked_for_a_mode_it_fails_in(
    where: str, kind: str
) -> None:
    make, take = CONSUMED[kind]
    seen = []
    for request in (None, PrecisionRequest(1, BF16)):
        trainer = _trainer(model_that_fails(where))
        refused = _told(trainer)
        trainer.request_source = lambda applied, request=request: request if not applied else None
        for number in range(6):
            trainer.backward_and_step(
                trainer.training_step(make(batch(number)), lambda model, data: loss_of(model, take(data)))
            )
            if trainer.modes.declined:
                trainer.request_source = None
        trainer.drain()
        assert (trainer.mode, len(refused)) == (FP32, int(request is not None))
        seen.append([p.tolist() for p in trainer.model.parameters()])
    assert seen[0] == seen[1]


def test_a_batch_is_put_back_in_place_with_the_very_same_objects_in_the_same_order() -> None:
    inner: list[object] = [batch(0), "a"]
    data: dict[str, object] = {"b": inner, "a": batch(1), "c": 3}
    before = list(data.items())
    kept = KeptBatch(data)
    for _ in range(2):
        data.pop("b")
        data["new"] = data["a"] = 4
        inner.clear()
        kept.restore()
        assert all(
            is_now is was
            for now, then in zip(data.items(), before, strict=True)
            for is_now, was in zip(now, then, strict=True)
        )
        assert len(inner) == 2


def test_a_container_that_the_script_fills_anew_before_the_backward_pass_keeps_what_it_was_filled_with() -> None:
    trainer = _trainer(model_that_fails("backward"), BF16)
    data = {"x": batch(0)}
    loss = trainer.training_step(data, lambda model, data: loss_of(model, data["x"]))
    mine = data["x"] = batch(1)
    trainer.backward_and_step(loss)
    assert trainer.modes.failed(BF16)
    assert data["x"] is mine


class Loader:
    """Hands out data, and counts it."""

    def __init__(self) -> None:
        self.waiting: object = None
        self.count = 0


@pytest.mark.parametrize(
    "waiting", [iter([1, 2]), queue.Queue(), torch.nn.Linear(1, 1)], ids=["iterator", "queue", "model"]
)
def test_an_object_that_is_no_data_is_left_as_it_is(waiting: object) -> None:
    loader = Loader()
    loader.waiting = waiting
    kept = KeptBatch((loader, 1))
    loader.count = 7
    kept.restore()
    assert loader.count == 7


def test_a_batch_of_more_values_than_are_kept_is_left_as_it_is_and_the_rest_is_kept() -> None:
    long, short = list(range(20_000)), [1, 2]
    deep: list[object] = []
    for _ in range(50):
        deep = [deep]
    kept = KeptBatch({"long": long, "short": short, "deep": deep})
    long.clear()
    short.clear()
    kept.restore()
    assert (long, short) == ([], [1, 2])


def test_a_batch_that_holds_itself_is_kept() -> None:
    data: dict[str, object] = {"x": batch(0)}
    data["me"] = data
    kept = KeptBatch(data)
    data.clear()
    kept.restore()
    assert data["me"] is data


def used_up_task() -> tuple[torch.nn.Module, Callable[[int, int], deque[torch.Tensor]], object]:
    """For ``precision-trainer train``: its batches cannot be put back."""
    return (
        model_that_fails("forward"),
        lambda position, size: deque([torch.full((size, WIDTH), 1.0 + position % 7)]),
        lambda model, data: loss_of(model, data.popleft()),
    )


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_fails_in_another_way_in_the_mode_before_is_the_scripts_error_once(where: str) -> None:
    trainer = _trainer(model_that_fails(where), gradient_accumulation_steps=2)
    refused = _told(trainer)
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16) if not applied else None
    errors = 0
    for number in range(9):
        try:
            loss = trainer.training_step(deque([batch(number)]), lambda model, data: loss_of(model, data.popleft()))
            trainer.backward_and_step(loss)
        except IndexError:
            errors += 1
            trainer.request_source = None
    trainer.drain()
    assert (errors, trainer.mode, trainer.step) == (1, FP32, 4)
    (message,) = refused
    assert f"RuntimeError in its {where} pass" in message
    assert f"in fp32, the batch fails too, with another error: IndexError in its {where} pass" in message


def test_a_model_that_only_runs_in_16_bits_stays_there_whatever_error_a_bad_batch_has_in_fp32() -> None:
    trainer = _trainer(torch.nn.Sequential(torch.nn.Linear(WIDTH, 1), Half("forward", torch.float32)), BF16)
    refused = _told(trainer)

    def checked(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, data)
        if data.isnan().any():
            raise ValueError("a broken sample")
        return loss

    errors = 0
    for number in range(4):
        try:
            data = batch(number) if number else torch.full((4, WIDTH), torch.nan)
            trainer.backward_and_step(trainer.training_step(data, checked))
        except (ValueError, RuntimeError):
            errors += 1
    assert (errors, trainer.mode, trainer.step, refused) == (1, BF16, 3, [])


def test_an_error_that_names_the_modes_types_or_sizes_is_the_same_in_two_modes() -> None:
    trainer = _trainer(torch.nn.Linear(WIDTH, 1))
    refused = _told(trainer)
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16) if not applied else None

    def wrong(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        out = model(data)
        if len(data) == 3 and trainer.modes.trial is not None:
            raise RuntimeError(f"expected Double, got {out.dtype} of {out.element_size()} bytes")
        return out.float().square().mean()  # type: ignore[no-any-return]

    errors = 0
    for number in range(6):
        trainer.begin_step()
        bad = trainer.modes.trial is not None and not errors
        try:
            trainer.backward_and_step(trainer.training_step(batch(number)[: 3 if bad else 4], wrong))
        except RuntimeError:
            errors += 1
    assert (errors, trainer.mode, refused) == (1, BF16, [])


def test_no_restart_tries_a_mode_whose_trial_used_up_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tmp_path, monkeypatch, capsys)
    task = f"{__name__}:used_up_task"
    with pytest.raises(IndexError):
        session.run({4: session.write('{"generation":3,"mode":"bf16"}')}, model=task, steps=10)
    assert len(session.events("request_refused")) == 1
    for steps in (10, 20):
        session.run(model=task, steps=steps)
        assert session.events("complete")
        (refused,) = session.events("request_refused")
        assert (
            "request 3 for bf16 refused: the model failed in it: a process before this one failed" in refused["message"]
        )


class FailsOnce(torch.autograd.Function):
    """Its first backward pass fails."""

    failed = False

    @staticmethod
    def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        if not FailsOnce.failed:
            FailsOnce.failed = True
            raise ValueError("of a moment")
        return gradients[0]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_error_of_a_moment_in_the_backward_pass_leaves_the_mode_that_it_comes_first_in(
    accumulation: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailsOnce, "failed", False)
    model = torch.nn.Linear(WIDTH, 1)
    plain = copy.deepcopy(model)
    trainer = _trainer(model, BF16, gradient_accumulation_steps=accumulation)
    refused = _told(trainer)
    fails = lambda net, data: FailsOnce.apply(loss_of(net, data))  # noqa: E731
    for number in range(accumulation):
        trainer.backward_and_step(trainer.training_step(batch(number), fails))
    assert (trainer.mode, trainer.modes.trial, trainer.step, refused) == (BF16, None, 1, [])
    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert line["event"] == "trial_repeated"
    assert "ValueError in its backward pass (of a moment)" in line["message"]
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, fused=True)
    for number in range(accumulation):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(plain, batch(number))
        torch.autograd.backward(loss / accumulation)
    optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_sample_that_is_corrupt_does_not_refuse_the_mode_whose_first_step_draws_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = _trainer(torch.nn.Linear(WIDTH, 1), BF16)
    refused = _told(trainer)
    data = iter([None, *map(batch, range(3))])

    def drawn(model: torch.nn.Module, _batch: object) -> torch.Tensor:
        found = next(data)
        if found is None:
            raise ValueError("a corrupt sample")
        return loss_of(model, found)

    for _ in range(3):
        trainer.backward_and_step(trainer.training_step(None, drawn))
    assert (trainer.mode, trainer.modes.trial, trainer.step, refused) == (BF16, None, 3, [])
    (line,) = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert "ValueError in its forward pass (a corrupt sample)" in line["message"]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_micro_batch_of_a_refused_mode_is_computed_three_times(where: str) -> None:
    trainer = _trainer(model_that_fails(where), BF16)
    calls = 0

    def counted(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss_of(model, data)

    trainer.backward_and_step(trainer.training_step(batch(0), counted))
    assert (calls, trainer.mode) == (3, FP32)


CHANGED = "the pass had changed weights before it failed, and they are not put back"


def test_a_loss_that_moves_weights_before_it_fails_is_computed_in_the_mode_once_and_the_refusal_says_so() -> None:
    model = torch.nn.Linear(WIDTH, 1)
    trainer = _trainer(model)
    refused = _told(trainer)
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16) if not applied else None
    computed: list[torch.dtype] = []

    def perturbed(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        gradients = torch.autograd.grad(loss_of(net, data), list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.add_(gradient)
        out = net(data)
        computed.append(out.dtype)
        if out.dtype is torch.bfloat16:
            raise RuntimeError("no such kernel")
        return out.square().mean()  # type: ignore[no-any-return]

    for number in range(4):
        trainer.backward_and_step(trainer.training_step(batch(number), perturbed))
        if trainer.modes.declined:
            trainer.request_source = None
    assert computed.count(torch.bfloat16) == 1
    assert computed.count(torch.float32) == trainer.step == 4
    (message,) = refused
    assert f"RuntimeError in its forward pass (no such kernel); {CHANGED}; training goes on in fp32" in message


def test_a_parameter_without_a_shape_is_no_matter() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 1), torch.nn.LazyLinear(1))
    found = guarded(lambda: loss_of(model, batch(0)), model, "forward", micro=0, together=False)
    assert found.failed is None


def test_an_optimizer_in_hooks_of_the_backward_pass_steps_no_more_than_in_the_trial_and_the_way_back() -> None:
    model = model_that_fails("backward")
    steps = 0

    def step(parameter: torch.Tensor) -> None:
        nonlocal steps
        steps += 1
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)
        parameter.grad = None

    last = [model.get_parameter("3.weight"), model.get_parameter("3.bias")]
    for parameter in last:
        parameter.register_post_accumulate_grad_hook(step)
    trainer = _trainer(model, BF16)
    refused = _told(trainer)
    trainer.backward_and_step(trainer.training_step(batch(0), loss_of))
    assert (steps, trainer.mode) == (2 * len(last), FP32)
    (message,) = refused
    assert CHANGED in message


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tried to allocate 600.00 MiB", "tried to allocate 1.17 GiB"),
        ("<Sample object at 0x7f3c2a10>", "<Sample object at 0x7f3c9b40>"),
        ("expected Float but found Half", "expected Float but found BFloat16"),
    ],
)
def test_an_error_is_the_same_in_two_modes_but_for_sizes_addresses_and_types(one: str, other: str) -> None:
    assert kind_of(RuntimeError(one)) == kind_of(RuntimeError(other))


def test_fp32_is_never_refused_for_good_where_a_batch_was_used_up() -> None:
    def loss(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu"):
            raise KeyError("used up")
        raise ValueError("for a moment")

    trainer = _trainer(torch.nn.Linear(WIDTH, WIDTH), BF16)
    refused = _told(trainer)
    trainer.backward_and_step(trainer.training_step(batch(0), loss_of))
    trainer.apply(PrecisionRequest(1, FP32))
    with pytest.raises(ValueError, match="for a moment"):
        trainer.training_step(batch(1), loss)
    assert (trainer.mode, refused) == (FP32, [])


def test_nothing_of_a_refused_request_stays() -> None:
    trainer = _trainer(model_that_fails("forward", torch.float16), BF16)
    assert trainer.sentinel is not None
    trainer.backward_and_step(trainer.training_step(batch(0), loss_of))
    layer = trainer.sentinel.layers.names[0]
    trainer.sentinel.load_state_dict({"level": 2, "pinned": [layer], "strikes": 1, "order": "bf16@0"})
    before = trainer.scaler.state_dict()
    refused = _told(trainer)
    trainer.apply(PrecisionRequest(1, FP16, loss_scale_factor=0.5, growth_interval=7))
    assert trainer.sentinel.level is Level.NOMINAL
    trainer.backward_and_step(trainer.training_step(batch(1), loss_of))
    assert len(refused) == 1
    assert (trainer.mode, trainer.generation) == (BF16, 0)
    assert (trainer.sentinel.level, trainer.sentinel.pinned) == (Level.PIN, [layer])
    assert trainer.scaler.state_dict() == before
