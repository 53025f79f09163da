"""A mode that the model fails in is left before it counts: on all ranks, by the layer's name, and no restart loops."""

from __future__ import annotations

import json
import types
import weakref
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import ConfigError
from precision_trainer.precision.first_step import FirstStep
from precision_trainer.values.levels import Level
from precision_trainer.values.request import PrecisionRequest
from tests.support.training.preflight_scenarios import (
    WIDTH,
    Half,
    Stateful,
    batch,
    loss_of,
    marked,
    model_that_fails,
    model_that_fails_on_marked,
)
from tests.support.training.session import STOP, Session

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
TASK = "tests.support.training.preflight_scenarios:failing_task"

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


def _trainer(model: torch.nn.Module, mode: PrecisionMode = FP32, **settings: object) -> ExtendedFP16Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    config = ExtendedFP16Config(precision_mode=mode, loss_scale=1024.0, **settings)  # type: ignore[arg-type]
    return ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)


def _run(trainer: ExtendedFP16Trainer, steps: int, asked: dict[int, PrecisionRequest] | None = None) -> list[float]:
    waiting: list[PrecisionRequest] = []
    trainer.request_source = lambda applied: next((r for r in waiting if r.generation > applied), None)
    seen = []
    for number in range(steps):
        waiting = [asked[number]] if asked and number in asked else waiting
        for micro in range(trainer.config.gradient_accumulation_steps):
            loss = trainer.training_step(batch(number * 8 + micro), loss_of)
            trainer.backward_and_step(loss)
            seen.append(float(loss.detach()))
    trainer.drain()
    return seen


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_request_for_a_mode_the_model_fails_in_is_refused_and_changes_nothing(
    where: str, accumulation: int, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = _trainer(model_that_fails(where), gradient_accumulation_steps=accumulation)
    refused: list[tuple[str, str]] = []
    trainer.modes.on_refused = lambda reason, message: refused.append((reason, message))
    asked = _run(trainer, 12, {4: PrecisionRequest(1, BF16), 8: PrecisionRequest(2, BF16)})
    untouched = _run(_trainer(model_that_fails(where), gradient_accumulation_steps=accumulation), 12)
    if where == "forward":
        assert asked == untouched
    weights = [p.tolist() for p in trainer.model.parameters()]
    plain = _trainer(model_that_fails(where), gradient_accumulation_steps=accumulation)
    _run(plain, 12)
    assert weights == [p.tolist() for p in plain.model.parameters()]
    assert (trainer.mode, trainer.generation) == (FP32, 0)
    assert [reason for reason, _ in refused] == ["NotAllowed", "NotAllowed"]
    assert "request 1 for bf16 refused" in refused[0][1]
    assert "in 1 (" in refused[0][1]
    assert "request 2 for bf16 refused: the model failed in it: when it was tried before" in refused[1][1]


def test_state_of_every_kind_is_put_back_before_a_micro_batch_is_computed_once_more() -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(Stateful(), torch.nn.Linear(WIDTH, WIDTH), Half("forward", torch.bfloat16))

    asked = _trainer(model())
    seen = _run(asked, 8, {3: PrecisionRequest(1, BF16)})
    untouched = _trainer(model())
    assert seen == _run(untouched, 8)
    assert asked.modes.failed(BF16)
    for own, other in zip(asked.model.buffers(), untouched.model.buffers(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("kind", ["tensor", "dictionary", "of inference mode"])
def test_a_batch_that_the_loss_writes_to_is_put_back_too(where: str, kind: str) -> None:
    def written_to(model: torch.nn.Module, data: object) -> torch.Tensor:
        tensor = data["x"] if isinstance(data, dict) else data
        assert isinstance(tensor, torch.Tensor)
        with torch.inference_mode(tensor.is_inference()):
            tensor.div_(2)
        return loss_of(model, tensor.clone() if tensor.is_inference() else tensor)

    def given(number: int) -> object:
        data = batch(number)
        if kind == "of inference mode":
            with torch.inference_mode():
                return data.clone()
        return {"x": data} if kind == "dictionary" else data

    seen = []
    for generation in (0, 1):
        trainer = _trainer(model_that_fails(where))
        request = PrecisionRequest(generation, BF16) if generation else None
        trainer.request_source = lambda applied, request=request: request if not applied else None
        for number in range(6):
            trainer.backward_and_step(trainer.training_step(given(number), written_to))
        trainer.drain()
        assert trainer.modes.failed(BF16) == bool(generation)
        seen.append([p.tolist() for p in trainer.model.parameters()])
    assert seen[0] == seen[1]


def test_a_buffer_that_the_script_fills_anew_before_the_backward_pass_keeps_what_it_was_filled_with() -> None:
    trainer = _trainer(model_that_fails("backward"), BF16)
    buffer = batch(0)
    loss = trainer.training_step(buffer, lambda model, data: loss_of(model, data.div_(2)))
    buffer.copy_(batch(1))
    trainer.backward_and_step(loss)
    assert trainer.modes.failed(BF16)
    assert not torch.equal(buffer, batch(0))


class Unkept(torch.Tensor):
    """Cannot be copied."""

    def detach(self) -> torch.Tensor:
        raise TypeError("no copies")


@pytest.mark.parametrize(
    "data", [torch.ones(4, WIDTH).as_subclass(Unkept), torch.ones(1).expand(2**15, 2**14)], ids=["unkept", "large"]
)
def test_a_batch_that_cannot_be_kept_is_trained_on_all_the_same(data: torch.Tensor) -> None:
    trainer = _trainer(torch.nn.Linear(WIDTH, 1), BF16)
    trainer.backward_and_step(trainer.training_step(data, lambda model, _: loss_of(model, batch(0))))
    assert (trainer.mode, trainer.step) == (BF16, 1)


def test_another_mode_can_be_asked_for_afterwards() -> None:
    trainer = _trainer(model_that_fails("forward", torch.bfloat16))
    _run(trainer, 12, {3: PrecisionRequest(1, BF16), 6: PrecisionRequest(2, FP16)})
    assert (trainer.mode, trainer.generation) == (FP16, 2)


def test_a_model_that_only_runs_in_16_bits_is_not_taken_to_fp32() -> None:
    trainer = _trainer(model_that_fails("forward", torch.float32), BF16)
    _run(trainer, 12, {4: PrecisionRequest(1, FP32)})
    assert (trainer.mode, trainer.generation) == (BF16, 0)


def test_an_error_that_has_nothing_to_do_with_the_mode_is_the_scripts_own() -> None:
    def wrong(_model: torch.nn.Module, _batch: torch.Tensor) -> torch.Tensor:
        raise KeyError("label")

    with pytest.raises(KeyError, match="label"):
        _trainer(model_that_fails("forward"), BF16).training_step(batch(0), wrong)


def test_a_batch_that_the_loop_skips_leaves_the_mode_that_it_came_first_in() -> None:
    trainer = _trainer(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)))
    refused: list[tuple[str, str]] = []
    trainer.modes.on_refused = lambda reason, message: refused.append((reason, message))
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16) if applied < 1 else None
    skipped: list[int] = []
    for number in range(12):
        trainer.begin_step()
        first = trainer.modes.trial is not None and len(skipped) < 3
        inputs = torch.randn(8, 3 if first else 4, generator=torch.Generator().manual_seed(number))
        try:
            loss = trainer.training_step(inputs, lambda model, data: model(data).square().mean())
        except RuntimeError:
            skipped.append(number)
            continue
        trainer.backward_and_step(loss)
    trainer.drain()
    assert len(skipped) == 3
    assert (trainer.mode, trainer.generation, refused) == (BF16, 1, [])


