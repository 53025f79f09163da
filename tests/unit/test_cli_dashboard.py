"""What the dashboard decides nowhere else: who may ask, what a page is told, and what a cell says."""

from __future__ import annotations

import argparse
import asyncio
import base64
import math
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from precision_operator.api.modes import Mode
from precision_operator.api.policy import parse_policy
from precision_operator.api.signal_records import DEFAULT_CRITERIA
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery, Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.cli import parser
from precision_operator.cli.dashboard.board import Board, Row
from precision_operator.cli.dashboard.charts import LINES, of_series
from precision_operator.cli.dashboard.feed import Feed, Page
from precision_operator.cli.dashboard.guard import Ask, Guard
from precision_operator.cli.dashboard.orders import Wish, buttons
from precision_operator.cli.dashboard.rows import CellVerdict, mode, verdict
from precision_operator.cli.dashboard.server import serve as serve_page
from precision_operator.cli.dashboard.trends import Trends
from precision_operator.cli.fleet import PodLine, WorkloadLine
from precision_operator.cli.live import LiveReport
from precision_operator.cli.session import CommandRefused, Session
from precision_operator.errors import ConfigurationError
from precision_operator.incidents.document import from_body, to_body
from precision_operator.kube.port import EVENTS, INCIDENTS
from precision_operator.signals.port import Series
from tests.support.cli import HELD, WAITING, Cli, stands
from tests.support.policies import policy as policy_of
from tests.support.prometheus_bodies import STAMP, failure, http, serve, success
from tests.support.reported import Stage, rolled_back

GUARD = Guard(4711)
OWN = Ask("GET", "127.0.0.1:4711", cookie=GUARD.key)
WRITE = replace(OWN, method="POST", origin="http://127.0.0.1:4711", site="same-origin", header="1")


@pytest.mark.parametrize("ask", [OWN, WRITE, replace(OWN, host="localhost:4711"), replace(OWN, site="none")])
def test_the_page_itself_may_ask(ask: Ask) -> None:
    assert GUARD.refusal(ask) == ""


@pytest.mark.parametrize(
    "ask",
    [
        replace(OWN, host="evil.example:4711"),
        replace(OWN, host="127.0.0.1:4712"),
        replace(OWN, host="127.0.0.1"),
        replace(OWN, host=None),
        replace(OWN, origin="http://evil.example"),
        replace(OWN, origin="null"),
        replace(OWN, origin="http://127.0.0.1:4712"),
        replace(OWN, site="cross-site"),
        replace(OWN, site="same-site"),
        replace(WRITE, header=None),
        replace(WRITE, origin=None),
    ],
)
def test_another_host_origin_or_site_and_a_write_without_the_header_are_refused(ask: Ask) -> None:
    assert GUARD.refusal(ask) != ""


def test_the_token_opens_the_page_once_and_no_other_word_does() -> None:
    guard = Guard(4711)
    token = guard.address.partition("token=")[2]
    assert not guard.admit(replace(OWN, token="x" * len(token)))
    assert not guard.admit(replace(OWN, token=None))
    assert guard.admit(replace(OWN, token=token))
    assert not guard.admit(replace(OWN, token=token))


def test_the_cookie_is_known_by_its_value_alone() -> None:
    assert GUARD.known(OWN)
    assert not GUARD.known(replace(OWN, cookie="é"))
    assert not GUARD.known(replace(OWN, cookie=None))


def test_a_page_is_told_what_changed_and_what_is_gone_and_nothing_twice() -> None:
    board = Board()
    assert board.put("workloads", {"a": {"mode": "fp32"}, "b": {"mode": "fp32"}})
    seen = board.version
    assert not board.put("workloads", {"a": {"mode": "fp32"}, "b": {"mode": "fp32"}})
    assert board.since(seen, ["workloads"]) == {}
    assert board.put("workloads", {"a": {"mode": "fp16"}})
    assert board.since(seen, ["workloads"]) == {"workloads": {"a": {"mode": "fp16"}, "b": None}}
    assert board.since(0, ["workloads", "policies"]) == {"workloads": {"a": {"mode": "fp16"}}}


