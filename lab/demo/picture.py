"""What the demo printed, as a picture."""

import re

from rich.console import Console

COLUMNS = 130
"""What is wider is cut."""

_FETCHED = re.compile(r"\s*(@font-face \{.*?\}|<!--.*?-->)", re.DOTALL)


def picture(recorded: Console) -> str:
    """An SVG of all that a console has recorded. It fetches no fonts: a picture in a page asks no other host."""
    recorded.width = COLUMNS
    return _FETCHED.sub("", recorded.export_svg(title="make demo"))
