"""A report as a page for people: a post-mortem begins with it."""

import re

from precision_operator.api.wire import parse_time
from precision_operator.incidents.cost import cost_text
from precision_operator.incidents.report import Report

_ACTIVE = re.compile(r"[\\`*_{}\[\]<>()#|~!&]|:(?=//)|(?<=www)\.|@")
"""What begins a link, an image, HTML, code or a table's cell, addresses without brackets included."""


def page(
    report: Report, *, namespace: str, name: str, plots: tuple[str, ...] = (), in_fallback_until: float | None = None
) -> str:
    """Markdown.

    Args:
        report: what is shown.
        namespace: of the incident.
        name: of its object.
        plots: file names beside the page.
        in_fallback_until: now, where training is known to be in the fallback still.
    """
    deadline = {True: "met", False: "missed", None: "not all have acknowledged yet"}[report.met_deadline]
    lines = [
        f"# {report.severity or report.kind} {_plain(report.reason)}: {namespace}/{report.policy}",
        "",
        _plain(report.message),
        "",
        "| | |",
        "|---|---|",
        f"| incident | `{name}` ({report.phase}) |",
        f"| scope | {report.scope}: {_plain(', '.join(report.workloads)) or 'none named'} |",
        f"| rollback | {report.target} → {report.fallback} |",
        f"| before | {report.phase_before} since {report.since_before or 'unknown'} |",
        f"| detected | {report.stages.detected_at or 'unknown'} |",
        f"| decided | {report.stages.decided_at or 'unknown'} |",
        f"| last pod requested | {report.stages.last_patch_at or 'unknown'} |",
        f"| last trainer in {report.fallback} | {report.stages.last_ack_at or 'not yet'} |",
        f"| deadline | {report.stages.deadline_at or 'unknown'} ({deadline}) |",
        f"| cost | {cost_of(report, in_fallback_until=in_fallback_until)} |",
        "",
        "## Timeline",
        "",
        *[f"- {moment.at} **{moment.what}** {_plain(moment.message)}" for moment in report.timeline],
        "",
        "## Verification",
        "",
        "| window | check | result | observed |",
        "|---|---|---|---|",
        *[f"| {c.window} | {c.name} | {c.result} | {_plain(c.observed)} |" for c in report.checklist],
        "",
        "## Root-cause questions",
        "",
    ]
    for answer in report.questions:
        lines += [
            f"**{answer.question}** {_plain(answer.answer)}",
            "",
            f"> {_plain(answer.evidence) or 'no evidence'}",
            "",
        ]
    lines += ["## Metrics around the breach", ""]
    for evidence in report.evidence:
        said = (
            f"no data: {_plain(evidence.error)}"
            if evidence.error
            else f"{evidence.series} series, {evidence.dropped} left out"
        )
        where = f"{evidence.start} to {evidence.end}"
        lines += [f"- {_plain(evidence.name)}: {said}; {where}", f"  `{_code(evidence.query)}`"]
    lines += ["", *[f"![{plot}]({plot})" for plot in plots], "", "## Messages", ""]
    for message in report.messages:
        lines += [
            f"### {message.kind}, {message.at}",
            "",
            "```",
            f"SUBJECT: {_code(message.subject)}",
            "",
            _code(message.body),
            "```",
            "",
        ]
    kept = report.recordings
    lines.append(
        f"{kept.count} decisions are recorded ({kept.dropped} left out): `kubectl precision replay incident.json`."
    )
    return "\n".join(lines) + "\n"


def cost_of(report: Report, *, in_fallback_until: float | None) -> str:
    """What it has cost, in words."""
    ended = parse_time(report.stages.left_at)
    until = ended if ended is not None else in_fallback_until
    return cost_text(report.cost, since=report.in_fallback_at, until=until, ended=ended is not None)


def _plain(text: str) -> str:
    """What others wrote, as text: no link, image, HTML or table is made by it."""
    return _ACTIVE.sub(r"\\\g<0>", " ".join(text.split("\n")))


def _code(text: str) -> str:
    """The same within code, where only the end of it has a meaning."""
    return text.replace("`", "'")
