"""One name, one type: who reads a name in a trace or a page must not have to ask which of two it is."""

import ast
from collections import defaultdict
from pathlib import Path

import precision_operator


def test_no_two_public_types_of_the_operator_have_one_name() -> None:
    package = Path(precision_operator.__file__).parent
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(package)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
