"""Traps of the layout itself."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_operator_folder_does_not_shadow_the_standard_library() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    found = subprocess.run(
        [sys.executable, "-c", "import operator; print(operator.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(ROOT) not in found.stdout


MOST_LINES = 450
"""Above that a file has more than one concern."""


def test_no_python_file_is_so_long_that_nobody_reads_it() -> None:
    files = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in files.split() if (ROOT / name).exists()}
    assert lengths
    long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
    assert not long, f"expected at most {MOST_LINES} lines, found {long}: divide the file by concern"