def test_a_batch_whose_backward_pass_fails_in_any_mode_leaves_the_mode_too() -> None:
    trainer = _trainer(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()))
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16) if applied < 1 else None
    fails = torch.nn.Sequential(*(Half("backward", dtype) for dtype in (torch.bfloat16, torch.float32)))
    skipped = 0
    for number in range(12):
        trainer.begin_step()
        bad = trainer.modes.trial is not None and skipped < 3
        model = torch.nn.Sequential(trainer.model, fails) if bad else trainer.model
        loss = trainer.training_step(batch(number), lambda _, data, model=model: loss_of(model, data))  # type: ignore[misc]
        try:
            trainer.backward_and_step(loss)
        except RuntimeError:
            skipped += 1
    trainer.drain()
    assert (skipped, trainer.mode, trainer.generation) == (3, BF16, 1)


def test_a_model_that_only_runs_in_fp16_stays_there_where_the_sentinel_would_leave_it() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), *(Half("forward", dtype) for dtype in (torch.bfloat16, torch.float32))
    )
    trainer = _trainer(model, FP16)
    assert trainer.sentinel is not None
    _run(trainer, 2)
    trainer.sentinel._enter(Level.BF16, ())
    trainer.modes.settle(trainer.step)
    _run(trainer, 3)
    assert trainer.mode is FP16


