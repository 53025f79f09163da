"""The commands that pages show: each ``sh`` block, and what runs it.

Above a block stands one of these comments::

    <!-- run by: make surfaces -->                          pasted into a shell beside the lab's cluster
    <!-- run by: tests/chart/test_install.py::test_… -->   a test reads the block from the page and runs it
    <!-- not run: needs Docker -->                          it needs something that is not at hand

``python -m lab.docs.commands`` prints all of them as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from lab import paths

PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (?:run by: (?P<test>\S.*?)|not run: (?P<reason>\S.*?)) -->\s*\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    """Of its fence."""
    language: str
    text: str
    test: str = ""
    """What runs it."""
    reason: str = ""
    """Why nothing can run it here."""

    @property
    def is_marked(self) -> bool:
        """Whether the page says what runs it, or that nothing does."""
        return bool(self.test or self.reason)

    @property
    def kubectl(self) -> list[str]:
        """Its lines that begin with kubectl."""
        return [line for line in self.text.splitlines() if line.startswith("kubectl ")]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    for fence in _FENCE.finditer(text):
        found = _MARK.search(text, 0, fence.start())
        mark = found.groupdict(default="") if found else {"test": "", "reason": ""}
        yield Block(
            page=page,
            line=text.count("\n", 0, fence.start()) + 1,
            language=fence["language"],
            text=re.sub(rf"^{fence['indent']}", "", fence["body"], flags=re.MULTILINE),
            test=mark["test"],
            reason=mark["reason"],
        )


def all_blocks(root: Path = paths.ROOT) -> list[Block]:
    """Every fenced block of every page of the checkout."""
    pages = [path for pattern in PAGES for path in sorted(root.glob(pattern))]
    return [block for path in pages for block in blocks_of(str(path.relative_to(root)), path.read_text())]


def shell_blocks(blocks: list[Block]) -> list[Block]:
    """Those that a reader pastes into a shell."""
    return [block for block in blocks if block.language == "sh"]


def in_blocks(text: str) -> list[str]:
    """The lines of ``sh`` blocks that begin with kubectl."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("kubectl ")]


def in_prose(text: str) -> list[str]:
    """Code within a sentence that begins with kubectl."""
    prose = re.sub(r"^```sh\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [code for code in inline if code.startswith("kubectl ")]


def main() -> int:
    """Print the listing."""
    found = shell_blocks(all_blocks())
    counts = {
        "blocks": len(found),
        "run": sum(bool(block.test) for block in found),
        "marked": sum(bool(block.reason) for block in found),
    }
    print(json.dumps({**counts, "list": [asdict(block) for block in found]}, indent=2, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
