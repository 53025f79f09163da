"""What tests share stands in tests/support: a test module never imports another."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SUPPORT = "tests.support"


def imported(file: Path) -> set[str]:
    """Modules of tests/ that a file imports."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.split(".")[0] == "tests"}


@pytest.mark.parametrize("folder", sorted(path.name for path in TESTS.iterdir() if path.is_dir()))
def test_what_tests_import_of_tests_is_support(folder: str) -> None:
    wrong = {
        str(file.relative_to(TESTS)): others
        for file in sorted((TESTS / folder).rglob("*.py"))
        if (others := {name for name in imported(file) if not f"{name}.".startswith(f"{SUPPORT}.")})
    }
    assert not wrong, f"expected imports of {SUPPORT} only, found {wrong}: move what is shared there"


def test_an_import_of_a_test_module_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "test_one.py"
    file.write_text("import tests.unit.test_two\nfrom tests.support import api\n")
    assert imported(file) == {"tests.unit.test_two", "tests.support"}