def test_what_is_gone_is_forgotten_once_every_page_was_told() -> None:
    board = Board()
    board.put("workloads", {"a": {}})
    seen = board.version
    board.put("workloads", {})
    board.forget(seen)
    assert board.since(seen, ["workloads"]) == {"workloads": {"a": None}}
    board.forget(board.version)
    assert board.since(seen, ["workloads"]) == {}


def line(**given: object) -> WorkloadLine:
    """A workload with a pod that was asked for FP16."""
    pod = PodLine("a-1", "node-1", Mode.FP16, 7, ())
    known = WorkloadLine("a", "Deployment", "apps/Deployment/a", Delivery.HOT, Mode.FP16, 7, True, (), (), (pod,))
    return replace(known, **given)  # type: ignore[arg-type]  # of a WorkloadLine


@pytest.mark.parametrize(
    ("found", "held", "said"),
    [
        (line(), False, CellVerdict.ACKNOWLEDGED),
        (line(acknowledged=False), False, CellVerdict.WAITING),
        (line(acknowledged=None), False, CellVerdict.UNKNOWN),
        (line(), True, CellVerdict.HELD),
        (line(breaches=(Failing("a", Signal.OVERFLOW, Severity.P1, 0.0),)), True, CellVerdict.BREACHED),
    ],
)
def test_a_cell_says_the_worst_that_is_known_of_a_workload(found: WorkloadLine, held: bool, said: CellVerdict) -> None:
    assert verdict(found, held=held) is said


def test_a_cell_has_the_mode_that_is_reported_else_the_one_that_was_requested() -> None:
    (pod,) = line().pods
    reporting = replace(pod, report=LiveReport(Mode.BF16, 7, 1.0, {}))
    other, dark = replace(pod, requested=Mode.FP32), replace(pod, requested=None)
    assert mode(line()) == ("fp16", "requested")
    assert mode(line(pods=(reporting,))) == ("bf16", "reported")
    assert mode(line(pods=(pod, other))) == ("mixed", "requested")
    assert mode(line(pods=(pod, dark))) == ("unknown", "not known")
    assert mode(line(pods=())) == ("unknown", "not known")


async def test_the_buttons_follow_the_rules_of_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(capsys)
    for name, found in {"waiting": WAITING, "held": HELD, "healthy": stands(Phase.HEALTHY)}.items():
        cli.policy(found, name=name)
    session = Session(cli.fake, "default")
    allowed = {
        name: {button["verb"] for button in buttons(session, await session.policy(name)) if not button["refused"]}
        for name in ("waiting", "held", "healthy")
    }
    assert allowed == {
        "waiting": {"promote", "pause", "rollback", "emergency"},
        "held": {"pause", "ack", "retry"},
        "healthy": {"drill", "pause", "rollback", "emergency"},
    }
    assert cli.fake.writes == []


@pytest.mark.parametrize("raw", [None, {}, {"verb": "delete"}, {"verb": "ack", "items": ["nothing"]}])
def test_what_is_no_command_is_refused(raw: object) -> None:
    with pytest.raises(ConfigurationError, match="expected one of"):
        Wish.read(raw)


def test_a_chart_shows_the_series_nearest_to_a_breach_with_the_policy_s_threshold() -> None:
    names = [f"vit-{number}" for number in range(LINES + 2)]
    series = [Series({"pod": name}, ((1.0, number / 100), (2.0, math.nan))) for number, name in enumerate(names)]
    found = of_series("overflow", series, parse_policy(policy_of()), source="Prometheus")
    lines: list[dict[str, object]] = found["lines"]  # type: ignore[assignment]
    assert [one["name"] for one in lines] == names[:1:-1]
    assert lines[0]["points"] == [[1.0, 0.06], [2.0, None]]
    assert (found["levels"], found["more"]) == ([{"name": "breached above", "value": 0.3}], 2)


