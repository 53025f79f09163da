"""The Alertmanager configuration that docs/alertmanager.md gives."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import yaml

from tests.support.bodies import Json

PAGE = Path(__file__).parents[2] / "docs" / "alertmanager.md"


def documented() -> Json:
    """The configuration, as it stands on the page."""
    (found,) = re.findall(r"^ *```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    config: Json = yaml.safe_load(dedent(found))
    return config


def webhook_of(config: Json) -> Json:
    """Its one webhook."""
    webhook: Json = config["receivers"][0]["webhook_configs"][0]
    return webhook


def posting_to(port: int, token: Path) -> Json:
    """The same, to a receiver on this machine, with this token; alerts wait for no others."""
    config = documented()
    webhook = webhook_of(config)
    webhook["url"] = re.sub("//[^/]+/", f"//127.0.0.1:{port}/", webhook["url"])
    webhook["http_config"]["authorization"]["credentials_file"] = str(token)
    config["route"] |= {"group_wait": "0s", "group_interval": "1s"}
    return config
