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


def test_no_test_module_imports_another() -> None:
    """But for the trainer's, whose sessions are still made in one of them."""
    modules = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.parent.name != "trainer"]
    assert modules
    imports = re.compile(r"^\s*(from|import) tests\.\S*\btest_\w+|^\s*from tests\S* import .*\btest_\w+", re.MULTILINE)
    assert [str(path) for path in modules if imports.search(path.read_text())] == []


def dockerfiles() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split()]


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
