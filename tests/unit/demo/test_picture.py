"""The demo's picture shows what was printed, and fetches nothing."""

import html
import io
import re

from rich.console import Console

from lab import paths
from lab.demo.picture import drawn, picture


def test_the_picture_has_each_line_that_was_printed_and_names_no_other_host() -> None:
    console = Console(record=True, file=io.StringIO(), highlight=False, soft_wrap=True, width=40)
    console.print("[green]done[/green]")
    console.print("x" * 100)
    svg = picture(console)
    assert ("done" in svg, "x" * 100 in svg) == (True, True)
    assert set(re.findall(r"https?://[^\"' )]+", svg)) == {"http://www.w3.org/2000/svg"}


def test_the_picture_of_the_page_shows_the_text_of_the_page() -> None:
    page = (paths.ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
    shown = html.unescape((paths.ROOT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8"))
    assert shown == html.unescape(drawn(page))
    lines = page.partition("\n```\n")[2].partition("\n```\n")[0].splitlines()
    assert len(lines) > 20
    assert [line for line in lines if line.strip().replace(" ", "\N{NO-BREAK SPACE}") not in shown] == []
