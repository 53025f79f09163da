"""One process: the step in every mode, overflow, host waits."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, FP16Trainer, PrecisionMode
from precision_trainer.errors import ConfigError
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from precision_trainer.step.steps import StepRecord
from precision_trainer.step.update import NORM_EVERY_STEPS, GradientUpdate
from precision_trainer.step.weights import LOOK_AFTER_STEPS
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.training.harmless_scenarios import Masked
from tests.support.training.steps import BATCH, BF16, CONTEXT, FP16, FP32, make, step, weights
from tests.support.training.waits import CountWaits

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("mode", [FP32, FP16, BF16])
def test_learns_and_keeps_everything_fp32(mode: PrecisionMode, text: LibraryText) -> None:
    trainer = make(mode, loss_scale=1024.0)
    losses = [step(trainer, text) for _ in range(25)]
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5
    tensors = [*trainer.model.parameters()]
    tensors += [value for state in trainer.optimizer.state.values() for value in state.values()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert trainer.get_stats()["training_steps"] == 25


@pytest.mark.parametrize("mode", [FP32, FP16, BF16])
def test_a_step_with_a_fused_optimizer_waits_for_nothing(mode: PrecisionMode, text: LibraryText) -> None:
    trainer = make(mode, loss_scale=1024.0, max_grad_norm=1.0)
    batch = text.batch(0, BATCH)
    for _ in range(3):
        trainer.backward_and_step(trainer.training_step(batch, next_byte_loss))
    trainer.request_source = lambda applied: PrecisionRequest(1, BF16)
    with CountWaits() as count:
        for _ in range(5):
            trainer.backward_and_step(trainer.training_step(batch, next_byte_loss))
    assert count.waits == 0
    assert trainer.mode is BF16


def test_the_counter_of_waits_counts(text: LibraryText) -> None:
    trainer = make(FP16, fused=False)
    with CountWaits() as count:
        step(trainer, text)
    assert count.waits > 0


@pytest.mark.parametrize("fused", [True, False])
def test_skipped_steps_are_reported_right_and_change_nothing(fused: bool, text: LibraryText) -> None:
    """accelerate#4242: with fused optimizers others report a skipped step as taken."""
    trainer = make(FP16, fused=fused, loss_scale=1024.0)
    step(trainer, text)
    before = weights(trainer)
    step(trainer, text, float("inf"))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    stats = trainer.get_stats()
    assert (stats["training_steps"], stats["overflow_steps"], stats["nonfinite_steps"]) == (2, 1, 0)
    assert stats["overflow_rate"] == 0.5
    assert stats["current_scale"] == 512.0
    adam_steps = {float(state["step"]) for state in trainer.optimizer.state.values()}
    assert adam_steps == {1.0}


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True),
        lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
        lambda parameters: torch.optim.NAdam(parameters, lr=1e-3),
    ],
    ids=["momentum", "fused-sgd", "rmsprop", "adagrad", "nadam"],
)
def test_any_optimizer_learns_in_fp16_and_leaves_out_a_step_that_overflows(
    make_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer], text: LibraryText
) -> None:
    torch.manual_seed(0)
    model = ByteTransformer(TransformerConfig(width=32, layers=2, context=CONTEXT))
    config = ExtendedFP16Config(precision_mode=FP16, loss_scale=1024.0)
    trainer = ExtendedFP16Trainer(model, make_optimizer(model.parameters()), config, allow_cpu=True)
    losses = [step(trainer, text) for _ in range(25)]
    assert sum(losses[-5:]) < sum(losses[:5])
    before = weights(trainer)
    step(trainer, text, float("inf"))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    assert trainer.get_stats()["overflow_steps"] == 1
    step(trainer, text)
    assert not all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))


@pytest.mark.parametrize("mode", [FP32, BF16])
@pytest.mark.parametrize("fused", [True, False])
def test_non_finite_loss_without_a_scaler_is_counted_and_poisons_nothing(
    mode: PrecisionMode, fused: bool, text: LibraryText
) -> None:
    trainer = make(mode, fused=fused)
    step(trainer, text)
    before = weights(trainer)
    step(trainer, text, float("nan"))
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
    stats = trainer.get_stats()
    assert (stats["overflow_steps"], stats["nonfinite_steps"]) == (0, 1)
    step(trainer, text)
    assert not all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))


