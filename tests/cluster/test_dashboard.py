"""`kubectl precision dashboard` in a browser, against a real API server: what it shows, how it is used, what it writes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.commands import COMMANDS
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.api.summary import summary_to_wire
from precision_operator.cli.dashboard import server as dashboard_server
from precision_operator.cli.dashboard.server import Server
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.port import INCIDENTS
from precision_operator.workloads.kinds.table import KINDS
from tests.support.cli import stands
from tests.support.cluster_fleet import LABELS, deployment, policy
from tests.support.dashboards import chromium, large_fleet, opened, served, violations
from tests.support.reported import rolled_back
from tests.support.users import GROUP, Client, custom, grant, rule

Json = dict[str, Any]
PREFIX = f"{GROUP}/"
MOVED, REST = ("vit-0", "vit-1"), ("vit-2", "vit-3")
KEYS = {name: f"apps/Deployment/{name}" for name in (*MOVED, *REST)}
MARKUP = '<img src=x onerror="alert(1)">'
FLOW = "flow"
"""A property of each test that goes a way that a person goes; lab/operate counts them."""
Theme = Literal["light", "dark"]
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])
Dashboard = Callable[..., AbstractAsyncContextManager[Server]]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Fleet:
    """Four Deployments and a policy whose operator is the test."""

    kubectl: Kubectl
    operator: Client
    namespace: str

    def stand(self, phase: Phase, *, breached: tuple[str, ...] = (), made: bool = True, **given: object) -> None:
        """Put the policy into this phase, with breaches in these workloads."""
        members = tuple(KEYS[name] for name in MOVED)
        failing = tuple(
            Failing(KEYS[name], Signal.OVERFLOW, Severity.P1, time.time(), measured="0.41 > 0.3") for name in breached
        )
        modes = dict.fromkeys(members, Mode.FP16)
        base: Json = {"total": len(KEYS), "selector": Selector(tuple(LABELS.items())), "message": MARKUP}
        found = stands(phase, **{**base, "members": members, "modes": modes, "failing": failing, **given})
        status = {"status": summary_to_wire(replace(found.status, breached=len(breached)))}
        where = ("ppol", "fleet", "-n", self.namespace)
        self.kubectl("patch", *where, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        record = custom(self.namespace, "precisionassignments")
        head = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "PrecisionAssignment", "metadata": {"name": "fleet"}}
        body: Json = {**head, **assignment_to_wire(found.state)}
        self.operator.made("PATCH" if made else "POST", f"{record}/fleet" if made else record, body)

    def annotations(self) -> Json:
        """What people asked for, without the prefix."""
        found = self.kubectl.json("get", "ppol", "fleet", "-n", self.namespace)["metadata"].get("annotations", {})
        return {k.removeprefix(PREFIX): v for k, v in found.items() if k.startswith(PREFIX)}


def cell(name: str) -> str:
    """The selector of a workload's cell."""
    return f"[role=option][data-id$='/{name}']"


@pytest.fixture(scope="module")
def standing(kubectl: Kubectl, operator: Client) -> Iterator[Fleet]:
    """The fleet in a namespace of its own."""
    found = Fleet(kubectl, operator, f"test-{uuid.uuid4().hex[:8]}")
    where = {"namespace": found.namespace}
    kubectl("create", "namespace", found.namespace)
    kubectl.wait_for_namespace(found.namespace)
    kubectl.apply({**policy(), "metadata": {"name": "fleet", **where}})
    found.stand(Phase.HEALTHY, made=False)
    bodies = [deployment(name) for name in KEYS]
    items = [{**body, "metadata": {**body["metadata"], **where}} for body in bodies]
    kubectl.apply({"apiVersion": "v1", "kind": "List", "items": items})
    wait_for(
        lambda: len(kubectl.json("get", "pods", "-n", found.namespace)["items"]) == len(KEYS),
        what="a pod of each workload",
        seconds=60,
    )
    yield found
    kubectl("delete", "namespace", found.namespace, "--wait=false")


