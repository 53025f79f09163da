"""Adaptive clipping: what is unusual is clipped, what is usual is not, and the host reads nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.job.options import TrainOptions
from precision_trainer.job.run_info import model_hash, run_info
from precision_trainer.step.clipping import AdaptiveClip
from tests.support.training.waits import CountWaits

FP32, FP16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16


def _seen(norms: list[float]) -> AdaptiveClip:
    clip = AdaptiveClip(torch.device("cpu"))
    for norm in norms:
        clip(torch.tensor(norm))
    return clip


def _usual(number: int) -> list[float]:
    noise = random.Random(1)
    return [1.0 + 0.1 * noise.uniform(-1, 1) for _ in range(number)]


def test_a_spike_is_brought_down_to_near_the_average_and_does_not_move_it() -> None:
    clip = _seen(_usual(100))
    mean, sigma = float(clip._mean), float(clip._variance.sqrt())
    coefficient = float(clip(torch.tensor(100.0)))
    z = (100.0 - mean) / sigma
    assert coefficient * 100.0 == pytest.approx(mean + 2.5**2 / z * sigma, rel=1e-4)
    assert float(clip._mean) == pytest.approx(mean, abs=0.01)
    # So the next one is seen as well.
    assert float(clip(torch.tensor(100.0))) < 0.02


def test_usual_norms_and_those_of_the_warm_up_are_left_alone() -> None:
    clip = AdaptiveClip(torch.device("cpu"))
    assert float(clip(torch.tensor(1e6))) == 1.0
    clip = _seen(_usual(20))
    assert float(clip(torch.tensor(50.0))) == 1.0
    clip = _seen(_usual(100))
    assert float(clip(torch.tensor(1.05))) == 1.0
    assert float(clip(torch.tensor(0.01))) == 1.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e30) | st.sampled_from([float("inf"), float("nan")]), max_size=80))
def test_the_factor_of_a_finite_norm_is_between_0_and_1_and_bad_steps_leave_no_trace(norms: list[float]) -> None:
    clip = _seen(norms)
    state = clip.state_dict()
    assert all(isinstance(value, float) and value == value for value in state.values())
    for bad in (float("inf"), float("nan")):
        clip(torch.tensor(bad))
    assert clip.state_dict() == state
    assert 0.0 <= float(clip(torch.tensor(1.0))) <= 1.0


def test_a_resume_judges_as_the_process_before_would_have() -> None:
    clip = _seen(_usual(60))
    restarted = AdaptiveClip(torch.device("cpu"))
    restarted.load_state_dict(clip.state_dict())
    assert float(restarted(torch.tensor(7.0))) == float(clip(torch.tensor(7.0))) < 1.0
    unusable: list[dict[str, object]] = [
        {},
        {"mean": "1", "variance": 0.0, "seen": 40.0},
        {"mean": float("nan"), "variance": 0.0, "seen": 9.0},
    ]
    for broken in unusable:
        fresh = AdaptiveClip(torch.device("cpu"))
        fresh.load_state_dict(broken)
        assert fresh.state_dict() == {"mean": 0.0, "variance": 0.0, "seen": 0.0}


@pytest.mark.parametrize("mode", [FP32, FP16])
def test_a_step_with_adaptive_clipping_tames_a_spike_and_waits_for_nothing(mode: PrecisionMode) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    config = ExtendedFP16Config(precision_mode=mode, loss_scale=64.0, max_grad_norm=0.0, adaptive_clipping=True)
    # SGD's step is as long as the gradient: what was clipped shows in the weights.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    trainer = ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)

    def step(factor: float) -> float:
        before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(trainer.step))
        loss = trainer.training_step(batch, lambda m, data: (m(data).float() - 1).square().mean() * factor)
        trainer.backward_and_step(loss)
        return float((torch.cat([p.detach().flatten() for p in model.parameters()]) - before).norm())

    usual = [step(1.0) for _ in range(60)]
    assert step(1000.0) < 1.5 * max(usual)
    batch = torch.randn(16, 8)
    with CountWaits() as count:
        for _ in range(3):
            trainer.backward_and_step(trainer.training_step(batch, lambda m, data: m(data).float().square().mean()))
    assert count.waits == 0


def test_run_info_says_how_gradients_are_clipped_whether_bf16_means_fp8_and_which_architecture_runs() -> None:
    def labels(**options: Any) -> dict[str, str]:  # noqa: ANN401 - fields of the options
        model = torch.nn.Linear(2, 2)
        return run_info(TrainOptions(**options), "own", model, world_size=1, device=torch.device("cpu"))

    assert labels()["clipping"] == "1"
    assert (labels()["fp8"], labels(fp8="delayed")["fp8"]) == ("off", "delayed")
    assert labels(max_grad_norm=0.0)["clipping"] == "off"
    assert labels(max_grad_norm=0.0, adaptive_clipping=True)["clipping"] == "adaptive"
    assert labels(max_grad_norm=0.5, adaptive_clipping=True)["clipping"] == "0.5+adaptive"
    assert model_hash(torch.nn.Linear(2, 3)) == model_hash(torch.nn.Linear(2, 3)) != model_hash(torch.nn.Linear(3, 2))
