"""Checkpoints: complete or absent, checked before reading, never executed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path

import pytest
import torch

from precision_trainer.errors import CheckpointError
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import flip_a_bit, small_model, small_state, stale


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path), JsonLog())


def test_round_trip_and_retention_of_two(store: CheckpointStore, tmp_path: Path) -> None:
    model = small_model()
    assert store.load_newest(model) is None
    for step in (10, 20, 30):
        store.save(small_state(step, model))
    assert store.steps() == [30, 20]
    loaded = store.load_newest(model)
    assert loaded is not None
    assert loaded.state["step"] == 30
    assert torch.equal(loaded.state["model_state_dict"]["weight"], model.state_dict()["weight"])
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".tmp")]


def test_leftovers_of_a_killed_writer_are_not_checkpoints(store: CheckpointStore, tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-step-000000000099").mkdir()
    (tmp_path / "step-12").mkdir()
    assert store.steps() == []
    store.clean()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-12"]


def _truncate(path: Path) -> None:
    with open(path / "state.pt", "r+b") as file:
        file.truncate(100)


def _no_manifest(path: Path) -> None:
    (path / "manifest.json").unlink()


def _torn_manifest(path: Path) -> None:
    (path / "manifest.json").write_text((path / "manifest.json").read_text()[:40])


def _odd_manifest(path: Path) -> None:
    (path / "manifest.json").write_text('{"files":{"state.pt":{"bytes":"9","sha256":1}}}')


def _no_state(path: Path) -> None:
    (path / "state.pt").unlink()


def _symlink(path: Path) -> None:
    moved = path.parent / "elsewhere.pt"
    (path / "state.pt").rename(moved)
    (path / "state.pt").symlink_to(moved)


def _pipe(path: Path) -> None:
    (path / "state.pt").unlink()
    os.mkfifo(path / "state.pt")


@pytest.mark.parametrize(
    "damage", [_truncate, flip_a_bit, _no_manifest, _torn_manifest, _odd_manifest, _no_state, _symlink, _pipe]
)
def test_damaged_newest_is_refused_and_the_one_before_is_used(
    damage: Callable[[Path], None], store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_model()
    store.save(small_state(10, model))
    damage(store.save(small_state(20, model)))
    loaded = store.load_newest(model)
    assert loaded is not None
    assert loaded.state["step"] == 10
    line = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (line["event"], line["level"], line["step"]) == ("checkpoint_refused", "error", 20)


def test_a_bad_sector_in_the_newest_is_refused_and_the_one_before_is_used(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_model()
    store.save(small_state(10, model))
    store.save(small_state(20, model))
    read: list[object] = []
    digest = hashlib.file_digest

    def bad_sector(file: BufferedReader, name: str) -> object:
        read.append(file)
        if len(read) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return digest(file, name)

    monkeypatch.setattr(hashlib, "file_digest", bad_sector)
    loaded = store.load_newest(model)
    assert loaded is not None
    assert loaded.state["step"] == 10
    assert "check the volume" in json.loads(capsys.readouterr().out.splitlines()[0])["message"]


def test_a_directory_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(small_state(10, small_model()))
    monkeypatch.setattr(Path, "iterdir", stale)
    with pytest.raises(CheckpointError, match="cannot be read"):
        store.load_newest(small_model())


def test_if_none_can_be_used_it_does_not_start_from_scratch(store: CheckpointStore) -> None:
    model = small_model()
    flip_a_bit(store.save(small_state(10, model)))
    with pytest.raises(CheckpointError, match=r"none of the checkpoints .* can be used"):
        store.load_newest(model)


def _replace(path: Path, value: object, protocol: str) -> None:
    """Put another, correctly announced file in its place."""
    target = path / "state.pt"
    if protocol == "torch":
        torch.save(value, target)
    else:
        target.write_bytes(pickle.dumps(value))
    data = target.read_bytes()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps({"files": {"state.pt": entry}}))


class _Bomb:
    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("protocol", ["torch", "pickle"])
def test_code_in_a_checkpoint_is_not_executed(store: CheckpointStore, tmp_path: Path, protocol: str) -> None:
    path = store.save(small_state(10, small_model()))
    marker = tmp_path / "executed"
    _replace(path, {"step": 10, "x": _Bomb(str(marker))}, protocol)
    with pytest.raises(CheckpointError, match="cannot be read safely"):
        store.load(10, small_model())
    assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"step": 11}, "step 11"),
        ({"format": 9}, "format 9"),
        ({"scaler": None}, "scaler: expected dict"),
        ({"model_state_dict": {}}, "another model"),
        ({"model_state_dict": {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}}, "bias: expected"),
        ({"model_state_dict": {"weight": torch.zeros(2, 3).half(), "bias": torch.zeros(2)}}, "float16"),
    ],
)
def test_foreign_content_is_refused(store: CheckpointStore, change: dict[str, object], expected: str) -> None:
    path = store.save(small_state(10, small_model()))
    _replace(path, {**small_state(10, small_model()), **change}, "torch")
    with pytest.raises(CheckpointError, match=expected):
        store.load(10, small_model())


def test_a_disk_that_refuses_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="check that the volume is mounted"):
        CheckpointStore(str(tmp_path / "file" / "dir"), JsonLog()).save(small_state(1, small_model()))


def test_saving_the_same_step_again_replaces_it(store: CheckpointStore) -> None:
    model = small_model()
    flip_a_bit(store.save(small_state(10, model)))
    store.save(small_state(10, model))
    assert store.load(10, model).state["step"] == 10
    shutil.rmtree(store.save(small_state(10, model)))