def test_a_module_that_fails_is_kept_in_fp32_by_name_and_the_mode_is_entered() -> None:
    trainer = _trainer(model_that_fails("forward"), fp32_modules=("1*",))
    _run(trainer, 8, {3: PrecisionRequest(1, BF16)})
    assert (trainer.mode, trainer.generation) == (BF16, 1)


def test_a_name_that_matches_no_module_is_refused_with_names_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'lstm' matches no module: expected .* such as 0, 1, 2"):
        _trainer(model_that_fails("forward"), fp32_modules=("lstm",))


def test_a_start_under_such_a_request_goes_on_in_fp32_and_so_does_every_restart(session: Session) -> None:
    session.request.write_text('{"generation":7,"mode":"bf16"}')
    for steps in (10, 20):
        session.run(model=TASK, steps=steps)
        assert session.events("complete")
        (refused,) = session.events("request_refused")
        assert refused["reason"] == "NotAllowed"
        assert "request 7 for bf16 refused" in refused["message"]
        assert "PRECISION_FP32_MODULES" in refused["message"]
        assert session.value("genesis_precision_info{fp32,0}") == 1.0
        with pytest.raises(KeyError):
            session.value("genesis_precision_info{bf16,7}")


def test_a_hot_request_is_never_acknowledged_by_train_where_the_model_fails(session: Session) -> None:
    session.run({4: session.write('{"generation":3,"mode":"bf16"}'), 14: STOP}, model=TASK, steps=30)
    assert [(line["from"], line["to"], line["source"]) for line in session.events("precision_changed")] == [
        ("fp32", "bf16", "request"),
        ("bf16", "fp32", "preflight"),
    ]
    assert len(session.events("request_refused")) == 1
    assert session.value("genesis_precision_info{fp32,0}") == 1.0


