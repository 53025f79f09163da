"""The YAML of docs/onboarding.md, by the comment that stands before each block."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.support.bodies import Json

PAGE = (Path(__file__).parents[2] / "docs" / "onboarding.md").read_text()


def block(name: str) -> str:
    """The text of the block after ``<!-- name -->``."""
    (found,) = re.findall(rf"<!-- {re.escape(name)} -->\n+```yaml\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def parsed(name: str) -> Json:
    """The same, parsed."""
    body: Json = yaml.safe_load(block(name))
    return body
