"""No private words: what stands in pyproject.toml under `tool.words` is said otherwise."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["words"]
SUFFIXES = {".py", ".md", ".yaml", ".tpl", ".json", ".sh", ".go", ".Dockerfile"}
NAMES = {"Makefile", "Dockerfile"}
FOLDERS = ("operator", "trainer_image", "tools", "lab", "manifests", "crds", "helm", "docs", "examples", "tests")
FILES = [
    path
    for path in (
        *ROOT.glob("*.md"),
        ROOT / "Makefile",
        *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))),
    )
    if (path.suffix in SUFFIXES or path.name in NAMES) and path.is_file()
]


@pytest.mark.parametrize("word", WORDS)
def test_a_private_word_is_said_otherwise(word: str) -> None:
    pattern = re.compile(rf"(?<![a-z]){re.escape(word)}s?(?![a-z])", re.IGNORECASE)
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in FILES
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not wrong, f"expected {WORDS[word]!r} in place of {word!r}, found {len(wrong)}: {wrong[0]}"
