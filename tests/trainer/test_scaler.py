"""The scaler against torch's own, bit for bit; then what ours does that torch's does not."""

from __future__ import annotations

import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_trainer.errors import CheckpointError
from precision_trainer.step.scaler import LossScaler
from precision_trainer.values.config import ExtendedFP16Config

_CPU = torch.device("cpu")
_BAD = (float("inf"), float("-inf"), float("nan"))
_GRADIENT = st.one_of(st.sampled_from(_BAD), st.floats(-1e6, 1e6, width=32), st.just(0.0))


def _bits(value: torch.Tensor) -> bytes:
    return struct.pack("<f", float(value))


@settings(max_examples=80, deadline=None)
@given(
    steps=st.lists(st.lists(_GRADIENT, min_size=1, max_size=4), min_size=1, max_size=30),
    scale=st.sampled_from([2.0**-3, 1.0, 3.7, 65536.0, 2.0**100]),
    growth=st.sampled_from([1.0009765625, 1.5, 2.0, 4.0]),
    backoff=st.sampled_from([0.1, 0.5, 0.9]),
    interval=st.integers(1, 5),
)
def test_equals_torch_grad_scaler_at_floor_0_and_hysteresis_1(
    steps: list[list[float]], scale: float, growth: float, backoff: float, interval: int
) -> None:
    config = ExtendedFP16Config(
        loss_scale=scale, growth_factor=growth, backoff_factor=backoff, growth_interval=interval, min_loss_scale=0.0
    )
    ours = LossScaler(config, _CPU)
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=scale, growth_factor=growth, backoff_factor=backoff, growth_interval=interval
    )
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    assert _bits(theirs.scale(torch.tensor(1.5))) == _bits(ours.scale(torch.tensor(1.5)))
    for gradients in steps:
        parameter.data = torch.zeros(len(gradients))
        parameter.grad = torch.tensor(gradients)
        mine = torch.tensor(gradients)
        theirs.unscale_(optimizer)
        theirs.step(optimizer)
        theirs.update()
        found_inf = ours.unscale_([mine])
        ours.update(found_inf)
        assert torch.equal(mine.view(torch.int32), parameter.grad.view(torch.int32))
        assert bool(found_inf) == (not bool(torch.isfinite(torch.tensor(gradients)).all()))
        assert _bits(ours.scale_value) == struct.pack("<f", theirs.get_scale())
        assert int(ours._growth_tracker) == theirs._get_growth_tracker()


_FOUND = st.lists(st.booleans(), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(found=_FOUND, hysteresis=st.integers(1, 4), interval=st.integers(1, 4))
def test_hysteresis_forgives_overflows_until_the_scale_grows_again(
    found: list[bool], hysteresis: int, interval: int
) -> None:
    scaler = LossScaler(
        ExtendedFP16Config(loss_scale=1024.0, growth_interval=interval, hysteresis=hysteresis, min_loss_scale=0.0), _CPU
    )
    scale, good, left = 1024.0, 0, hysteresis
    for bad in found:
        scaler.update(torch.tensor(float(bad)))
        good = 0 if bad else good + 1
        left = max(left - bad, 0)
        if bad and left == 0:
            scale *= 0.5
        if good == interval:
            scale, good, left = scale * 2.0, 0, hysteresis
        assert float(scaler.scale_value) == scale


def test_every_second_step_overflowing_lowers_the_scale_in_spite_of_hysteresis() -> None:
    scaler = LossScaler(ExtendedFP16Config(hysteresis=3), _CPU)
    for number in range(20):
        scaler.update(torch.tensor(float(number % 2)))
    assert float(scaler.scale_value) == 65536.0 * 0.5**8


@given(found=_FOUND)
def test_a_static_scale_never_moves(found: list[bool]) -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=128.0, growth_interval=1, dynamic_loss_scale=False), _CPU)
    for bad in found:
        scaler.update(torch.tensor(float(bad)))
    assert float(scaler.scale_value) == 128.0


def test_a_lowered_scale_grows_back_only_after_its_release() -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=1), _CPU)
    scaler.lower(1 / 16)
    scaler.update(torch.tensor(0.0))
    assert float(scaler.scale_value) == 64.0
    scaler.update(torch.tensor(1.0))
    scaler.update(torch.tensor(0.0))
    assert float(scaler.scale_value) == 64.0
    scaler.release()
    scaler.update(torch.tensor(0.0))
    assert float(scaler.scale_value) == 128.0


def test_never_falls_below_the_floor_and_recovers() -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=8.0, growth_interval=1), _CPU)
    for _ in range(400):
        scaler.update(torch.tensor(1.0))
    assert float(scaler.scale_value) == 1.0
    scaler.update(torch.tensor(0.0))
    assert float(scaler.scale_value) == 2.0


def test_thaw_keeps_the_scale_and_counts_good_steps_anew() -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=8.0, growth_interval=3), _CPU)
    for _ in range(2):
        scaler.update(torch.tensor(0.0))
    scaler.thaw()
    scaler.update(torch.tensor(0.0))
    assert float(scaler.scale_value) == 8.0


def _good(scaler: LossScaler, steps: int) -> float:
    for _ in range(steps):
        scaler.update(torch.tensor(0.0))
    return float(scaler.scale_value)


def test_a_request_changes_the_scale_once_within_its_bounds_and_the_interval_for_good() -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=4), _CPU)
    assert _good(scaler, 3) == 1024.0
    scaler.tune(0.5, 2)
    assert [_good(scaler, 1) for _ in range(4)] == [512.0, 1024.0, 1024.0, 2048.0]
    scaler.tune(2.0**-16, None)
    assert float(scaler.scale_value) == 1.0  # the floor
    for _ in range(9):
        scaler.tune(2.0**16, None)
    assert float(scaler.scale_value) == 2.0**127
    scaler.lower(2.0**-100)
    scaler.tune(4.0, None)
    assert float(scaler.scale_value) == 2.0**27  # the sentinel's ceiling


def test_what_a_request_asked_for_outlives_the_process_and_an_unasked_interval_does_not() -> None:
    tuned = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=4), _CPU)
    tuned.tune(0.5, 3)
    restarted = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=4), _CPU)
    restarted.load_state_dict(tuned.state_dict())
    assert [_good(restarted, 1) for _ in range(3)] == [512.0, 512.0, 1024.0]

    plain = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=4), _CPU)
    _good(plain, 3)
    restarted = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=2), _CPU)
    restarted.load_state_dict(plain.state_dict())
    # 3 good steps were counted, more than the new interval has: it must still be met.
    assert _good(restarted, 1) == 2048.0


def test_a_rewind_restores_the_scale_and_keeps_what_was_asked_for_since() -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=1024.0, growth_interval=4), _CPU)
    scaler.tune(0.25, None)
    saved = scaler.state_dict()
    scaler.tune(0.5, 2)
    scaler.update(torch.tensor(1.0))
    scaler.rewind(saved)
    assert [_good(scaler, 1) for _ in range(2)] == [128.0, 256.0]
    assert scaler.state_dict()["factor"] == 0.125


def test_state_round_trip_and_refusal() -> None:
    scaler = LossScaler(ExtendedFP16Config(loss_scale=8.0), _CPU)
    scaler.update(torch.tensor(0.0))
    other = LossScaler(ExtendedFP16Config(), _CPU)
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    with pytest.raises(CheckpointError, match="scale"):
        other.load_state_dict({"scale": float("inf"), "growth_tracker": 0.0})