class Lstm(torch.nn.Module):
    """What most CPUs cannot compute in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = torch.nn.LSTM(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.lstm(x)[0])
        return out


def _runs_here(dtype: torch.dtype) -> bool:
    """Whether this machine has kernels for it, by plain PyTorch."""
    model = Lstm()
    try:
        with torch.autocast("cpu", dtype):
            loss = loss_of(model, batch(0))
        torch.autograd.backward(loss)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize(("mode", "dtype"), [(BF16, torch.bfloat16), (FP16, torch.float16)])
def test_an_lstm_is_refused_by_name_where_the_machine_cannot_run_it_in_16_bits_and_goes_on_training(
    mode: PrecisionMode, dtype: torch.dtype
) -> None:
    trainer = _trainer(Lstm())
    refused: list[str] = []
    trainer.modes.on_refused = lambda reason, message: refused.append(f"{reason}: {message}")
    _run(trainer, 8, {3: PrecisionRequest(1, mode)})
    if _runs_here(dtype):
        assert (trainer.mode, refused) == (mode, [])
    else:
        assert trainer.mode is FP32
        assert len(refused) == 1
        assert refused[0].startswith("NotAllowed: ")
        assert "lstm" in refused[0]


def test_an_lstm_that_is_pinned_to_fp32_trains_in_16_bits() -> None:
    trainer = _trainer(Lstm(), FP32, fp32_modules=("lstm",))
    _run(trainer, 12, {3: PrecisionRequest(1, BF16), 7: PrecisionRequest(2, FP16)})
    assert (trainer.mode, trainer.generation) == (FP16, 2)


def test_a_layer_that_the_sentinel_pins_and_that_only_runs_in_16_bits_goes_on_as_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class HalfLinear(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            out = super().forward(input)
            if out.dtype is torch.float32:
                raise RuntimeError('"half_only" not implemented for Float')
            return out

    torch.manual_seed(0)
    model = torch.nn.Sequential(HalfLinear(8, 8), torch.nn.Linear(8, 1))
    trainer = _trainer(model, BF16)
    assert trainer.sentinel is not None
    trainer.sentinel._islands.set([0])
    _run(trainer, 5)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["check"] for line in lines if line["event"] == "sentinel_check_off"] == ["0 in FP32"]


@pytest.mark.parametrize("mode", [FP16, BF16])
def test_where_bf16_fails_the_sentinel_goes_on_to_fp32(mode: PrecisionMode) -> None:
    trainer = _trainer(model_that_fails("forward", torch.bfloat16), mode)
    assert trainer.sentinel is not None
    _run(trainer, 2)
    trainer.sentinel._enter(Level.BF16, ())
    trainer.modes.settle(trainer.step)
    _run(trainer, 3)
    assert trainer.mode is FP32


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("mode", [BF16, FP32], ids=["from the start", "asked for"])
@pytest.mark.parametrize("failing", [1, 2])
def test_micro_batches_of_a_mode_that_a_later_one_fails_in_are_left_out_of_the_step(
    where: str, mode: PrecisionMode, failing: int
) -> None:
    def data(step: int, micro: int) -> torch.Tensor:
        return marked(step * 3 + micro, mark=micro == failing)

    trainer = _trainer(model_that_fails_on_marked(where), mode, gradient_accumulation_steps=3)
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16) if mode is FP32 and applied < 1 else None
    tried = None
    while trainer.step < 6:
        trainer.begin_step()
        tried = trainer.step if trainer.modes.trial is not None else tried
        if trainer.modes.declined:
            trainer.request_source = None
        for micro in range(3):
            trainer.backward_and_step(trainer.training_step(data(trainer.step, micro), loss_of))
    trainer.drain()
    assert (trainer.mode, len(refused)) == (FP32, 1)

    plain = model_that_fails_on_marked(where)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, fused=True)
    for step in range(6):
        losses = [loss_of(plain, data(step, micro)) for micro in range(failing if step == tried else 0, 3)]
        torch.autograd.backward(torch.stack(losses).mean())
        optimizer.step()
        optimizer.zero_grad()
    for ours, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_that_are_not_the_trainers_are_left_alone_by_a_trial_that_fails() -> None:
    model = model_that_fails_on_marked("forward")
    model.register_parameter("own", torch.nn.Parameter(torch.ones(2)))
    trained = [p for name, p in model.named_parameters() if name != "own"]
    config = ExtendedFP16Config(precision_mode=BF16, gradient_accumulation_steps=3)
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(trained, lr=0.1), config, allow_cpu=True)
    own = model.get_parameter("own")
    own.grad = torch.full((2,), 2.0)
    for micro in range(3):
        trainer.backward_and_step(trainer.training_step(marked(micro, mark=micro == 1), loss_of))
    assert trainer.modes.failed(BF16)
    assert own.grad.tolist() == [2.0, 2.0]


def test_a_step_whose_other_micro_batches_have_no_gradient_ends_all_the_same() -> None:
    trainer = _trainer(model_that_fails_on_marked("forward"), BF16, gradient_accumulation_steps=2)
    other = torch.nn.Linear(WIDTH, 1)
    trainer.backward_and_step(trainer.training_step(marked(0, mark=False), loss_of))

    def elsewhere(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model(data)
        return loss_of(other, data)

    assert trainer.backward_and_step(trainer.training_step(marked(1, mark=True), elsewhere))
    assert (trainer.step, trainer.modes.failed(BF16)) == (1, True)


def test_what_a_trial_began_is_forgotten_where_a_checkpoint_is_loaded_in_it(tmp_path: Path) -> None:
    trainer = _trainer(model_that_fails("forward"), BF16, gradient_accumulation_steps=1)
    plain = _trainer(model_that_fails("forward"))
    for one in (trainer, plain):
        one.save_checkpoint(tmp_path / "one.pt")
    trainer.training_step(batch(0), loss_of)  # refused, computed in FP32, and given up
    for one in (trainer, plain):
        one.load_checkpoint(tmp_path / "one.pt")
        torch.manual_seed(1)
        for number in range(1, 4):
            one.backward_and_step(one.training_step(batch(number), loss_of))
    assert [p.tolist() for p in trainer.model.parameters()] == [p.tolist() for p in plain.model.parameters()]


def test_what_a_rank_computed_in_a_refused_mode_is_gone_while_it_computes_it_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = _trainer(torch.nn.Linear(WIDTH, WIDTH), BF16)
    wrapped = types.SimpleNamespace(will_sync_module_buffers=lambda: False)
    first = FirstStep(
        trainer.model,
        trainer.modes,
        trainer.optimizer,
        trainer.device,
        wrapped=cast("DistributedDataParallel", wrapped),
    )
    others = iter(["OutOfMemoryError"] * 2)
    monkeypatch.setattr(
        "precision_trainer.precision.preflight.process_group.exchange",
        lambda mine: [mine, {"pass": "forward 0", "failed": next(others, None)}],
    )
    made: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def compute() -> torch.Tensor:
        alive.append(sum(loss() is not None for loss in made))
        loss = loss_of(trainer.model, batch(0))
        made.append(weakref.ref(loss))
        return loss

    first.forward(compute, batch=None, step=0, micro=0)
    assert (alive[:3], trainer.mode) == ([0, 0, 0], FP32)