@pytest.fixture
def fleet(standing: Fleet) -> Fleet:
    """The fleet, Healthy, with one breach, and nobody's command."""
    patch = {"metadata": {"annotations": dict.fromkeys(COMMANDS)}, "spec": {"suspend": False}}
    where = ("ppol", "fleet", "-n", standing.namespace)
    standing.kubectl("patch", *where, "--type=merge", "-p", json.dumps(patch))
    standing.stand(Phase.HEALTHY, breached=("vit-1",))
    return standing


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest.fixture
def dashboard(control_plane: ControlPlane, fleet: Fleet) -> Dashboard:
    """The dashboard of a user: `async with dashboard("ada", groups=[...]) as server`."""

    @asynccontextmanager
    async def found(user: str = "ada", *, groups: tuple[str, ...] = ("system:masters",)) -> AsyncIterator[Server]:
        kubeconfig = control_plane.user_kubeconfig(user, groups=list(groups))
        api = await KubeClient.connect(Access(Path(kubeconfig)), program="kubectl-precision")
        try:
            async with served(api, fleet.namespace) as server:
                yield server
        finally:
            await api.close()

    return found


@THEMES
async def test_the_grid_says_each_mode_and_verdict_in_letters_and_words(
    browser: Browser,
    dashboard: Dashboard,
    fleet: Fleet,
    theme: Theme,
    record_property: Callable[[str, object], None],
) -> None:
    async with dashboard() as server, opened(browser, server, theme=theme) as page:
        await expect(page.locator(cell("vit-0"))).to_have_text("16")
        await expect(page.locator(cell("vit-0"))).to_have_attribute("aria-label", re.compile("fp16 requested, ack"))
        await expect(page.locator(cell("vit-1"))).to_have_attribute("aria-label", re.compile("breached"))
        await expect(page.locator(cell("vit-2"))).to_have_text("32")
        await page.get_by_role("button", name=re.compile("^Breached")).click()
        await expect(page.locator("[role=option]:visible")).to_have_count(1)
        assert await found(page, record_property) == []
    record_property(FLOW, "grid")


@THEMES
async def test_arrows_move_in_the_grid_enter_opens_a_workload_and_escape_returns(
    browser: Browser,
    dashboard: Dashboard,
    fleet: Fleet,
    theme: Theme,
    record_property: Callable[[str, object], None],
) -> None:
    async with dashboard() as server, opened(browser, server, theme=theme) as page:
        await page.locator(cell("vit-0")).wait_for()
        await expect(page.locator("[role=option][tabindex='0']")).to_have_count(1)
        await page.locator("#main").focus()
        for _ in range(20):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.getAttribute('role')") == "option":
                break
        await expect(page.locator(cell("vit-0"))).to_be_focused()
        await page.keyboard.press("ArrowRight")
        await expect(page.locator(cell("vit-1"))).to_be_focused()
        await page.keyboard.press("End")
        await expect(page.locator(cell("vit-3"))).to_be_focused()
        await page.keyboard.press("ArrowUp")
        await expect(page.locator(cell("vit-1"))).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="vit-1")).to_be_focused()
        drawer = page.get_by_role("complementary", name="Workload")
        await expect(drawer).to_contain_text("P1 overflow 0.41 > 0.3")
        assert await found(page, record_property) == []
        await page.keyboard.press("Escape")
        await expect(page.locator(cell("vit-1"))).to_be_focused()
        await expect(drawer).to_be_hidden()
    record_property(FLOW, "keyboard")


