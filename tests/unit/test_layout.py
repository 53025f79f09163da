"""Traps of the layout itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def tracked(pattern: str) -> list[str]:
    """Names of git's files that are there."""
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split() if (ROOT / name).exists()]


def dockerfiles() -> list[Path]:
    return [ROOT / name for name in tracked("*Dockerfile")]


def test_every_dockerfile_of_the_tree_is_known() -> None:
    assert {path.relative_to(ROOT).parts[0] for path in dockerfiles()} == {"lab", "operator", "tools", "trainer_image"}


@pytest.mark.parametrize("path", dockerfiles(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_dockerfile_names_no_base_that_is_not_pinned(path: Path) -> None:
    """Its comments neither: they are pasted."""
    text = path.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    bases = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) - stages - {"scratch", "${BASE}"}
    bases |= set(re.findall(r"\bBASE=(\S+)", text))
    assert [base for base in bases if "@sha256:" not in base] == []


MOST_LINES = 450
"""Above that a file has more than one concern."""


def test_no_python_file_is_so_long_that_nobody_reads_it() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in tracked("*.py")}
    assert lengths
    long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES}
    assert not long, f"expected at most {MOST_LINES} lines, found {long}: divide the file by concern"


def test_no_pattern_repeats_a_group_possessively() -> None:
    """CPython before 3.11.5, as Debian 12 has it, then passes over matches (its issue 106052): credentials would leave."""
    group = re.compile(r"\)(?:[?*+]|\{\d*,?\d*\})\+|\(\?>")
    shipped = [name for name in tracked("*.py") if name.startswith(("operator/", "trainer_image/", "tools/"))]
    assert shipped
    assert [name for name in shipped if group.search((ROOT / name).read_text())] == []
