"""Real text with nothing to download: the running interpreter's own library sources, as bytes.

The order of files is fixed and so is the sample at every position: sample ``i`` of the endless stream starts at a
pseudo-random offset computed from ``i`` alone. So the position in the data is one number, the samples consumed by the
process group. Resuming, or changing the number of ranks, loses and repeats nothing.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch

from ..errors import ConfigError

_SKIP = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
# Weyl sequence modulo 2^64: odd multiplier (golden ratio), so consecutive samples lie far apart.
_STRIDE = 0x9E3779B97F4A7C15


def _sources(root: Path) -> Iterator[Path]:
    """Python files below ``root`` in a fixed order, tests and installed packages left out."""
    for entry in sorted(root.iterdir()):
        if entry.is_dir():
            if entry.name not in _SKIP and not entry.is_symlink():
                yield from _sources(entry)
        elif entry.suffix == ".py":
            yield entry


class LibraryText:
    """Bytes of the library sources and the samples in them."""

    def __init__(self, context: int, max_bytes: int = 2 << 20, root: str | None = None) -> None:
        """Read up to ``max_bytes`` from ``root`` (the interpreter's library if None) for samples of ``context`` + 1 bytes.

        Raises:
            ConfigError: too little text there.
        """
        directory = Path(root or sysconfig.get_path("stdlib"))
        data = bytearray()
        for path in _sources(directory):
            data += path.read_bytes()
            if len(data) >= max_bytes:
                break
        del data[max_bytes:]
        if len(data) < 2 * (context + 1):
            raise ConfigError(
                f"{directory} holds {len(data)} bytes of .py files: expected at least {2 * (context + 1)}"
            )
        self.fingerprint = hashlib.sha256(data).hexdigest()[:16]
        self._bytes = torch.frombuffer(data, dtype=torch.uint8)
        self._window = torch.arange(context + 1)
        self._starts = len(data) - context

    def batch(self, position: int, size: int) -> torch.Tensor:
        """Samples ``position`` to ``position + size - 1`` of the stream: [size, context + 1], int64."""
        starts = [((index * _STRIDE) & 0xFFFFFFFFFFFFFFFF) % self._starts for index in range(position, position + size)]
        return self._bytes[torch.tensor(starts).unsqueeze(1) + self._window].long()