@THEMES
async def test_a_policy_shows_its_phase_its_timeline_and_tenants_text_as_text(
    browser: Browser,
    dashboard: Dashboard,
    fleet: Fleet,
    theme: Theme,
    record_property: Callable[[str, object], None],
) -> None:
    fleet.kubectl("annotate", "ppol", "fleet", "-n", fleet.namespace, f"{PREFIX}rollback=3: {MARKUP}")
    async with dashboard() as server, opened(browser, server, theme=theme) as page:
        await page.get_by_role("link", name=f"{fleet.namespace}/fleet").click()
        await expect(page.locator(".title .badge")).to_have_text(re.compile("Healthy"))
        await expect(page.locator(".timeline")).to_contain_text(f"answered transition 3: {MARKUP}")
        await expect(page.locator(".title + .why")).to_contain_text(MARKUP)
        assert await page.locator("main img").count() == 0
        await expect(page.get_by_role("img", name=re.compile("Workloads, status"))).to_be_visible()
        await expect(page.locator("#timeline-title")).to_contain_text("UTC")
        assert await found(page, record_property) == []
    record_property(FLOW, "policy")


async def test_what_changes_arrives_without_a_reload(
    browser: Browser, dashboard: Dashboard, fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    async with dashboard() as server, opened(browser, server) as page:
        await page.locator(cell("vit-0")).focus()
        await page.evaluate("window.still = document.activeElement")
        await asyncio.to_thread(fleet.stand, Phase.HELD, breached=("vit-0",), reason="OverflowRateHigh", moved=3)
        await expect(page.locator(".policy-head .badge")).to_have_text(re.compile("Held"))
        await expect(page.locator(".policy-head .progress")).to_have_text("3 of 4 in fp32")
        await expect(page.locator(cell("vit-0"))).to_have_attribute("data-verdict", "breached")
        await expect(page.locator("#announce")).to_have_text(f"{fleet.namespace}/fleet is Held: OverflowRateHigh")
        body = deployment("vit-9", replicas=0)
        body["metadata"]["namespace"] = fleet.namespace
        await asyncio.to_thread(fleet.kubectl.apply, body)
        await expect(page.locator(cell("vit-9"))).to_have_text("?")
        await asyncio.to_thread(fleet.kubectl, "delete", "deployment", "vit-9", "-n", fleet.namespace)
        await expect(page.locator(cell("vit-9"))).to_have_count(0)
        assert await page.evaluate("window.still === document.activeElement")
    record_property(FLOW, "live")


@THEMES
async def test_a_command_is_previewed_and_then_written_with_the_user_s_name(
    browser: Browser,
    dashboard: Dashboard,
    fleet: Fleet,
    theme: Theme,
    record_property: Callable[[str, object], None],
) -> None:
    fleet.stand(Phase.HELD)
    at = f"#/policy/{fleet.namespace}/fleet"
    async with dashboard() as server, opened(browser, server, theme=theme, at=at) as page:
        await page.get_by_role("button", name="Promote").click(force=True)
        await expect(page.locator("#why-not")).to_contain_text("waits for no approval")
        await page.get_by_role("button", name="Retry").click()
        dialog = page.get_by_role("dialog", name=re.compile("Retry"))
        await dialog.get_by_label("Why").fill("rebuilt")
        line = f"kubectl precision retry fleet -m rebuilt -n {fleet.namespace}"
        await expect(dialog.locator("pre").first).to_have_text(line)
        await expect(dialog.locator("pre").last).to_contain_text(f"{PREFIX}retry=4: rebuilt")
        assert fleet.annotations() == {}
        assert await found(page, record_property) == []
        await dialog.get_by_role("button", name="Apply").click()
        await expect(dialog).to_contain_text("Written: retry asked for.")
        assert fleet.annotations() == {"retry": "4: rebuilt", "retry-by": "ada"}
        await dialog.get_by_role("button", name="Close").click()
        await expect(page.locator(".timeline")).to_contain_text("retry by ada")
    record_property(FLOW, "command")


async def test_a_preview_that_the_fleet_has_overtaken_writes_nothing(
    browser: Browser, dashboard: Dashboard, fleet: Fleet
) -> None:
    fleet.stand(Phase.PAUSED)
    at = f"#/policy/{fleet.namespace}/fleet"
    async with dashboard() as server, opened(browser, server, errors=(409,), at=at) as page:
        await page.get_by_role("button", name="Promote").click()
        apply = page.get_by_role("button", name="Apply")
        await expect(apply).to_be_enabled()
        await asyncio.to_thread(fleet.stand, Phase.PAUSED, transition_id=5)
        await apply.click()
        await expect(page.get_by_role("dialog")).to_contain_text("nothing was written")
        assert fleet.annotations() == {}


async def test_who_lacks_the_right_reads_so_in_the_preview(
    browser: Browser, dashboard: Dashboard, fleet: Fleet, kubectl: Kubectl
) -> None:
    reads = ["get", "list"]
    grant(
        kubectl,
        fleet.namespace,
        "eve",
        "eve-reads",
        rule(GROUP, ["precisionpolicies", "precisionassignments"], reads),
        *(rule(kind.resource.group, [kind.resource.plural], reads) for kind in KINDS),
    )
    at = f"#/policy/{fleet.namespace}/fleet"
    async with dashboard("eve", groups=()) as server, opened(browser, server, errors=(409,), at=at) as page:
        await page.get_by_role("button", name="Roll back").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("kubectl")
        await expect(dialog).to_contain_text("auth can-i patch precisionpolicies/fleet")
        await expect(dialog.get_by_role("button", name="Apply")).to_be_disabled()
        await page.keyboard.press("Escape")
        await expect(page.locator("section[aria-labelledby=timeline-title]")).to_contain_text("no Events")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def incident(standing: Fleet) -> str:
    """An incident of the namespace with its evidence; its id."""
    stage = await rolled_back()
    (body,) = [body for (plural, *_), body in stage.kube.objects.items() if plural == INCIDENTS.plural]
    metadata: Json = body["metadata"]  # type: ignore[assignment]
    written = {**body, "metadata": {"name": metadata["name"], "labels": metadata["labels"]}}
    standing.operator.made("POST", custom(standing.namespace, "precisionincidents"), written)
    return stage.report.id


@THEMES
async def test_an_incident_is_listed_and_shows_its_evidence(
    browser: Browser,
    dashboard: Dashboard,
    incident: str,
    theme: Theme,
    record_property: Callable[[str, object], None],
) -> None:
    async with dashboard() as server, opened(browser, server, theme=theme) as page:
        await page.get_by_role("link", name="Incidents").click()
        await expect(page.get_by_role("link", name=incident)).to_be_visible()
        assert await found(page, record_property) == []
        await page.get_by_role("link", name=incident).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text("OverflowRateHigh")
        evidence = page.get_by_role("region", name="Evidence")
        chart = evidence.get_by_role("img", name=re.compile("^Overflow, incident"))
        await expect(chart).to_have_attribute("aria-label", re.compile("breached above 30 %"))
        await expect(page.get_by_role("region", name="Verification")).to_contain_text("Immediate")
        assert await found(page, record_property) == []
    record_property(FLOW, "incident")


async def test_other_origins_hosts_and_browsers_are_refused(
    browser: Browser, dashboard: Dashboard, fleet: Fleet, record_property: Callable[[str, object], None]
) -> None:
    async with dashboard() as server, opened(browser, server) as page:
        await page.locator(cell("vit-0")).wait_for()
        (cookie,) = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", server.guard.path)
        base, own = f"http://127.0.0.1:{server.guard.port}{server.guard.path}", {cookie["name"]: cookie["value"]}
        wish = {"namespace": fleet.namespace, "policy": "fleet", "verb": "pause", "transitionId": 4}
        origin = {"Origin": base.removesuffix(server.guard.path), "X-Precision-Dashboard": "1"}
        refused: list[tuple[dict[str, str], dict[str, str]]] = [
            (own, {"Host": f"evil.example:{server.guard.port}", **origin}),
            (own, {**origin, "Origin": "http://evil.example"}),
            (own, {"X-Precision-Dashboard": "1"}),
            (own, {"Origin": origin["Origin"]}),
            (own, {**origin, "Sec-Fetch-Site": "same-site"}),
            ({}, origin),
        ]
        async with aiohttp.ClientSession() as http:
            for cookies, headers in refused:
                async with http.post(f"{base}api/apply", json=wish, headers=headers, cookies=cookies) as answer:
                    assert answer.status == 403, headers
            async with http.get(server.guard.address) as answer:
                assert answer.status == 403, "the token opens the page once"
            async with http.post(f"{base}api/apply", json=wish, headers=origin, cookies=own) as answer:
                assert answer.status == 200, await answer.text()
    assert fleet.annotations() == {"suspend-by": "ada"}
    record_property(FLOW, "refused")


async def test_the_verb_prints_an_address_that_opens_the_page_and_ends_with_an_interrupt(
    control_plane: ControlPlane, fleet: Fleet
) -> None:
    kubeconfig = str(control_plane.user_kubeconfig("ada", groups=["system:masters"]))
    words = ("-m", "precision_operator.cli", "dashboard", "--kubeconfig", kubeconfig, "-n", fleet.namespace)
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    async with aiohttp.ClientSession() as http, http.get(address) as answer:
        assert (answer.status, "style.css" in await answer.text()) == (200, True)
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130


async def test_two_thousand_workloads_stay_usable(
    browser: Browser, record_property: Callable[[str, object], None]
) -> None:
    """Below the port, where two thousand objects are made at once: what the browser does with them is what counts."""
    kube = large_fleet(2000)
    async with served(kube, "default") as server, opened(browser, server) as page:
        await expect(page.locator("[role=option]")).to_have_count(2000)
        await page.locator("[role=option]").first.focus()
        await page.keyboard.press("PageDown")
        await page.keyboard.press("End")
        await expect(page.locator(cell("llm-1999"))).to_be_focused()
        await page.get_by_label("Filter workloads by name").fill("llm-1234")
        await expect(page.locator("[role=option]:visible")).to_have_count(1)
        await page.evaluate("window.still = document.querySelector('[role=option]')")
        kube.trainer("llm-1234", "bf16")
        await expect(page.locator(cell("llm-1234"))).to_have_text("bf")
        assert await page.evaluate("window.still === document.querySelector('[role=option]')")
        shown = "performance.getEntriesByName('fleet-shown')[0].startTime"
        record_property("workloads", await page.locator("[role=option]").count())
        record_property("first_paint_seconds", round(await page.evaluate(shown) / 1000, 3))
    record_property(FLOW, "large")


async def test_a_page_that_the_server_does_not_know_any_more_says_what_to_do(browser: Browser) -> None:
    """The server was started again on the same port: it refuses the old page's cookie, and the browser gives up."""
    async with served(large_fleet(4), "default") as server, opened(browser, server, errors=(403,)) as page:
        await expect(page.locator("#live")).to_have_text("Live")
        await page.route("**/api/news*", lambda route: route.fulfill(status=403))
        await page.evaluate("location.hash = '#/policy/default/fleet'")
        await expect(page.locator("#live")).to_have_text("Not live")
        await expect(page.get_by_role("alert")).to_contain_text("Run `kubectl precision dashboard` again")


async def test_a_page_that_was_not_told_anything_for_long_says_so_until_it_is_live_again(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after this machine slept: the browser connects again by itself."""
    monkeypatch.setattr(dashboard_server, "ALIVE_SECONDS", 3600.0)
    async with served(large_fleet(4), "default") as server, opened(browser, server) as page:
        await page.clock.install()
        await page.reload()
        await expect(page.locator("#live")).to_have_text("Live")
        await page.clock.fast_forward(60_000)
        await expect(page.get_by_role("alert")).to_contain_text("the dashboard does not answer")
        await page.evaluate("location.hash = '#/policy/default/fleet'")
        await expect(page.locator("#live")).to_have_text("Live")
        await expect(page.get_by_role("alert")).to_be_hidden()


async def found(page: Page, record_property: Callable[[str, object], None]) -> list[str]:
    """What axe finds, which is recorded too."""
    wrong = await violations(page)
    record_property("axe_violations", len(wrong))
    return wrong
