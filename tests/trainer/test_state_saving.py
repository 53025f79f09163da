"""Saving beside training, the healthy tag, and what a resume brings back."""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer
from precision_trainer.checkpoint import files
from precision_trainer.checkpoint.format import TrainingState
from precision_trainer.checkpoint.health import BURST_STEPS, HealthTracker
from precision_trainer.job import train as train_module
from precision_trainer.job.options import TrainOptions
from precision_trainer.job.tasks import build_task
from precision_trainer.models.task import Task
from precision_trainer.store.checkpointer import Checkpointer
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.saver import Saver
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model, small_state, stale
from tests.support.training.scenarios import WIDTH, step
from tests.support.training.session import STOP, Session, equal


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


class SlowDisk:
    """The real write, once it is let through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        write = files.write

        def gated(final: Path, state: TrainingState, permit: Callable[[], None]) -> None:
            self.reached.set()
            assert self.open.wait(60)
            write(final, state, permit)

        monkeypatch.setattr(files, "write", gated)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.open.set()


def test_steps_do_not_wait_for_the_disk_and_a_stop_does(session: Session, disk: SlowDisk) -> None:
    session.run({29: disk.open.set}, steps=30, checkpoint_every=10)
    # Step 10 was in flight until step 29 let it through: step 20 was left out, and said so.
    assert [line["step"] for line in session.events("checkpoint_skipped")] == [20]
    assert [line["step"] for line in session.events("checkpoint")] == [10, 30]
    assert session.value("genesis_checkpoint_step") == 30
    assert session.value("genesis_training_steps_total") == 30


def test_what_is_written_late_is_the_state_of_its_own_step(
    session: Session,
    disk: SlowDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    session.run({25: disk.open.set}, steps=30, checkpoint_every=10)
    (tmp_path / "other").mkdir()
    other = Session(tmp_path / "other", monkeypatch, capsys)
    other.run(steps=10)
    for key in ("model_state_dict", "optimizer_state_dict", "rng", "samples", "step"):
        assert equal(session.state(10)[key], other.state(10)[key]), key


GOOD, OVERFLOW, NONFINITE = (False, False), (True, False), (False, True)
"""Steps, as (overflow, nonfinite)."""


def _observe(health: HealthTracker, *steps: tuple[bool, bool]) -> None:
    for overflow, nonfinite in steps:
        health.observe(overflow=overflow, nonfinite=nonfinite)


def test_good_steps_after_a_checkpoint_prove_it() -> None:
    health = HealthTracker(5)
    health.saved(0)
    _observe(health, *[GOOD] * 4)
    assert health.proven() is None
    _observe(health, OVERFLOW)  # a loss scale that found its limit: neither good nor bad
    assert health.proven() is None
    _observe(health, GOOD)
    assert health.proven() == 0


@pytest.mark.parametrize("trouble", [[NONFINITE], [OVERFLOW] * BURST_STEPS])
def test_trouble_starts_the_count_anew(trouble: list[tuple[bool, bool]]) -> None:
    health = HealthTracker(5)
    health.saved(0)
    _observe(health, *[GOOD] * 4, *trouble)
    seen = 0
    while health.proven() is None:
        _observe(health, GOOD)
        seen += 1
    # After a burst its overflows must first leave the window.
    assert seen == 5 if trouble[0] is NONFINITE else seen > 5


def test_checkpoints_more_frequent_than_the_proof_still_become_healthy(session: Session) -> None:
    session.run(steps=60, checkpoint_every=5, healthy_after=20, quick_disk=True)
    tagged = [line["step"] for line in session.events("checkpoint_healthy")]
    assert tagged
    assert session.value("genesis_last_healthy_checkpoint_step") == tagged[-1]
    store = CheckpointStore(str(session.directory / "checkpoints"), JsonLog())
    assert store.healthy_steps()[0] == tagged[-1]
    assert len(store.steps()) <= 4


def test_the_newest_healthy_one_outlives_retention(tmp_path: Path) -> None:
    store, model = CheckpointStore(str(tmp_path), JsonLog()), small_model()
    for number in (10, 20):
        store.save(small_state(number, model))
        store.tag_healthy(number, 5)
    for number in (30, 40, 50):
        store.save(small_state(number, model))
    assert store.steps() == [50, 40, 20]
    assert store.healthy_steps() == [20]


def test_a_tag_is_of_one_state_only(tmp_path: Path) -> None:
    store, model = CheckpointStore(str(tmp_path), JsonLog()), small_model()
    tagged = store.save(small_state(10, model))
    store.tag_healthy(10, 5)
    other = store.save(small_state(20, model))
    (other / "healthy.json").write_bytes((tagged / "healthy.json").read_bytes())
    (tagged / "healthy.json").write_text(json.dumps({"sha256": "0"}))
    assert store.healthy_steps() == []


def test_a_healthy_checkpoint_whose_tag_cannot_be_read_outlives_retention(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model = CheckpointStore(str(tmp_path), JsonLog()), small_model()
    store.save(small_state(10, model))
    store.tag_healthy(10, 5)
    store.save(small_state(20, model))
    opened = os.open

    def bad_sector(path: Path | str, *arguments: int, **options: int) -> int:
        if Path(path).name == "healthy.json":
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", bad_sector)
        store.save(small_state(30, model))
    assert store.steps() == [30, 20, 10]
    store.save(small_state(40, model))
    assert store.steps() == [40, 30, 10]


@pytest.mark.parametrize(("saved", "loaded"), [*itertools.permutations(("fp32", "fp16", "bf16"), 2)])
def test_loading_in_another_mode_changes_no_weight(
    saved: str, loaded: str, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[torch.nn.Module] = []

    def remember(options: TrainOptions) -> Task:
        task = build_task(options)
        models.append(task.model)
        return task

    monkeypatch.setattr(train_module, "build_task", remember)
    session.request.write_text(json.dumps({"generation": 1, "mode": saved}))
    session.run(steps=6)
    session.request.write_text(json.dumps({"generation": 2, "mode": loaded}))
    session.run(steps=6)
    (resumed,) = session.events("resumed")
    assert (resumed["saved_mode"], resumed["mode"]) == (saved, loaded)
    assert equal(dict(models[0].state_dict()), dict(models[1].state_dict()))


def test_another_batch_size_goes_on_in_the_data_where_it_stood(session: Session) -> None:
    session.run(steps=10, batch_size=2)
    session.run(steps=15, batch_size=4)
    assert session.state(15)["samples"] == 10 * 2 + 5 * 4


def test_a_plain_file_is_where_training_begins_if_there_is_no_checkpoint(session: Session) -> None:
    session.run(steps=6)
    state = session.state(6)
    old = session.directory / "old.pt"
    torch.save({key: state[key] for key in ("model_state_dict", "optimizer_state_dict")}, old)
    session.run({2: STOP}, checkpoint_dir=str(session.directory / "new"), resume_from=str(old))
    (warning,) = session.events("resumed_plain")
    assert "counting steps and data from 0" in str(warning["message"])
    session.run(steps=8, checkpoint_dir=str(session.directory / "new"), resume_from=str(old))
    assert session.events("resumed_plain") == []
    assert session.events("resumed")


def _trainer() -> ExtendedFP16Trainer:
    torch.manual_seed(1)
    model = torch.nn.Linear(WIDTH, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return ExtendedFP16Trainer(model, optimizer, ExtendedFP16Config(enabled=False), "cpu")


class Part:
    def __init__(self) -> None:
        self.value: dict[str, object] = {}

    def state_dict(self) -> dict[str, object]:
        return self.value

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.value = state


def test_what_others_attach_comes_back_at_resume_and_stays_at_a_rewind(tmp_path: Path) -> None:
    def checkpointer(part: Part) -> Checkpointer:
        store = CheckpointStore(str(tmp_path), JsonLog())
        made = Checkpointer(_trainer(), store, "data", 8, log=JsonLog(), healthy_after_steps=1)
        made.attach("sentinel", part)
        made.resume()
        return made

    first = Part()
    kept = checkpointer(first)
    step(kept._trainer)
    first.value = {"level": 2, "layers": ["a"]}
    kept.observe(kept._trainer.begin_step().records)
    kept.finish()
    kept.close()
    second = Part()
    again = checkpointer(second)
    assert second.value == {"level": 2, "layers": ["a"]}
    store = CheckpointStore(str(tmp_path), JsonLog())
    while not store.healthy_steps():
        again.observe(again._trainer.begin_step().records)
        step(again._trainer)
    second.value = {"level": 3}
    again._trainer.drain()
    assert again.rewind("test") == 1
    assert second.value == {"level": 3}
    again.close()


def test_a_resume_goes_on_and_says_so_where_the_tags_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics()
    saver = Saver(CheckpointStore(str(tmp_path), JsonLog()), 5, JsonLog(), metrics)
    monkeypatch.setattr(Path, "iterdir", stale)
    saver.resumed(10)
    assert saver.on_disk == 10
    samples = (sample for family in metrics.collect() for sample in family.samples)
    assert [sample.value for sample in samples if sample.name == "genesis_checkpoint_failures_total"] == [1]
    assert "checkpoint_failed" in capsys.readouterr().out
    saver.close()
