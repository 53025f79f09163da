"""The shadow in FP32: what it measures, what it leaves alone, and when it is cast."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from precision_trainer.sentinel.shadow import ShadowReading, shadow
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.training.session import Session

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
_CPU = torch.device("cpu")


def _cast(model: torch.nn.Module, mode: PrecisionMode, scale: float = 1.0, factor: float = 1.0) -> ShadowReading | None:
    batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    return shadow(model, lambda m: (m(batch).float() - 1).square().mean() * factor, mode, scale=scale, device=_CPU)


def _loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).float().square().mean()
    return loss


def _model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 4)
    )


def test_the_same_precision_twice_differs_in_nothing_dropout_included() -> None:
    reading = _cast(_model(), FP32)
    assert reading is not None
    assert reading.error_ratio == 0.0
    assert reading.cosine == pytest.approx(1.0, abs=1e-6)


def test_rounding_shows_as_a_small_error_larger_in_bf16_than_in_fp16() -> None:
    text = LibraryText(16, max_bytes=1 << 15)
    torch.manual_seed(0)
    model = ByteTransformer(TransformerConfig(width=32, layers=2, context=16))
    batch = text.batch(0, 4)
    errors = {}
    for mode, scale in ((FP16, 1024.0), (BF16, 1.0)):
        reading = shadow(model, lambda m: next_byte_loss(m, batch), mode, scale=scale, device=_CPU)
        assert reading is not None
        assert 0.99 < reading.cosine < 1.0 + 1e-9
        errors[mode] = reading.error_ratio
    assert 0 < errors[FP16] < errors[BF16] < 0.05


def test_gradients_that_underflow_in_fp16_point_elsewhere_until_they_are_scaled() -> None:
    flushed = _cast(_model(), FP16, factor=1e-6)
    assert flushed is not None
    assert flushed.cosine < 0.95
    assert flushed.parameter_cosine <= flushed.cosine
    scaled = _cast(_model(), FP16, scale=2.0**16, factor=1e-6)
    assert scaled is not None
    assert scaled.cosine > 0.999


def test_what_is_not_finite_or_zero_is_not_known() -> None:
    assert _cast(_model(), FP16, scale=2.0**40) is None
    assert _cast(_model(), FP16, factor=1e-30) is None


def test_weights_gradients_buffers_and_random_state_stay_as_they_were() -> None:
    model = _model()
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    assert _cast(model, BF16) is not None
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(first.grad, torch.ones_like(first))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "0.weight")


@pytest.mark.parametrize(
    ("every", "expected"), [(100, [64, 164]), (20, [20, 40, 60, 80, 100, 120, 140, 160, 180]), (0, [])]
)
def test_it_is_cast_soon_after_a_switch_then_once_in_so_many_steps_and_never_in_fp32(
    every: int, expected: list[int]
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    config = ExtendedFP16Config(precision_mode=FP32, sentinel=SentinelConfig(shadow_steps=every))
    trainer = ExtendedFP16Trainer(
        model, torch.optim.AdamW(model.parameters(), fused=True), config, "cpu", allow_cpu=True
    )
    assert trainer.sentinel is not None
    seen: list[int] = []
    trainer.sentinel.measurements.observer = lambda _: seen.append(trainer.step)
    batch = torch.randn(8, 16)

    def steps(number: int) -> None:
        for _ in range(number):
            trainer.backward_and_step(trainer.training_step(batch, _loss, _loss))

    steps(130)
    assert seen == []
    trainer.drain()
    trainer.apply(PrecisionRequest(1, BF16))
    first = trainer.step
    steps(190)
    # Counted from the first step in the mode; a step is looked at when its record is read, one boundary later.
    assert [step - first - 1 for step in seen] == expected


def test_the_metric_is_there_while_low_precision_runs_and_gone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tmp_path, monkeypatch, capsys)
    session.request.write_text('{"generation":1,"mode":"bf16"}')
    session.run(steps=70)
    assert 0.9 < session.value("genesis_precision_gradient_cosine") <= 1.0
    assert 0.0 < session.value("genesis_precision_gradient_error_ratio") < 0.2
    session.run({145: session.write('{"generation":2,"mode":"fp32"}')}, steps=150)
    for name in ("genesis_precision_gradient_cosine", "genesis_precision_gradient_error_ratio"):
        with pytest.raises(KeyError):
            session.value(name)
