"""The versions of torch that the trainer runs on, and what its image promises."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from precision_trainer import compat
from precision_trainer.checkpoint.files import read_plain
from precision_trainer.errors import CheckpointError

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "trainer_image" / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("version", "safe"), [("2.6.0+debian", False), ("2.9.1", False), ("2.10.0", True), ("3.0", True)]
)
def test_a_torch_below_the_floor_says_so_and_opens_no_file_that_nobody_vouches_for(
    version: str, safe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"model_state_dict": {}}, tmp_path / "old.pt")
    monkeypatch.setattr(torch, "__version__", version)
    note = compat.security_note()
    if safe:
        assert note is None
        assert read_plain(tmp_path / "old.pt") == {"model_state_dict": {}}
    else:
        assert note is not None
        assert f"torch {version} is below 2.10 (CVE-2026-24747" in note
        with pytest.raises(CheckpointError, match=r"has no manifest, and torch .* convert it with a newer torch"):
            read_plain(tmp_path / "old.pt")


def test_the_production_images_torch_is_locked_by_hash_and_not_below_the_floor() -> None:
    lock = (ROOT / "requirements" / "trainer.txt").read_text()
    locked = re.search(r"^torch==(\d+)\.(\d+)\S* \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert locked is not None
    assert (int(locked[1]), int(locked[2])) >= compat.SAFE_LOAD_FLOOR
    assert "--require-hashes" in DOCKERFILE


def test_the_image_takes_its_base_as_an_argument_runs_without_root_and_is_labelled() -> None:
    assert re.search(r"^ARG BASE\nFROM \$\{BASE\}$", DOCKERFILE, re.MULTILINE)
    uid, user = (
        re.search(r"^ARG UID=(\d+)", DOCKERFILE, re.MULTILINE),
        re.search(r"^USER (\S+)", DOCKERFILE, re.MULTILINE),
    )
    assert uid is not None
    assert int(uid[1]) > 0
    assert user is not None
    assert user[1] == "${UID}:${UID}"
    for label in ("title", "description", "licenses", "version"):
        assert f"org.opencontainers.image.{label}=" in DOCKERFILE
