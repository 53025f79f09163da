"""``backtest``: what a policy would have done on Prometheus' history."""

import argparse
import asyncio
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from precision_operator.api.wire import duration_seconds, format_time, mapping, parse_time
from precision_operator.cli.flags import Commands, output_flag, seconds_of
from precision_operator.cli.live import catalogue, prometheus, prometheus_flags
from precision_operator.cli.output import console, said, table, write_json
from precision_operator.errors import ConfigurationError

if TYPE_CHECKING:
    from precision_operator.api.policy import Policy
    from precision_operator.replay.backtest import Backtest
    from precision_operator.replay.curves import Thinned
    from precision_operator.replay.history import Span
    from precision_operator.replay.plots import Picture

PLOT_POINTS = 3000
"""Points of a series in a plot; of more readings, the worst of each few."""


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "backtest",
        help="what a policy would have done on last month's metrics",
        description="Run the operator's own decide() over Prometheus' history and say what it would have done, when and how "
        "often. The fleet's precision is simulated, its metrics are history's; they count only where the real trainers were "
        "in the simulated precision then.",
    )
    verb.add_argument("policy", type=Path, help="YAML of a PrecisionPolicy")
    prometheus_flags(verb, "base URL of the Prometheus to ask", required=True)
    verb.add_argument("--since", default="30d", help="how far back, e.g. 12h, 30d, or an RFC 3339 time (default 30d)")
    verb.add_argument("--until", default="", help="an RFC 3339 time (default now)")
    verb.add_argument("--step", default="", help="time between two decisions (default the policy's interval)")
    verb.add_argument(
        "--begin",
        choices=("guard", "rollout"),
        default="guard",
        help="guard: the fleet is promoted already; rollout: the steps are played too (default guard)",
    )
    verb.add_argument("--timeout", type=seconds_of, default=60.0, help="how long one query may take (default 60s)")
    verb.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="once more with another setting, side by side, e.g. criteria.overflow.enter=0.4; may be given several times",
    )
    verb.add_argument("--plot", type=Path, metavar="FILE", help="write a figure (.png, .svg, .pdf)")
    verb.add_argument("-n", "--namespace", default=argparse.SUPPRESS, help="default: the policy's, else default")
    output_flag(verb)
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask, decide, show."""
    from precision_operator.replay.curves import Thinned
    from precision_operator.replay.plots import check, draw

    policy = _policy(arguments)
    span = _span(arguments, policy)
    kept = None
    if arguments.plot is not None:
        check(arguments.plot)
        kept = Thinned(policy.spec.criteria, every=span.decisions // PLOT_POINTS)
    result, seconds = asyncio.run(_simulate(arguments, policy, span, kept))
    other = _other(arguments, policy, span)
    if kept is not None:
        draw(arguments.plot, _picture(policy, result, kept, span))
    if arguments.output == "json":
        beside = (
            {} if other is None else {"whatIf": {"settings": arguments.what_if, **_as_json(other[0], span, other[1])}}
        )
        write_json({**_as_json(result, span, seconds), **beside})
        return 0
    _show(result, span, seconds)
    if other is not None:
        _beside(result, other[0], " ".join(arguments.what_if))
    return 0


def _other(arguments: argparse.Namespace, policy: "Policy", span: "Span") -> "tuple[Backtest, float] | None":
    """The same time under other settings, read anew: a window or a query may be among them."""
    from precision_operator.replay.rerun import changed, parse_assignments

    if not arguments.what_if:
        return None
    edited = changed(policy, parse_assignments(arguments.what_if))
    return asyncio.run(_simulate(arguments, edited, span))


async def _simulate(
    arguments: argparse.Namespace, policy: "Policy", span: "Span", kept: "Thinned | None" = None
) -> "tuple[Backtest, float]":
    from rich.progress import Progress

    from precision_operator.replay.backtest import Simulation
    from precision_operator.replay.history import queries_for, readings

    simulation = Simulation(policy, guard=arguments.begin == "guard")
    deciding_seconds = 0.0
    try:
        queries = queries_for(policy, catalogue(arguments.queries))
    except KeyError as error:
        raise ConfigurationError(
            f"the policy names query {error}; give the admin's catalogue with --queries"
        ) from error
    with (
        prometheus(arguments, name="backtest", seconds=arguments.timeout) as source,
        Progress(console=console(), transient=True, disable=arguments.output == "json") as progress,
    ):
        task = progress.add_task("deciding", total=span.decisions)
        async for reading in readings(source, queries, span):
            began = time.perf_counter()
            simulation.take(reading)
            deciding_seconds += time.perf_counter() - began
            if kept is not None:
                kept.take(reading)
            progress.advance(task)
    return simulation.result(), deciding_seconds


def _policy(arguments: argparse.Namespace) -> "Policy":
    from precision_operator.api.policy import parse_policy

    try:
        documents = [d for d in yaml.safe_load_all(arguments.policy.read_text(encoding="utf-8")) if d]
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{arguments.policy}: expected YAML of a PrecisionPolicy: {error}") from error
    found = [mapping(d) for d in documents if mapping(d).get("kind") == "PrecisionPolicy"]
    if len(found) != 1:
        raise ConfigurationError(
            f"{arguments.policy}: expected one PrecisionPolicy, found {len(found)}; split the file"
        )
    metadata = mapping(found[0].get("metadata"))
    namespace = arguments.namespace or metadata.get("namespace") or "default"
    return parse_policy({**found[0], "metadata": {"uid": "backtest", **metadata, "namespace": namespace}})


def _span(arguments: argparse.Namespace, policy: "Policy") -> "Span":
    from precision_operator.replay.history import Span

    end = _moment(arguments.until, "--until") if arguments.until else time.time()
    back = _duration(arguments.since)
    start = end - back if back is not None else _moment(arguments.since, "--since")
    step = _duration(arguments.step) if arguments.step else policy.spec.evaluation.interval_seconds
    if step is None or (step < 1 and arguments.step):
        raise ConfigurationError(f"--step: expected a duration of at least 1s, found {arguments.step!r}")
    if start >= end:
        raise ConfigurationError(f"--since: expected a time before {format_time(end)}, found {format_time(start)}")
    return Span(int(start), int(end), max(1, round(step)))


def _duration(text: str) -> float | None:
    days = re.fullmatch(r"(\d+)d", text)
    if days:
        return int(days[1]) * 86400.0
    seconds = duration_seconds(text, -1.0)
    return seconds if seconds >= 0 else None


def _moment(text: str, flag: str) -> float:
    found = parse_time(text)
    if found is None:
        raise ConfigurationError(f"{flag}: expected a duration like 30d or an RFC 3339 time, found {text!r}")
    return found


def _rate(result: "Backtest", seconds: float) -> int:
    return round(result.decisions / seconds) if seconds > 0 else 0


def _as_json(result: "Backtest", span: "Span", seconds: float) -> dict[str, object]:
    return {
        "start": format_time(span.start),
        "end": format_time(span.end),
        "stepSeconds": span.step_seconds,
        "decisions": result.decisions,
        "decisionsPerSecond": _rate(result, seconds),
        "workloads": list(result.workloads),
        "rollbacks": [
            {
                "detectedAt": format_time(i.detected_at),
                "decidedAt": format_time(i.decided_at),
                "severity": i.severity,
                "scope": i.scope,
                "reason": i.reason,
                "message": i.message,
            }
            for i in result.incidents
        ],
        "changes": [
            {"at": format_time(c.at), "from": c.before, "to": c.after, "reason": c.reason} for c in result.changes
        ],
        "secondsIn": {str(phase): round(value, 1) for phase, value in result.seconds_in.items()},
        "unknownSeconds": round(result.unknown_seconds, 1),
    }


def _show(result: "Backtest", span: "Span", seconds: float) -> None:
    out = console()
    days = (span.end - span.start) / 86400
    out.print(
        f"{result.decisions:,} decisions over {days:.1f} days, one each {span.step_seconds} s, "
        f"{_rate(result, seconds):,} a second; {len(result.workloads)} workloads"
    )
    if not result.workloads:
        out.print(
            "no pod of the namespace has a genesis_precision_info in that time: nothing could be judged", style="yellow"
        )
        return
    rows = table("AT", "FROM", "TO", "REASON", "MESSAGE")
    for change in result.changes:
        rows.add_row(
            *map(said, (format_time(change.at) or "", change.before, change.after, change.reason, change.message))
        )
    out.print(rows)
    counts = Counter(f"{i.severity} {i.scope} {i.reason}" for i in result.incidents)
    for what, count in counts.most_common():
        out.print(said(f"{count} × {what}: {count / days:.2f} a day"))
    if not counts:
        out.print("no rollback", style="green")
    total = sum(result.seconds_in.values()) or 1.0
    shares = ", ".join(f"{phase} {value / total:.0%}" for phase, value in result.seconds_in.items())
    out.print(said(f"time: {shares}; without data for something: {result.unknown_seconds / total:.0%}"))


def _beside(written: "Backtest", other: "Backtest", settings: str) -> None:
    """What either would have done, by time."""
    lanes = [{format_time(c.at) or "": f"{c.after}: {c.reason}" for c in result.changes} for result in (written, other)]
    rows = table("AT", "AS WRITTEN", f"WITH {settings}")
    for at in sorted({*lanes[0], *lanes[1]}):
        rows.add_row(at, *(said(lane.get(at, "")) for lane in lanes))
    counts = [str(len(result.incidents)) for result in (written, other)]
    rows.add_row("rollbacks", *counts)
    console().print(rows)


def _picture(policy: "Policy", result: "Backtest", kept: "Thinned", span: "Span") -> "Picture":
    from precision_operator.api.signal_records import SIGNALS
    from precision_operator.incidents.evidence import title_of
    from precision_operator.replay.curves import levels_of
    from precision_operator.replay.plots import Panel, Picture

    series = kept.series()
    panels = [
        Panel(
            title_of(criterion.signal),
            *(SIGNALS[criterion.signal].unit, series[criterion.signal], levels_of(criterion)),
            lower_is_worse=criterion.lower_is_worse,
        )
        for criterion in policy.spec.criteria
        if criterion.enabled
    ]
    moments = [(f"{i.severity} {i.scope} {i.reason}", i.decided_at) for i in result.incidents]
    heading = f"Backtest of {policy.namespace}/{policy.name}, a decision each {span.step_seconds} s"
    return Picture(heading, panels, result.phases, moments)
