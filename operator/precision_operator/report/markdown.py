"""A report as a page for people: a post-mortem begins with it."""

from precision_operator.report.incident import Report, Result

_MARKS = {Result.PASSED: "x", Result.FAILED: " ", Result.UNKNOWN: " ", Result.PENDING: " "}


def page(report: Report, *, namespace: str, name: str, plots: tuple[str, ...] = ()) -> str:
    """Markdown; ``plots`` are file names beside the page."""
    deadline = {True: "met", False: "missed", None: "not all have acknowledged yet"}[report.met_deadline]
    lines = [
        f"# {report.severity} {report.reason}: {namespace}/{report.policy}",
        "",
        report.message,
        "",
        "| | |",
        "|---|---|",
        f"| incident | `{name}` ({report.phase}) |",
        f"| scope | {report.scope}: {_cell(', '.join(report.workloads)) or 'none named'} |",
        f"| rollback | {report.target} → {report.fallback} |",
        f"| before | {report.phase_before} since {report.since_before or 'unknown'} |",
        f"| detected | {report.stages.detected_at or 'unknown'} |",
        f"| decided | {report.stages.decided_at or 'unknown'} |",
        f"| last pod requested | {report.stages.last_patch_at or 'unknown'} |",
        f"| last trainer in {report.fallback} | {report.stages.last_ack_at or 'not yet'} |",
        f"| deadline | {report.stages.deadline_at or 'unknown'} ({deadline}) |",
        "",
        "## Timeline",
        "",
        *[f"- {moment.at} **{moment.what}** {moment.message}" for moment in report.timeline],
        "",
        "## Verification",
        "",
        "| window | check | result | observed |",
        "|---|---|---|---|",
        *[f"| {c.window} | {c.name} | {c.result} | {_cell(c.observed)} |" for c in report.checklist],
        "",
        "## Root-cause questions",
        "",
    ]
    for answer in report.questions:
        lines += [f"**{answer.question}** {answer.answer}", "", f"> {answer.evidence or 'no evidence'}", ""]
    lines += ["## Metrics around the breach", ""]
    for evidence in report.evidence:
        said = (
            f"no data: {evidence.error}" if evidence.error else f"{evidence.series} series, {evidence.dropped} left out"
        )
        lines += [f"- {evidence.name}: {said}; {evidence.start} to {evidence.end}", f"  `{evidence.query}`"]
    lines += ["", *[f"![{plot}]({plot})" for plot in plots], "", "## Messages", ""]
    for message in report.messages:
        lines += [
            f"### {message.kind}, {message.at}",
            "",
            "```",
            f"SUBJECT: {message.subject}",
            "",
            message.body,
            "```",
            "",
        ]
    kept = report.recordings
    lines.append(
        f"{kept.count} decisions are recorded ({kept.dropped} left out): `kubectl precision replay incident.json`."
    )
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
