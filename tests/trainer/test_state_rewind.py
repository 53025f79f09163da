"""Going back to the last healthy checkpoint, in process: two real ranks, and the loop with a request file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_trainer.job import train as train_module
from precision_trainer.job.options import TrainOptions
from precision_trainer.job.tasks import build_task
from precision_trainer.models.task import Task
from precision_trainer.step.weights import LOOK_AFTER_STEPS
from precision_trainer.store import checkpoints
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import stale
from tests.support.training.process_group import ProcessGroup
from tests.support.training.saving import fp32_trainer, train_on
from tests.support.training.session import Session, equal


def test_two_ranks_go_back_together_after_nan_weights_and_replay_bit_for_bit(process_group: ProcessGroup) -> None:
    first, second = process_group.run("state_scenarios.rewind_after_poisoned_weights")
    for result in (first, second):
        assert result["step"] == 10
        assert result["samples"] == 80
        assert result["went_back"]
        assert result["replayed"]
        assert result["finite"]
        assert result["generation"] == 1
        assert result["sources"] == ["rewind: request"]
        assert result["metrics"] == {"genesis_rewinds": 1.0, "genesis_rewind_failures": 0.0}
    assert first["print"] == second["print"]
    assert first["asked_at"] == second["asked_at"]
    # What was saved after it may be poisoned: a resume must not find it, a person may.
    assert first["files"][1:] == ["step-000000000010"]
    assert first["files"][0].startswith("rejected-step-")


def test_without_a_healthy_checkpoint_a_rewind_changes_nothing(process_group: ProcessGroup) -> None:
    for result in process_group.run("state_scenarios.rewind_with_nothing_healthy"):
        assert result == {"result": None, "unchanged": True, "step": 3}


def test_a_stale_volume_on_rank_0_refuses_a_rewind_on_all_ranks(process_group: ProcessGroup) -> None:
    for result in process_group.run("state_scenarios.rewind_from_a_stale_volume"):
        assert result == {"result": None, "unchanged": True, "step": 3}


def _failing(*_: object) -> None:
    raise RuntimeError("whatever torch raises")


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(Path, "iterdir", stale), (hashlib, "file_digest", stale), (checkpoints, "validate", _failing)],
)
def test_a_checkpoint_that_cannot_be_read_refuses_a_rewind_and_training_goes_on(
    owner: object, name: str, fault: Callable[..., None], session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def ask() -> None:
            patch.setattr(owner, name, fault)
            session.write('{"generation":1,"mode":"fp32","rewind":true}')()

        at: dict[int, Callable[[], object]] = {45: ask, 50: patch.undo}
        session.run(at, steps=60, checkpoint_every=10, healthy_after=5, quick_disk=True)
    assert [line["reason"] for line in session.events("rewind_failed")] == ["request"]
    assert session.value("genesis_rewind_failures_total") == 1
    assert session.value("genesis_training_step") == 60


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> list[torch.nn.Module]:
    """The model of the session that runs, so that a test can poison it."""
    made: list[torch.nn.Module] = []

    def remember(options: TrainOptions) -> Task:
        task = build_task(options)
        made[:] = [task.model]
        return task

    monkeypatch.setattr(train_module, "build_task", remember)
    return made


def test_poisoned_weights_are_gone_after_the_request_and_the_result_is_that_of_a_clean_run(
    session: Session,
    model: list[torch.nn.Module],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "clean").mkdir()
    clean = Session(tmp_path / "clean", monkeypatch, capsys)
    clean.run(steps=60, checkpoint_every=10, healthy_after=5)
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(session.request))

    def poison() -> None:
        if not session.request.exists():  # not again when the step comes again
            with torch.no_grad():
                next(model[0].parameters()).fill_(float("nan"))
            session.write('{"generation":1,"mode":"fp32","rewind":true}')()

    session.run({45: poison}, steps=60, checkpoint_every=10, healthy_after=5, quick_disk=True)
    rewound = session.events("rewound")
    assert len(rewound) == 1
    assert rewound[0]["step"] in (30, 40)
    assert session.value("genesis_rewinds_total") == 1
    assert session.value("genesis_training_step") == 60
    assert session.value("genesis_precision_info{fp32,1}") == 1
    assert session.value("genesis_last_healthy_checkpoint_step") >= 40
    # The run in which it happened ended, not well.
    assert session.value("genesis_training_total") - session.value("genesis_training_success_total") == 1
    for key in ("model_state_dict", "optimizer_state_dict", "samples", "rng"):
        assert equal(clean.state(60)[key], session.state(60)[key]), key


def test_without_a_sentinel_the_metrics_call_for_the_rewind_that_mends_poisoned_weights_in_fp16(
    session: Session, model: list[torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("PRECISION_SENTINEL", "false"), ("FP16_LOSS_SCALE", "1024")):
        monkeypatch.setenv(name, value)
    session.request.write_text('{"generation":1,"mode":"fp16"}')
    nonfinite: list[float] = []

    def poison() -> None:
        if not nonfinite:  # not again when the step comes again
            with torch.no_grad():
                next(model[0].parameters()).fill_(float("nan"))

    def roll_back() -> None:
        if not nonfinite:
            nonfinite.append(session.value("genesis_nonfinite_loss_steps_total"))
            session.write('{"generation":2,"mode":"fp32","rewind":true}')()

    at = {45: poison, 45 + LOOK_AFTER_STEPS + 10: roll_back}
    session.run(at, steps=90, checkpoint_every=10, healthy_after=5, quick_disk=True)
    assert nonfinite[0] >= 5
    assert session.value("genesis_fp16_overflow_steps_total") == LOOK_AFTER_STEPS + 1
    assert [line["step"] for line in session.events("weights_not_finite")] == [45 + LOOK_AFTER_STEPS]
    assert [line["reason"] for line in session.events("rewound")] == ["request"]
    assert all(parameter.isfinite().all() for parameter in model[0].parameters())
    assert session.value("genesis_training_step") == 90


def test_a_request_to_rewind_that_waits_at_start_is_carried_out_once(session: Session) -> None:
    session.run(steps=30, checkpoint_every=10, healthy_after=5, quick_disk=True)
    healthy = max(int(p.parent.name[5:]) for p in (session.directory / "checkpoints").glob("step-*/healthy.json"))
    assert healthy < 30
    session.request.write_text('{"generation":4,"mode":"fp32","rewind":true}')
    session.run(steps=35, checkpoint_every=10)
    assert [line["step"] for line in session.events("resumed")] == [healthy]
    session.run(steps=36)
    # The checkpoint of step 35 was made under generation 4.
    assert [line["step"] for line in session.events("resumed")] == [35]


def test_a_request_that_rewinds_and_halves_the_loss_scale_does_both(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    session.request.write_text('{"generation":1,"mode":"fp16"}')
    text = '{"generation":2,"mode":"fp16","rewind":true,"lossScaleFactor":0.5,"growthInterval":4000}'
    ask = {45: lambda: session.request.write_text(text)}
    session.run(ask, steps=60, checkpoint_every=10, healthy_after=5, quick_disk=True)
    assert [line["loss_scale"] for line in session.events("loss_scale_tuned")] == [512.0]
    assert session.value("genesis_rewinds_total") == 1
    assert session.value("genesis_loss_scale") == 512.0
    # The checkpoints before the request hold the scale of then; what was asked for came back with the rewind.
    assert session.state(60)["scaler"]["growth_interval"] == 4000.0


def test_weights_that_are_not_finite_are_not_saved(session: Session, model: list[torch.nn.Module]) -> None:
    from precision_trainer.errors import CheckpointError

    def poison() -> None:
        with torch.no_grad():
            next(model[0].parameters())[0] = float("inf")

    with pytest.raises(CheckpointError, match="poisoned"):
        session.run({12: poison}, steps=15, checkpoint_every=10)
    assert session.value("genesis_checkpoint_failures_total") == 1
    session.run(steps=10)
    assert [line["step"] for line in session.events("resumed")] == [10]


def test_a_refused_request_to_rewind_is_carried_out_once(session: Session) -> None:
    options: dict[str, Any] = {
        "model": "tests.support.training.preflight_scenarios:failing_task",
        "checkpoint_every": 10,
        "healthy_after": 3,
    }
    ask = session.write('{"generation":7,"mode":"bf16","rewind":true}')
    session.run({25: ask}, steps=40, quick_disk=True, **options)
    assert [line["step"] for line in session.events("rewound")] == [20]
    assert session.events("request_refused")
    session.run(steps=60, quick_disk=True, **options)
    assert [line["step"] for line in session.events("resumed")] == [40]
    assert session.events("rewound") == session.events("rewind_failed") == []


def test_a_stop_writes_its_checkpoint_again_where_it_was_put_aside(tmp_path: Path) -> None:
    trainer = fp32_trainer()
    kept = Checkpointer(trainer, CheckpointStore(str(tmp_path), JsonLog()), "data", 2, log=JsonLog())
    kept.resume()
    train_on(trainer)
    trainer.drain()
    kept.save()
    kept.close()
    (written,) = tmp_path.glob("step-*")
    written.rename(tmp_path / f"rejected-{written.name}")
    kept.finish()
    kept.close()
    assert written.is_dir()
