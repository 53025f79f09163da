"""The last judge: mypy, as ``make check`` runs it. A mutant that it refuses would not land, whoever else overlooks it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from lab import paths
from lab.errors import LabError
from lab.mutants.operators import Mutant

MYPY = "mypy"


def refused(mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """Those of which mypy refuses the module, where it takes it as it is.

    A module without its comments lacks its ``type: ignore`` too: one that needs them is judged by nobody here.
    """
    taken: dict[str, bool] = {}
    with TemporaryDirectory() as folder:
        for mutant in mutants:
            if mutant.module not in taken:
                taken[mutant.module] = _takes(mutant.path, mutant.right, Path(folder))
            if taken[mutant.module] and not _takes(mutant.path, mutant.wrong, Path(folder)):
                yield mutant


def _takes(path: Path, source: str, folder: Path) -> bool:
    shadow = folder / path.name
    shadow.write_text(source)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        MYPY,
        f"--cache-dir={folder / 'cache'}",
        "--shadow-file",
        path,
        shadow,
        path,
    ]
    ended = subprocess.run(command, cwd=paths.ROOT, capture_output=True, check=False, text=True)
    if ended.returncode not in (0, 1):
        raise LabError(
            "mypy to take a module or refuse it", f"exit code {ended.returncode}: {ended.stderr}", "run mypy"
        )
    return ended.returncode == 0
