"""Real trainers that want one checkpoint directory: a pod, and the pod that replaces it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.training.process import TORCHRUN, TRAIN, WAIT_SECONDS, WITH_TESTS, Process
from tests.support.training.volume import Volume

UID_A, UID_B, UID_C = (f"6f1e7d3c-0000-4000-8000-00000000000{end}" for end in "abc")
SHORT = "3"
"""Seconds of a lease in tests that wait for its end."""

Start = Callable[..., Process]


def _pod(uid: str, seconds: str = "30", **more: str) -> dict[str, str]:
    return {"PRECISION_POD_UID": uid, "TRAINER_CHECKPOINT_LEASE_SECONDS": seconds, **more}


def _saved(process: Process) -> int:
    """The step of the newest checkpoint that is complete on disk; -1 before there is one."""
    return max((int(str(line["step"])) for line in process.events("checkpoint")), default=-1)


def _lease(directory: Path) -> dict[str, object]:
    (path,) = directory.glob("lease-*.json")
    shown: dict[str, object] = json.loads(path.read_text())
    return shown


def _has_waited(process: Process) -> bool:
    return process.value("genesis_checkpoint_lease_wait_seconds") > 0


def test_a_replacement_waits_for_the_release_and_goes_on_where_the_pod_before_ended(fork: Start) -> None:
    first = fork(TRAIN, _pod(UID_A))
    first.until_training()
    second, third = fork(TRAIN, _pod(UID_B)), fork(TRAIN, _pod(UID_C))
    for waiting in (second, third):
        assert waiting.until_event("checkpoint_lease_waiting")["holder"] == UID_A
        waiting.until(partial(_has_waited, waiting))
        assert json.loads(waiting.page("/healthz"))["ok"] is True
    # SIGTERM ends one that waits, and is none of the holder's affair.
    assert third.stop() == 143
    assert third.events("stopping")[0]["step"] is None
    assert first.stop() == 143, first.text
    second.until_training()
    stopped = first.events("stopping")[0]["step"]
    assert _saved(first) == stopped
    assert second.events("resumed")[0]["step"] == stopped
    (acquired,) = second.events("checkpoint_lease_acquired")
    assert (acquired["reason"], acquired["previous_holder"]) == ("Released", UID_A)
    assert first.events("checkpoint_lease_lost") == []
    assert second.stop() == 143
    assert second.events("checkpoint_lease_released")


@pytest.mark.parametrize(
    ("uid", "reason", "waits"), [(UID_A, "SamePod", False), (UID_B, "Expired", True)], ids=["same pod", "another pod"]
)
def test_the_lease_of_a_killed_trainer_is_taken_over(fork: Start, uid: str, reason: str, waits: bool) -> None:
    first = fork([*TRAIN, "--checkpoint-every", "20"], _pod(UID_A, SHORT))
    first.until(lambda: _saved(first) > 0)
    first.kill()
    second = fork(TRAIN, _pod(uid, SHORT))
    second.until_training()
    (acquired,) = second.events("checkpoint_lease_acquired")
    assert (acquired["reason"], acquired["previous_holder"]) == (reason, UID_A)
    assert bool(second.events("checkpoint_lease_waiting")) is waits
    # It may have been killed between a checkpoint and its line.
    assert int(str(second.events("resumed")[0]["step"])) >= _saved(first)


def test_a_second_trainer_in_the_same_pod_does_not_take_the_lease_of_one_that_lives(fork: Start) -> None:
    first = fork([*TRAIN, "--checkpoint-every", "0"], _pod(UID_A))
    first.until_training()
    second = fork(TRAIN, _pod(UID_A))
    second.until_event("checkpoint_lease_waiting")
    first.request.write_text('{"generation":1,"mode":"fp32","checkpoint":true}')
    first.until(lambda: _saved(first) > 0)
    assert first.events("checkpoint_lease_lost") == []
    assert second.events("checkpoint_lease_acquired") == []


def test_a_frozen_trainer_that_lost_its_lease_trains_on_and_writes_nothing(fork: Start, tmp_path: Path) -> None:
    frozen = fork([*TRAIN, "--checkpoint-every", "20", "--segment-steps", "20"], _pod(UID_A, SHORT))
    frozen.until(lambda: _saved(frozen) > 0)
    frozen.process.send_signal(signal.SIGSTOP)
    # This one writes only when it is told to: whatever else appears in the directory, the frozen one wrote.
    rarely = ["--checkpoint-every", "0", "--segment-steps", "1000000", "--healthy-after", "1000000"]
    successor = fork([*TRAIN, *rarely], _pod(UID_B, "10"))
    successor.until_training()
    assert successor.events("checkpoint_lease_acquired")[0]["reason"] == "Expired"
    directory = tmp_path / "checkpoints"

    def contents() -> dict[str, int]:
        paths = [directory / "runs.json", *directory.glob("step-*/manifest.json")]
        return {str(path): path.stat().st_mtime_ns for path in paths}

    before = contents()
    frozen.process.send_signal(signal.SIGCONT)
    steps = frozen.value("genesis_training_steps_total")
    frozen.until(lambda: len(frozen.events("checkpoint_failed")) >= 2)
    frozen.until(lambda: frozen.value("genesis_training_steps_total") > steps + 40)
    assert contents() == before
    (lost,) = frozen.events("checkpoint_lease_lost")
    assert UID_B in str(lost["message"])
    assert all(UID_B in str(line["message"]) for line in frozen.events("checkpoint_failed"))
    assert frozen.value("genesis_checkpoint_failures_total") >= 2
    assert frozen.value("genesis_checkpoint_lease_held") == 0
    assert _lease(directory)["holder"] == UID_B
    # Its last checkpoint cannot be saved, and its exit code says so.
    assert frozen.stop() == 1
    assert _lease(directory)["released"] is False
    assert contents() == before
    assert successor.stop() == 143
    assert successor.events("checkpoint_lease_lost") == []


def test_two_ranks_under_torchrun_wait_longer_than_their_collectives_may_and_start(start: Start, fork: Start) -> None:
    timeout = 12
    first = fork(TRAIN, _pod(UID_A))
    first.until_training()
    group = start([*TORCHRUN, *TRAIN, "--ddp-timeout-seconds", str(timeout)], _pod(UID_B))
    group.until(lambda: group.value("genesis_checkpoint_lease_wait_seconds") > timeout + 1)
    assert first.stop() == 143
    group.until_training()
    resumed = {(line["rank"], line["step"]) for line in group.events("resumed")}
    stopped = first.events("stopping")[0]["step"]
    assert resumed == {(0, stopped), (1, stopped)}
    assert {line["rank"] for line in group.events("checkpoint_lease_waiting")} == {0}
    # Once, then every 10 s; on a slow machine it goes on to wait for longer.
    waited = [line["waited_seconds"] for line in group.events("checkpoint_lease_waiting")]
    assert sum(seconds < 20 for seconds in waited) == 2


def test_a_stop_after_the_lease_was_taken_and_before_the_first_step_gives_it_back(fork: Start, tmp_path: Path) -> None:
    command = ["-m", "precision_trainer", "train", "tests.support.training.blocked_task:build"]
    process = fork(command, _pod(UID_A, **WITH_TESTS))
    process.until_event("task_blocked")
    assert _lease(tmp_path / "checkpoints")["released"] is False
    assert process.stop() == 143
    assert _lease(tmp_path / "checkpoints")["released"] is True


# --- a volume that refuses ----------------------------------------------------------------------------------------------


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    made = Volume(tmp_path / "volume")
    yield made
    made.close()


SAVES_OFTEN = [*TRAIN, "--checkpoint-every", "20", "--segment-steps", "10"]


def _steps_go_on(process: Process) -> None:
    steps = process.value("genesis_training_steps_total")
    process.until(lambda: process.value("genesis_training_steps_total") > steps + 60)


def test_a_full_disk_ends_neither_training_nor_the_lease_nor_a_replacements_start(fork: Start, volume: Volume) -> None:
    where = {"TRAINER_CHECKPOINT_DIR": str(volume.path)}
    first = fork(SAVES_OFTEN, _pod(UID_A, SHORT, **where))
    first.until(lambda: _saved(first) > 0)

    def failed_twice() -> bool:
        volume.fill()  # again: a checkpoint that was being written has left room
        return len(first.events("checkpoint_failed")) >= 2

    first.until(failed_twice)
    first.until(lambda: first.value("genesis_checkpoint_failures_total") >= 2)
    beat = int(str(_lease(volume.path)["heartbeat"]))
    first.until(lambda: int(str(_lease(volume.path)["heartbeat"])) > beat + 2)
    _steps_go_on(first)
    volume.fill()  # a checkpoint that failed may have left room for the few bytes of the lease
    first.kill()
    kept = _saved(first)
    second = fork(SAVES_OFTEN, _pod(UID_A, SHORT, **where))
    second.until_training()
    assert second.events("checkpoint_lease_acquired") == []
    assert second.events("checkpoint_lease_failed")
    assert second.events("resumed")[0]["step"] == kept
    assert second.value("genesis_checkpoint_lease_errors_total") >= 1
    second.until(lambda: bool(second.events("checkpoint_failed")))
    volume.empty()
    second.until(lambda: _saved(second) > kept)
    assert second.value("genesis_checkpoint_lease_held") == 1
    assert second.stop() == 143


def test_a_volume_that_becomes_read_only_does_not_end_training(fork: Start, volume: Volume) -> None:
    trainer = fork(SAVES_OFTEN, _pod(UID_A, SHORT, TRAINER_CHECKPOINT_DIR=str(volume.path)))
    trainer.until(lambda: _saved(trainer) > 0)
    trainer.until(lambda: volume.read_only(True))
    trainer.until(lambda: trainer.value("genesis_checkpoint_lease_errors_total") >= 2)
    trainer.until(lambda: bool(trainer.events("checkpoint_failed")))
    _steps_go_on(trainer)
    assert len(trainer.events("checkpoint_lease_failed")) == 1
    saved = _saved(trainer)
    assert volume.read_only(False)
    trainer.until_event("checkpoint_lease_recovered")
    trainer.until(lambda: _saved(trainer) > saved)
    assert trainer.stop() == 143


def test_a_first_start_in_a_directory_that_refuses_is_refused(fork: Start, volume: Volume) -> None:
    assert volume.read_only(True)
    directories = volume.path, volume.path / "new"
    started = [fork(TRAIN, _pod(UID_A, TRAINER_CHECKPOINT_DIR=str(directory))) for directory in directories]
    for process in started:
        assert process.process.wait(WAIT_SECONDS) == 1, process.text
        assert "check that the volume is mounted, writable" in str(process.events("failed")[0]["message"])