def arguments(prometheus: str = "") -> argparse.Namespace:
    """What the command line gave."""
    return argparse.Namespace(all_namespaces=False, prometheus=prometheus, queries=None, bearer_token_file="")


def answer(head: str) -> bytes:
    """A Prometheus that has the overflow of two pods, and refuses what is asked of speed."""
    (query,) = parse_qs(urlsplit(head.split(" ", 2)[1]).query)["query"]
    if "samples_per_second" in query:
        return http(failure("execution", "too many samples"), "422 Unprocessable Entity")
    if "overflow" not in query:
        return http(success("matrix", []))
    pods = [{"metric": {"pod": f"vit-{n}"}, "values": [[STAMP, "0.1"], [STAMP + 15, f"0.{n}"]]} for n in (2, 4)]
    return http(success("matrix", pods))


async def test_with_prometheus_each_signal_has_a_chart_or_says_why_not_and_is_not_asked_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Cli(capsys)
    cli.policy(stands(Phase.HEALTHY))
    target = await Session(cli.fake, "default").policy("fleet")
    with serve() as prometheus:
        prometheus.answer = answer
        trends = Trends(arguments(prometheus.url))
        charts = {str(chart["name"]): chart for chart in await trends.of(target)}
        asked = len(prometheus.heads)
        await trends.of(target)
        assert len(prometheus.heads) == asked
    lines: list[dict[str, object]] = charts["overflow"]["lines"]  # type: ignore[assignment]
    assert [one["name"] for one in lines] == ["vit-4", "vit-2"]
    assert "too many samples" in str(charts["speed"]["note"])
    assert set(charts) == {criterion.signal for criterion in DEFAULT_CRITERIA if criterion.enabled}


async def told(feed: Feed, page: Page, topic: str = "policies") -> dict[str, dict[str, Row | None]]:
    """The news of a page up to the first that has the topic in it."""
    found: dict[str, dict[str, Row | None]] = {}
    async for news in feed.news(page, seconds=60.0):
        found |= news
        if topic in news:
            return found
    raise AssertionError("the news ended")


async def told_while_it_reads(feed: Feed, of: str, topic: str) -> dict[str, dict[str, Row | None]]:
    """The first news of a page of ``of`` with the topic in it; the feed reads on after that."""
    reading = asyncio.ensure_future(feed.run())
    try:
        with feed.page(of) as page:
            telling = asyncio.ensure_future(told(feed, page, topic))
            await asyncio.wait({reading, telling}, return_when=asyncio.FIRST_COMPLETED)
        assert not reading.done()
        return await telling
    finally:
        reading.cancel()


async def details_after(stage: Stage, cli: Cli, *, damage: bool) -> dict[str, Row]:
    """What the page of the policy shows after its rollback, whose recording may have been damaged."""
    ((_, body),) = [item for item in stage.kube.objects.items() if item[0][0] == INCIDENTS.plural]
    report = from_body(body)
    raw = bytearray(base64.b64decode(report.recordings.tape))
    raw[10] = 0xFF if damage else raw[10]
    tape = base64.b64encode(raw).decode()
    kept = replace(report, recordings=replace(report.recordings, tape=tape))
    cli.policy(stands(Phase.HELD, incident=stage.world.state.incident))
    cli.fake.put(INCIDENTS, to_body(kept, namespace="default"))
    feed = Feed(Session(cli.fake, "default"), arguments())
    found = (await told_while_it_reads(feed, "default/fleet", "details/default/fleet"))["details/default/fleet"]
    return {key: row for key, row in found.items() if row is not None}


async def test_a_damaged_recording_is_said_on_the_page_which_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    details = await details_after(await rolled_back(), Cli(capsys), damage=True)
    assert "no recordings: expected a tape" in str(details["notes"]["notes"])


