"""Weights and buffers that a bad batch left inf or NaN in, and a sentinel that fails itself: training goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import DivergedError
from precision_trainer.job import loop
from precision_trainer.sentinel.detectors import LossBaseline
from precision_trainer.sentinel.machine import SETTLE_STEPS
from precision_trainer.sentinel.measure import Measurements
from precision_trainer.sentinel.shell import Sentinel
from precision_trainer.step.steps import StepRecord
from precision_trainer.step.weights import are_finite
from precision_trainer.store.saver import Saver
from precision_trainer.values.levels import Level
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.training.session import Session

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
QUICK = SentinelConfig(window_steps=8, patience_windows=2, dwell_steps=24, max_dwell_steps=96, probe_steps=16)
WIDTH = 8
NAN = float("nan")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


def _loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = model(batch)
    return out.float().square().mean()


def _make(
    mode: PrecisionMode, *, mask: float = 0.0, lr: float = 1e-3, sentinel: SentinelConfig = QUICK
) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 2))
    model.register_buffer("mask", torch.full((2,), mask))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    config = ExtendedFP16Config(precision_mode=mode, loss_scale=1024.0, sentinel=sentinel)
    return ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)


def _run(trainer: ExtendedFP16Trainer, factors: list[float]) -> list[int]:
    """Train on batches times the factors; the steps at whose boundary a rewind was asked for."""
    rewinds = []
    for factor in factors:
        if trainer.begin_step().rewind:
            rewinds.append(trainer.step)
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(trainer.step)) * factor
        trainer.backward_and_step(trainer.training_step(batch, _loss))
    trainer.drain()
    return rewinds


def _events(capsys: pytest.CaptureFixture[str], *names: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["event"] in names]


@pytest.mark.parametrize("mode", [FP32, FP16, BF16])
def test_a_batch_that_leaves_nan_in_running_statistics_asks_for_a_rewind(mode: PrecisionMode) -> None:
    trainer = _make(mode)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = True
    (rewound,) = _run(trainer, [1.0] * 3 + [NAN] + [1.0] * 8)
    assert 3 < rewound <= 3 + 4
    assert trainer.sentinel.level is Level.REWIND


def test_running_statistics_alone_do_not_end_training_where_there_was_nothing_to_go_back_to() -> None:
    trainer = _make(FP32)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = trainer.sentinel.can_exit = True
    rewinds = _run(trainer, [1.0] * 3 + [NAN] + [1.0] * 16 + [NAN] + [1.0] * 16)
    assert len(rewinds) == 1
    assert trainer.sentinel.level is Level.REWIND


def test_poisoned_weights_end_training_where_there_was_nothing_to_go_back_to() -> None:
    trainer = _make(FP32)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = trainer.sentinel.can_exit = True
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(NAN)
    with pytest.raises(DivergedError, match="NonFiniteWeights"):
        _run(trainer, [1.0] * 40)


def test_a_second_bad_batch_soon_after_the_first_is_looked_at_once_it_may_be() -> None:
    trainer = _make(FP32)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = True
    # The loss alone is not finite in the first one: nothing is left in a buffer, and a look is spent.
    trainer.begin_step()
    batch = torch.ones(4, WIDTH)
    trainer.backward_and_step(trainer.training_step(batch, lambda model, data: _loss(model, data) * NAN))
    rewinds = _run(trainer, [1.0, 1.0, NAN] + [1.0] * 12)
    assert len(rewinds) == 1
    assert rewinds[0] <= 1 + QUICK.window_steps + 4


def test_a_step_that_nobody_looked_at_is_looked_into_soon_after_a_change_of_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer = _make(FP16, sentinel=replace(QUICK, window_steps=24))
    assert trainer.sentinel is not None
    _run(trainer, [1.0, NAN, NAN, 1.0, 1.0])
    assert len(_events(capsys, "sentinel_diagnosis")) == 1
    trainer.sentinel._enter(Level.LOWER_SCALE, ())
    _run(trainer, [1.0] * (SETTLE_STEPS + 3))
    assert len(_events(capsys, "sentinel_diagnosis")) == 1


@pytest.mark.parametrize("mask", [float("-inf"), torch.finfo(torch.float32).min])
def test_a_buffer_that_was_not_finite_from_the_start_or_is_very_large_is_no_poison(mask: float) -> None:
    trainer = _make(FP32, mask=mask)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = True
    trainer.begin_step()
    trainer.backward_and_step(trainer.training_step(torch.ones(4, WIDTH), lambda model, data: _loss(model, data) * NAN))
    assert _run(trainer, [1.0] * 12) == []


def test_a_buffer_on_another_device_does_not_hide_what_became_of_the_others() -> None:
    trainer = _make(FP32)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = True
    trainer.model.register_buffer("elsewhere", torch.zeros(2, device="meta"))
    trainer.sentinel._buffers = {name for name, _ in trainer.model.named_buffers()}
    assert len(_run(trainer, [1.0] * 3 + [NAN] + [1.0] * 8)) == 1


def test_train_goes_back_passes_over_the_batch_that_did_it_and_saves_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    observe = Saver.observe

    def patiently(saver: Saver, records: Sequence[StepRecord]) -> None:
        observe(saver, records)
        saver.collect(None)

    # What is written is there, and tagged, before the batch comes, however slow the disk is.
    monkeypatch.setattr(Saver, "observe", patiently)
    monkeypatch.setattr(loop, "REPORT_SECONDS", 0.0)
    task = "tests.support.training.harmless_scenarios:normed_task"
    session.run(model=task, steps=50, batch_size=8, checkpoint_every=5, healthy_after=5)
    (rewound,) = session.events("rewound")
    assert (rewound["reason"], int(str(rewound["step"])) <= 30) == ("sentinel", True)
    assert session.events("complete")
    assert all(value.isfinite().all() for value in session.state(50)["model_state_dict"].values())


def test_train_without_a_checkpoint_directory_is_not_ended_for_running_statistics(session: Session) -> None:
    task = "tests.support.training.harmless_scenarios:normed_task"
    session.run(model=task, steps=50, batch_size=8, checkpoint_dir="")
    assert session.events("complete")
    assert not session.events("sentinel_transition")


@pytest.mark.parametrize("mode", [FP32, FP16, BF16])
def test_a_script_of_ones_own_is_told_of_poisoned_weights_once_and_can_put_good_ones_back(
    mode: PrecisionMode, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = _make(mode)
    _run(trainer, [1.0] * 3)
    best = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(NAN)
    _run(trainer, [1.0] * 80)
    trainer.model.load_state_dict(best)
    _run(trainer, [1.0] * 20)
    assert (trainer.mode, trainer.get_stats()["sentinel_level"]) == (mode, "nominal")
    told = _events(capsys, "sentinel_warning", "sentinel_transition")
    told = [line for line in told if line["reason"] != "LowHeadroom"]
    assert [line["reason"] for line in told] == ["NonFiniteWeights"]
    assert "load_checkpoint" in str(told[0]["message"])


@pytest.mark.parametrize("mode", [FP32, BF16])
def test_gradients_that_only_an_optimizer_would_mend_are_told_of_once_and_mended_by_a_hook_they_train(
    mode: PrecisionMode, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = _make(mode)

    def mend(optimizer: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.nan_to_num_(0.0)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return _loss(model, batch) + (next(model.parameters())[0] * 0).sum().sqrt()  # its gradient: NaN in one row

    def steps(number: int) -> bool:
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        for _ in range(number):
            trainer.backward_and_step(trainer.training_step(torch.ones(4, WIDTH), loss))
        trainer.drain()
        return any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))

    trainer.optimizer.register_step_pre_hook(mend)
    assert not steps(40)
    (warning,) = _events(capsys, "sentinel_warning")
    assert warning["reason"] == "NonFiniteUnexplained"
    assert "by a hook on the parameters" in str(warning["message"])
    for parameter in trainer.model.parameters():
        parameter.register_hook(lambda gradient: gradient.nan_to_num(0.0))
    assert steps(4)


@pytest.mark.parametrize(
    ("owner", "method", "check"),
    [
        (LossBaseline, "observe", "detectors of spikes and drift"),
        (Sentinel, "_look_into", "watch over steps"),
        (Sentinel, "_learn", "judgement of a finding"),
        (Measurements, "end", "end of a probe"),
    ],
)
def test_a_part_of_the_sentinel_that_raises_is_reported_once_and_changes_nothing(
    owner: type, method: str, check: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = [1.0] * 12 + [NAN] + [1.0] * 30 + [NAN] + [1.0] * 12
    untouched = _make(BF16)
    _run(untouched, factors)
    capsys.readouterr()

    def fail(*_arguments: object, **_keywords: object) -> bool:
        raise ZeroDivisionError("no spread")

    monkeypatch.setattr(owner, method, fail)
    trainer = _make(BF16)
    _run(trainer, factors)
    (line,) = _events(capsys, "sentinel_check_off")
    assert (line["check"], line["error"]) == (check, "no spread")
    assert trainer.mode is BF16
    for own, other in zip(trainer.model.parameters(), untouched.model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_mask_is_no_poison_and_what_overflows_is() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    mask, running = torch.tensor([0.0, float("-inf")]), torch.tensor([1.0, float("inf")])
    assert are_finite([weight, mask])
    assert not are_finite([weight, running])
    assert not are_finite([torch.tensor([float("nan"), float("-inf")])])
    assert not are_finite([torch.nn.Parameter(mask)])
