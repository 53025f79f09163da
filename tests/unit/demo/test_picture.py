"""The demo's picture shows what was printed, and fetches nothing."""

import io
import re

from rich.console import Console

from lab.demo.picture import picture


def test_the_picture_has_each_line_that_was_printed_and_names_no_other_host() -> None:
    console = Console(record=True, file=io.StringIO(), highlight=False, soft_wrap=True, width=40)
    console.print("[green]done[/green]")
    console.print("x" * 100)
    svg = picture(console)
    assert ("done" in svg, "x" * 100 in svg) == (True, True)
    assert set(re.findall(r"https?://[^\"' )]+", svg)) == {"http://www.w3.org/2000/svg"}
