"""A checkpoint directory that somebody removes, or a volume that is unmounted, while training runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from lab.waiting import wait_for
from precision_trainer.errors import CheckpointError
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.store.lease import Lease
from precision_trainer.store.lease_file import path_of
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model, small_state
from tests.support.training.process import TRAIN, Process
from tests.support.training.volume import Volume

SECONDS = 1.0
Held = tuple[Lease, CheckpointStore]


@pytest.fixture
def hold() -> Iterator[Callable[..., Held]]:
    """A lease on a directory, with a checkpoint in it; given back with the test."""
    made: list[Lease] = []

    def take(root: Path, seconds: float = SECONDS) -> Held:
        lease = Lease(str(root), "holder", log=JsonLog(), metrics=Metrics(), seconds=seconds)
        made.append(lease)
        assert lease.take(0.0)
        store = CheckpointStore(str(root), JsonLog(), lease=lease)
        store.begin()
        store.save(small_state(10, small_model()))
        return lease, store

    yield take
    for lease in made:
        lease.release()


def _remove(root: Path) -> None:
    """At once: a heartbeat that comes meanwhile would keep it."""
    gone = root.rename(root.with_name("gone"))
    shutil.rmtree(gone)


def _run(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True)


def _saves(store: CheckpointStore) -> bool:
    try:
        store.save(small_state(20, small_model()))
    except CheckpointError:
        return False
    return True


def _empty(root: Path) -> None:
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("remove", [_remove, _empty])
def test_the_next_checkpoint_is_written_into_a_directory_that_was_removed_or_emptied(
    tmp_path: Path,
    remove: Callable[[Path], None],
    hold: Callable[..., Held],
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "run"
    lease, store = hold(root)
    remove(root)
    store.save(small_state(20, small_model()))
    assert store.steps() == [20]
    remove(root)
    # Its file is there a moment before the lease knows of it.
    wait_for(lambda: path_of(root, 1).exists() and lease._own is not None, what="a heartbeat", seconds=60)
    store.save(small_state(30, small_model()))
    assert store.steps() == [30]
    lease.release()
    lines = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert lines.count("checkpoint_directory_made") == (2 if remove is _remove else 0)
    assert lines.count("checkpoint_lease_acquired") == 3
    assert lines[-1] == "checkpoint_lease_released"


def test_a_checkpoint_goes_through_when_a_heartbeat_takes_the_lease_back_meanwhile(
    tmp_path: Path, hold: Callable[..., Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "run"
    lease, store = hold(root, seconds=3600.0)
    _remove(root)
    own = lease._own
    assert own is not None

    def superseded() -> bool:
        lease._lose(own)
        lease._take_back()
        return True

    monkeypatch.setattr(own, "superseded", superseded)
    store.save(small_state(20, small_model()))
    assert store.steps() == [20]


def test_after_its_release_a_lease_makes_no_directory(tmp_path: Path, hold: Callable[..., Held]) -> None:
    root = tmp_path / "run"
    lease, store = hold(root, seconds=3600.0)  # no heartbeat comes in between
    _remove(root)
    lease.release()
    with pytest.raises(CheckpointError):
        store.save(small_state(20, small_model()))
    assert not root.exists()


@pytest.mark.parametrize("below", ["", "run"])
def test_nothing_is_written_below_a_volume_that_was_unmounted_until_it_is_mounted_again(
    tmp_path: Path, below: str, hold: Callable[..., Held], capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    volume, elsewhere = Volume(tmp_path / "volume"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    try:
        _, store = hold(volume.path / below)
        _run("mount", "--bind", volume.path, elsewhere)  # so that it outlives that
    finally:
        volume.close()
    told: list[str] = []

    def failed() -> bool:
        told.extend(line for line in capsys.readouterr().out.splitlines() if "checkpoint_lease_failed" in line)
        return bool(told)

    wait_for(failed, what="a heartbeat", seconds=60)
    assert "is not mounted there" in told[0]
    with pytest.raises(CheckpointError, match="then mount it again"):
        store.save(small_state(20, small_model()))
    assert list(volume.path.iterdir()) == []
    try:
        _run("mount", "--bind", elsewhere, volume.path)
        wait_for(partial(_saves, store), what="the lease is taken back", seconds=60)
        assert store.steps() == [20, 10]
    finally:
        _run("umount", "-l", volume.path)
        _run("umount", "-l", elsewhere)


def test_a_trainer_whose_directory_is_removed_saves_again_and_ends_well(
    fork: Callable[..., Process], tmp_path: Path
) -> None:
    trainer = fork([*TRAIN, "--checkpoint-every", "20"])
    trainer.until_event("checkpoint")
    (tmp_path / "checkpoints").rename(tmp_path / "gone")
    trainer.until(lambda: any((tmp_path / "checkpoints").glob("step-*")))
    assert trainer.stop() == 143, trainer.text
    (stopping,) = trainer.events("stopping")
    assert (tmp_path / "checkpoints" / f"step-{stopping['step']:012d}").is_dir()
    assert trainer.events("checkpoint_lease_released")