def test_without_a_sentinel_fp16_steps_on_poisoned_weights_count_as_nonfinite_until_other_weights_are_loaded(
    text: LibraryText, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(FP16, loss_scale=1024.0, sentinel=SentinelConfig(enabled=False))
    step(trainer, text)
    good = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(float("nan"))
    records: list[StepRecord] = []
    for _ in range(LOOK_AFTER_STEPS + 5):
        step(trainer, text)
        records += trainer.drain().records
    assert all(record.skipped for record in records)
    # The look is said in the step after it, and known at the boundary after that one.
    assert [record.nonfinite for record in records] == [False] * (LOOK_AFTER_STEPS + 1) + [True] * 4
    assert not any(record.nonfinite and record.overflow for record in records)
    stats = trainer.get_stats()
    assert (stats["overflow_steps"], stats["nonfinite_steps"]) == (LOOK_AFTER_STEPS + 1, 4)
    assert capsys.readouterr().out.count('"event": "weights_not_finite"') == 1
    trainer.model.load_state_dict(good)
    trainer.rewound()
    step(trainer, text, float("inf"))
    (overflow,) = trainer.drain().records
    assert (overflow.overflow, overflow.nonfinite) == (True, False)
    step(trainer, text)
    assert not trainer.drain().records[0].skipped


def test_without_a_sentinel_overflows_that_do_not_end_stay_overflows_where_the_weights_are_finite(
    text: LibraryText,
) -> None:
    trainer = make(FP16, sentinel=SentinelConfig(enabled=False))
    for _ in range(3 * LOOK_AFTER_STEPS):
        step(trainer, text, float("inf"))
    stats = trainer.get_stats()
    assert (stats["overflow_steps"], stats["nonfinite_steps"]) == (3 * LOOK_AFTER_STEPS, 0)


def _overflow_for_long(model: torch.nn.Module) -> ExtendedFP16Trainer:
    """Forty overflows in a row without a sentinel."""
    config = ExtendedFP16Config(precision_mode=FP16, sentinel=SentinelConfig(enabled=False))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    trainer = ExtendedFP16Trainer(model, torch.optim.AdamW(trained, fused=True), config, allow_cpu=True)
    batch = torch.ones(2, next(model.parameters()).shape[-1])
    for _ in range(2 * LOOK_AFTER_STEPS):
        loss = trainer.training_step(batch, lambda model, batch: model(batch).float().mean() * float("inf"))
        trainer.backward_and_step(loss)
    return trainer


def test_without_a_sentinel_a_frozen_mask_of_minus_infinity_is_no_poison() -> None:
    stats = _overflow_for_long(Masked(frozen=True)).get_stats()
    assert (stats["overflow_steps"], stats["nonfinite_steps"]) == (2 * LOOK_AFTER_STEPS, 0)


class _Adapted(torch.nn.Module):
    """A trained adapter over weights of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.base = torch.nn.Parameter(torch.ones(4, 4, dtype=torch.uint8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.base.float() + self.weight)


def test_without_a_sentinel_overflows_over_frozen_integer_weights_end_nothing() -> None:
    stats = _overflow_for_long(_Adapted()).get_stats()
    assert (stats["overflow_steps"], stats["nonfinite_steps"]) == (2 * LOOK_AFTER_STEPS, 0)


def test_weights_that_cannot_be_looked_at_are_unknown_and_end_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_parameters: object) -> bool:
        raise NotImplementedError("no kernel")

    monkeypatch.setattr("precision_trainer.step.weights.are_finite", fail)
    stats = _overflow_for_long(torch.nn.Linear(4, 4)).get_stats()
    assert (stats["overflow_steps"], stats["nonfinite_steps"]) == (2 * LOOK_AFTER_STEPS, 0)
    assert capsys.readouterr().out.count('"check": "finite weights"') == 1


def test_clipping_comes_after_unscaling(text: LibraryText) -> None:
    for mode in (FP32, FP16):
        trainer = make(mode, max_grad_norm=0.25, loss_scale=65536.0)
        seen: list[float] = []

        def spy(optimizer: torch.optim.Optimizer, *_: object, norms: list[float] = seen) -> None:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
            norms.append(float(torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))))

        trainer.optimizer.register_step_pre_hook(spy)
        step(trainer, text)
        assert seen[0] == pytest.approx(0.25, rel=1e-3)


@pytest.mark.parametrize("mode", [FP32, FP16, BF16])
def test_without_clipping_norms_are_sampled_and_a_gradient_that_is_not_finite_is_found_in_every_step(
    mode: PrecisionMode, text: LibraryText
) -> None:
    trainer = make(mode, max_grad_norm=0.0, loss_scale=1024.0)
    bad = {5, NORM_EVERY_STEPS}  # one that is not measured, one that is
    last = list(trainer.model.parameters())[-1]
    last.register_hook(lambda gradient: gradient * (float("inf") if trainer.step in bad else 1.0))
    records: list[StepRecord] = []
    for number in range(NORM_EVERY_STEPS + 2):
        before = weights(trainer)
        step(trainer, text)
        same = all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))
        assert same is (number in bad)
        records += trainer.drain().records
    assert [record.step for record in records if record.skipped] == sorted(bad)
    assert [record.overflow for record in records] == [mode is FP16 and record.step in bad for record in records]
    assert [record.step for record in records if record.grad_norm is not None] == [0, NORM_EVERY_STEPS]
    assert trainer.get_stats()["nonfinite_steps"] == (0 if mode is FP16 else 2)


def test_clipping_does_what_clip_grad_norm_does_bit_for_bit() -> None:
    generator = torch.Generator().manual_seed(3)
    for scale in (1e-3, 1.0, 300.0, 1e15):
        ours, theirs = (torch.nn.Linear(33, 17) for _ in range(2))
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            gradient = torch.randn(a.shape, generator=generator) * scale
            a.grad, b.grad = gradient.clone(), gradient.clone()
        seen: list[torch.Tensor] = []
        optimizer = torch.optim.SGD(ours.parameters(), lr=0.0)
        optimizer.register_step_pre_hook(
            lambda *_, kept=seen, module=ours: kept.extend(p.grad for p in module.parameters())
        )
        updated = GradientUpdate(optimizer, 0.7, device=torch.device("cpu"))(None, measure=False)
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.7)
        assert updated.norm is not None
        assert torch.equal(updated.norm.squeeze(), norm)
        assert all(
            b.grad is not None and torch.equal(a, b.grad) for a, b in zip(seen, theirs.parameters(), strict=True)
        )


def test_accumulation_equals_one_large_batch(text: LibraryText) -> None:
    whole, parts = make(FP32), make(FP32, gradient_accumulation_steps=4)
    batch = text.batch(0, 8)
    whole.backward_and_step(whole.training_step(batch, next_byte_loss))
    ends = [parts.backward_and_step(parts.training_step(batch[i : i + 2], next_byte_loss)) for i in range(0, 8, 2)]
    assert ends == [False, False, False, True]
    for a, b in zip(weights(whole), weights(parts), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_cpu_falls_back_to_fp32_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    model = torch.nn.Linear(2, 2)
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), ExtendedFP16Config())
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert trainer.mode is FP32
    assert trainer.get_stats()["fp16_enabled_runtime"] is False
    assert len(lines) == 1
    assert "Falling back to FP32" in lines[0]["message"]


def test_16_bit_weights_and_unaveraged_ranks_are_refused() -> None:
    half = torch.nn.Linear(2, 2).half()
    with pytest.raises(ConfigError, match=r"torch\.float16"):
        ExtendedFP16Trainer(half, torch.optim.SGD(half.parameters(), lr=0.1))
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="use_ddp"):
        ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), world_size=2)


def test_loss_must_be_reduced() -> None:
    trainer = make(FP32)
    with pytest.raises(ConfigError, match="0-dim"):
        trainer.training_step(torch.zeros(2, CONTEXT, dtype=torch.int64), lambda model, batch: model(batch))


def test_the_basic_trainer_trains_in_fp16_counts_overflows_and_keeps_its_state(
    text: LibraryText, tmp_path: Path
) -> None:
    def basic() -> FP16Trainer:
        model = ByteTransformer(TransformerConfig(width=32, layers=2, context=CONTEXT))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        return FP16Trainer(model, optimizer, loss_scale=1024.0, allow_cpu=True)

    trainer = basic()
    assert trainer.fp16_enabled
    assert trainer.backward_and_step(trainer.training_step(text.batch(0, BATCH), next_byte_loss))
    trainer.backward_and_step(trainer.training_step(text.batch(0, BATCH), next_byte_loss) * float("inf"))
    stats = trainer.get_stats()
    assert (stats["training_steps"], stats["overflow_steps"], stats["current_scale"]) == (2, 1, 512.0)
    assert stats["scale_history"] == [(0, 1024.0), (1, 512.0)]
    trainer.save_checkpoint(tmp_path / "basic.pt")
    other = basic()
    other.load_checkpoint(tmp_path / "basic.pt")
    assert other.get_stats()["current_scale"] == 512.0


def test_layer_norms_are_those_of_the_gradients(text: LibraryText) -> None:
    trainer = make(FP32)
    assert trainer.layer_norms() == {}
    step(trainer, text)
    (record,) = trainer.drain().records
    total = sum(norm**2 for norm in trainer.layer_norms().values()) ** 0.5
    assert total == pytest.approx(record.grad_norm, rel=1e-5)


def test_scale_history_is_capped(text: LibraryText) -> None:
    from precision_trainer.step.stats import SCALE_HISTORY, Totals

    totals = Totals()
    for number in range(SCALE_HISTORY + 50):
        totals.observe(StepRecord(number, FP16, 0, 1.0, skipped=False, loss_scale=float(number + 1), grad_norm=1.0))
    assert len(totals.scale_history) == SCALE_HISTORY
    assert totals.scale_history[-1] == (SCALE_HISTORY + 49, float(SCALE_HISTORY + 50))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_loss_of_a_backward_pass_that_failed_is_not_reported(accumulation: int) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            raise MemoryError("no memory left")

    model = torch.nn.Linear(2, 1)
    config = ExtendedFP16Config(
        precision_mode=PrecisionMode.FP32, gradient_accumulation_steps=accumulation, max_grad_norm=0.0
    )
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), config)
    inputs = torch.ones(4, 2)
    losses: list[float] = []
    for _ in range(3 * accumulation):
        for fails in (True, False):
            loss = trainer.training_step(inputs, lambda net, data: net(data).square().mean())
            loss = Fails.apply(loss) if fails else loss
            with contextlib.suppress(MemoryError):
                if trainer.backward_and_step(loss):
                    losses += [record.loss for record in trainer.drain().records]
    assert losses == pytest.approx([model(inputs).square().mean().item()] * 3)
