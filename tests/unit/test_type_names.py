"""One name, one type: who reads a name in a trace or a page must not have to ask which of two it is."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("package", ["operator/precision_operator", "trainer_image/precision_trainer"])
def test_no_two_public_types_of_a_package_have_one_name(package: str) -> None:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
