"""Traps of the layout itself."""

import re
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


def test_no_test_module_imports_another() -> None:
    """But for the trainer's, whose sessions are still made in one of them."""
    modules = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if path.parent.name != "trainer"]
    assert modules
    imports = re.compile(r"^\s*(from|import) tests\.\S*\btest_\w+|^\s*from tests\S* import .*\btest_\w+", re.MULTILINE)
    assert [str(path) for path in modules if imports.search(path.read_text())] == []
