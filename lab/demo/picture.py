"""What the demo printed, as a picture; ``python -m lab.demo.picture PAGE`` draws the first block of a page."""

import io
import re
import sys
from pathlib import Path

from rich.console import Console

COLUMNS = 130
"""What is wider is cut."""

_FETCHED = re.compile(r"\s*(@font-face \{.*?\}|<!--.*?-->)", re.DOTALL)


def picture(recorded: Console) -> str:
    """An SVG of all that a console has recorded. It fetches no fonts: a picture in a page asks no other host."""
    recorded.width = COLUMNS
    return _FETCHED.sub("", recorded.export_svg(title="make demo"))


def drawn(page: str) -> str:
    """The picture of what the first block of a page without a language shows."""
    _, _, rest = page.partition("\n```\n")
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, highlight=False)
    console.print(rest.partition("\n```\n")[0], markup=False, no_wrap=True)
    return picture(console)


if __name__ == "__main__":
    sys.stdout.write(drawn(Path(sys.argv[1]).read_text(encoding="utf-8")))