async def test_signals_around_a_rollback_are_charts_of_its_recording(capsys: pytest.CaptureFixture[str]) -> None:
    stage = await rolled_back()
    details = await details_after(stage, Cli(capsys), damage=False)
    assert details["notes"]["notes"] == []
    charts: list[dict[str, Any]] = details["charts"]["charts"]  # type: ignore[assignment]
    recorded = {chart["name"]: chart for chart in charts if chart["source"] == f"recording {stage.report.id}"}
    overflow = recorded["overflow"]
    assert [moment["name"] for moment in overflow["moments"]] == ["detected", "in fallback"]
    (threshold,) = (level["value"] for level in overflow["levels"])
    assert max(value for line in overflow["lines"] for _, value in line["points"]) > threshold


async def test_the_page_of_a_policy_asks_for_the_events_of_that_policy_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Cli(capsys)
    cli.policy(stands(Phase.HEALTHY))
    for name, uid in (("ours", "uid-fleet"), ("others", "uid-other")):
        event = {"metadata": {"name": name}, "involvedObject": {"uid": uid}, "reason": "Promoted", "message": name}
        cli.fake.put(EVENTS, event)  # type: ignore[arg-type]
    feed = Feed(Session(cli.fake, "default"), arguments())
    found = (await told_while_it_reads(feed, "default/fleet", "details/default/fleet"))["details/default/fleet"]
    timeline: list[dict[str, object]] = found["timeline"]["entries"]  # type: ignore[assignment,index]
    assert [entry["message"] for entry in timeline] == ["ours"]
    asked = [read for read in cli.fake.reads if "events" in read]
    assert asked
    assert set(asked) == {("list", "events", "involvedObject.uid=uid-fleet")}


async def test_a_policy_that_is_named_is_what_the_page_opens_with(capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(capsys)
    cli.policy(stands(Phase.HEALTHY))
    given = parser(["dashboard", "fleet"]).parse_args(["dashboard", "fleet"])
    serving = asyncio.ensure_future(serve_page(Session(cli.fake, "default"), given))
    printed = ""
    while not printed and not serving.done():
        await asyncio.sleep(0)
        printed = capsys.readouterr().out
    serving.cancel()
    assert urlsplit(printed.splitlines()[0]).fragment == "/policy/default/fleet"
    await asyncio.wait([serving])


async def test_a_policy_that_is_not_there_is_refused_before_anything_is_served(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Cli(capsys)
    cli.policy(stands(Phase.HEALTHY))
    given = parser(["dashboard", "fleat"]).parse_args(["dashboard", "fleat"])
    with pytest.raises(CommandRefused, match="no PrecisionPolicy fleat"):
        await serve_page(Session(cli.fake, "default"), given)


async def test_a_defect_is_said_on_the_page_which_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> list[object]:
        raise ZeroDivisionError("of nothing")

    cli = Cli(capsys)
    monkeypatch.setattr(Session, "policies", broken)
    feed = Feed(Session(cli.fake, "default"), arguments())
    assert "ZeroDivisionError: of nothing" in str((await told_while_it_reads(feed, "", "about"))["about"])


async def test_nothing_is_read_until_a_page_is_open_and_each_is_told_everything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Cli(capsys)
    cli.policy(stands(Phase.HEALTHY))
    cli.trainer("a", "fp16")
    feed = Feed(Session(cli.fake, "default"), arguments())
    reading = asyncio.ensure_future(feed.run())
    try:
        for _ in range(10):
            await asyncio.sleep(0)
        assert cli.fake.reads == []
        with feed.page("") as one, feed.page("") as other:
            first = await told(feed, one, "workloads")  # what is read last
            again = await told(feed, other)
    finally:
        reading.cancel()
    assert set(first["policies"]) == set(again["policies"]) == {"default/fleet"}
    assert set(again["workloads"]) == {"default/fleet/apps/Deployment/a"}
