"""The overflow drill: it overflows in FP16 alone, once, and only where it was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from precision_tools import demo_fault
from precision_trainer import ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import ConfigError
from precision_trainer.job import drill
from precision_trainer.models.data import LibraryText
from precision_trainer.values.logs import JsonLog
from tests.support.training.steps import BF16, FP16, FP32, make, step, weights

pytestmark = pytest.mark.usefixtures("one_thread")


def _drill(mode: PrecisionMode, text: LibraryText, path: Path, steps: int = 40) -> ExtendedFP16Trainer:
    trainer = make(mode)
    fault = drill.installed(trainer.model, JsonLog())
    for _ in range(steps):
        if fault is not None:
            fault.begin_step(trainer.step)
        step(trainer, text)
    return trainer


def test_drill_overflows_in_fp16_and_is_the_same_function_in_fp32(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = _drill(FP32, text, tmp_path)
    path = tmp_path / "fault"
    path.write_text("overflow=0.6")
    monkeypatch.setenv(drill.ENV, str(path))
    fp16 = _drill(FP16, text, tmp_path).get_stats()
    assert fp16["overflow_rate"] > 0.3
    assert fp16["nonfinite_steps"] == 0
    faulty = _drill(FP32, text, tmp_path)
    assert (faulty.get_stats()["overflow_steps"], faulty.get_stats()["nonfinite_steps"]) == (0, 0)
    assert all(torch.equal(a, b) for a, b in zip(weights(clean), weights(faulty), strict=True))
    bf16 = _drill(BF16, text, tmp_path).get_stats()
    assert (bf16["overflow_steps"], bf16["nonfinite_steps"]) == (0, 0)


def test_no_loss_scale_helps_against_the_drill_and_off_means_off_at_the_next_step(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fault"
    path.write_text("overflow=1.0")
    monkeypatch.setenv(drill.ENV, str(path))
    trainer = make(FP16, loss_scale=2.0)
    fault = drill.installed(trainer.model, JsonLog())
    assert fault is not None
    for _ in range(5):
        fault.begin_step(trainer.step)
        step(trainer, text)
    assert trainer.get_stats()["overflow_steps"] == 5
    path.write_text("")
    fault.begin_step(trainer.step)
    step(trainer, text)
    assert trainer.get_stats()["overflow_steps"] == 5


def test_drill_ruins_one_weight_before_its_step_and_only_once(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fault"
    path.write_text("nan=3")
    monkeypatch.setenv(drill.ENV, str(path))
    trainer = make(BF16)
    fault = drill.installed(trainer.model, JsonLog())
    assert fault is not None
    ruined = []
    for _ in range(4):
        fault.begin_step(trainer.step)
        ruined.append(sum(int(torch.isnan(weight).sum()) for weight in weights(trainer)))
        step(trainer, text)
    assert ruined == [0, 0, 0, 1]
    for weight in trainer.model.parameters():
        torch.nan_to_num_(weight.data)
    path.with_suffix(".new").write_text("nan=3")
    path.with_suffix(".new").replace(path)  # the same order in another file, as a kubelet leaves it
    fault.begin_step(3)
    assert not any(torch.isnan(weight).any() for weight in weights(trainer))


def test_drill_is_not_installed_by_default_and_ignores_nonsense(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(FP32)
    assert drill.installed(trainer.model, JsonLog()) is None
    assert not any(module._forward_pre_hooks for module in trainer.model.modules())
    path = tmp_path / "fault"
    path.write_text("overflow=7")
    monkeypatch.setenv(drill.ENV, str(path))
    fault = drill.installed(trainer.model, JsonLog())
    assert fault is not None
    fault.begin_step(0)
    assert "expected overflow=" in capsys.readouterr().out


def test_a_drill_without_the_tools_is_refused_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(drill.ENV, str(tmp_path / "fault"))
    monkeypatch.setattr(drill, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"precision-trainer-tools.*unset it"):
        drill.installed(make(FP32).model, JsonLog())


def test_share_of_hit_steps_is_what_was_asked_for() -> None:
    for share in (0.1, 0.35, 0.6):
        hits = sum(demo_fault.hit(number, share) for number in range(4000)) / 4000
        assert hits == pytest.approx(share, abs=0.03)
    # And in every short window too, so that a rate over seconds shows it.
    assert all(10 <= sum(demo_fault.hit(s, 0.6) for s in range(start, start + 20)) <= 14 for start in range(2000))
