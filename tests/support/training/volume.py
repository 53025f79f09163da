"""A small file system of its own, to be filled."""

from __future__ import annotations

import subprocess
from io import RawIOBase
from pathlib import Path

import pytest


class Volume:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._run("mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path))

    def fill(self) -> None:
        """Leave no byte."""
        with (self.path / "filler").open("ab", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            _write_without_end(file)

    def leave(self, free_bytes: int) -> None:
        """Leave so many bytes, less than a page of them."""
        self.fill()
        size = (self.path / "filler").stat().st_size
        with (self.path / "filler").open("ab") as file:
            file.truncate(max(0, size - free_bytes))

    def empty(self) -> None:
        """Take that back."""
        (self.path / "filler").unlink()

    def read_only(self, on: bool) -> bool:
        """Whether it could be made so: not while a file is being written."""
        command = ["mount", "-o", f"remount,{'ro' if on else 'rw'}", str(self.path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        """Take it away."""
        self._run("umount", "-l", str(self.path))

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)


def _write_without_end(file: RawIOBase) -> None:
    while True:
        file.write(bytes(1 << 16))
