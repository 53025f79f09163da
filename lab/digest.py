"""Names made from content, so that a cache entry is right by construction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

_IGNORED = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def tree_files(root: Path) -> list[Path]:
    """List the files under `root` (or `root` itself), sorted, without the droppings of tools."""
    if root.is_file():
        return [root]
    return sorted(p for p in root.rglob("*") if p.is_file() and not _IGNORED & set(p.relative_to(root).parts))


def digest(paths: Iterable[Path] = (), words: Iterable[str] = ()) -> str:
    """Hash words, and the names, modes and contents of files and trees. Names are relative to each given path."""
    sha = hashlib.sha256()
    for word in words:
        sha.update(b"w%d:" % len(word.encode()))
        sha.update(word.encode())
    for path in paths:
        for file in tree_files(path):
            data = file.read_bytes()
            name = str(file.relative_to(path.parent)).encode()
            executable = b"x" if file.stat().st_mode & 0o100 else b"-"
            sha.update(b"f%d:%s%s%d:" % (len(name), name, executable, len(data)))
            sha.update(data)
    return sha.hexdigest()[:20]
