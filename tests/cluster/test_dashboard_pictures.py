"""The documentation's pictures of `kubectl precision dashboard`, over an API server in memory that holds a large fleet."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Literal, cast

import pytest
from PIL import Image
from playwright.async_api import Page, expect

from tests.support.dashboards import chromium, opened, served
from tests.support.pictured import SHOWN, pictured


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_documentations_pictures_can_be_taken_again(theme: Literal["light", "dark"], tmp_path: Path) -> None:
    """With ``DASHBOARD_PICTURES=docs/images`` they stay there."""
    folder = Path(os.environ.get("DASHBOARD_PICTURES") or tmp_path)
    async with (
        chromium() as browser,
        served(await pictured(), "default") as server,
        opened(browser, server, theme=theme) as page,
    ):
        await page.locator(f"[role=option][data-id$='/{SHOWN}']").click()
        await expect(page.get_by_role("complementary", name="Workload")).to_contain_text("P1 overflow 0.41 > 0.3")
        await photograph(page, folder / f"dashboard-fleet-{theme}.png")
        await page.get_by_role("link", name="Incidents").click()
        await expect(page.get_by_role("link", name="llm-3")).to_be_visible()
        await photograph(page, folder / f"dashboard-incidents-{theme}.png", height=240)
        await page.get_by_role("link", name="vision-5").click()
        await expect(page.get_by_role("img", name=re.compile("^Overflow, incident"))).to_be_visible()
        await photograph(page, folder / f"dashboard-incident-{theme}.png")
        await page.evaluate("location.hash = '#/policy/default/vision'")
        await expect(page.locator(".facts .progress")).to_have_text("24 of 24 in fp32")
        await expect(page.get_by_role("img", name=re.compile("^Overflow, recording"))).to_be_visible()
        await photograph(page, folder / f"dashboard-policy-{theme}.png")


async def photograph(page: Page, path: Path, *, height: float = 860) -> None:
    """Write a small picture of the page's upper part: in its 256 commonest colours, which the page itself has."""
    await page.mouse.move(0, 0)
    taken = await page.screenshot(animations="disabled", clip={"x": 0, "y": 0, "width": 1280, "height": height})
    whole = Image.open(io.BytesIO(taken)).convert("RGB")
    colours = cast(list[tuple[int, tuple[int, ...]]], whole.getcolors(2**24))
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in sorted(colours, reverse=True)[:256] for part in colour])
    whole.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)
