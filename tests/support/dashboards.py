"""The dashboard over an API server, real or in memory, and a headless Chromium that opens it."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Literal, cast

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from lab.setup.prerequisites import browser_program
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.summary import summary_to_wire
from precision_operator.cli.dashboard.server import Server
from precision_operator.cli.session import Session
from precision_operator.kube.port import (
    ASSIGNMENTS,
    DEPLOYMENTS,
    PODS,
    POLICIES,
    REPLICASETS,
    Cluster,
    JsonObject,
    Resource,
)
from tests.support import trainers
from tests.support.cli import FLEET, stands
from tests.support.fake_kube import FakeKube

PATIENCE_MS = 60_000
"""For what a page must show; a busy machine is no finding."""
expect.set_options(timeout=PATIENCE_MS)


@asynccontextmanager
async def served(
    api: Cluster, namespace: str, *, flags: Sequence[str] = (), prometheus: str = ""
) -> AsyncIterator[Server]:
    """The dashboard of a namespace."""
    arguments = argparse.Namespace(
        all_namespaces=False, prometheus=prometheus, queries=None, bearer_token_file="", port=0
    )
    server = Server(Session(api, namespace, tuple(flags)), arguments)
    await server.start(0)
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Debian's browser, headless."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=browser_program(), args=["--no-sandbox"])
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(
    browser: Browser,
    server: Server,
    *,
    theme: Literal["light", "dark"] = "light",
    at: str = "",
    errors: Collection[int] = (),
) -> AsyncIterator[Page]:
    """The page in a window of its own, let in by the address that is printed.

    It must report no error but answers of these statuses, which a browser logs.
    """
    context = await browser.new_context(
        color_scheme=theme, viewport={"width": 1280, "height": 860}, timezone_id="UTC", locale="en-GB"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = await context.new_page()
    logged: list[str] = []
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on("console", lambda message: logged.append(message.text) if message.type == "error" else None)
    await page.goto(f"{server.guard.address}{at}")
    yield page
    await context.close()
    assert [one for one in logged if not any(f"status of {status}" in one for status in errors)] == []


class LargeFleet(FakeKube):
    """An API server in memory that hands out what it holds, and copies nothing: readers change nothing."""

    def trainer(self, name: str, mode: str) -> None:
        """A Deployment of the fleet with one pod, which is asked for this mode."""
        self.put(DEPLOYMENTS, trainers.deployment(name, labels=FLEET))
        self.put(REPLICASETS, trainers.replicaset(name))
        self.put(PODS, trainers.pod(name, labels=FLEET, mode=mode, generation=7))

    async def list(
        self, resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        """See the port."""
        return [body for (plural, *_), body in sorted(self.objects.items()) if plural == resource.plural]


def large_fleet(count: int) -> LargeFleet:
    """A policy of so many workloads, half of them moved."""
    kube, names = LargeFleet(), [f"llm-{number:04d}" for number in range(count)]
    moved = [f"apps/Deployment/{name}" for name in names[: count // 2]]
    found = stands(
        Phase.PROGRESSING,
        step="3/4 50%",
        total=count,
        moved=len(moved),
        members=tuple(moved),
        modes=dict.fromkeys(moved, Mode.FP16),
    )
    metadata: JsonObject = {"name": "fleet", "uid": "uid-fleet", "generation": 1}
    spec: JsonObject = {"selector": {"matchLabels": dict(FLEET)}}
    kube.put(POLICIES, {"metadata": metadata, "spec": spec, "status": cast(JsonObject, summary_to_wire(found.status))})
    kube.put(ASSIGNMENTS, {"metadata": {"name": "fleet"}, **cast(JsonObject, assignment_to_wire(found.state))})
    for number, name in enumerate(names):
        kube.trainer(name, "fp16" if number < count // 2 else "fp32")
    return kube


async def violations(page: Page) -> list[str]:
    """What axe finds wrong with the page as it stands."""
    found = (await Axe().run(page)).response["violations"]
    return [f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}" for one in found]
