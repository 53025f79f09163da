"""``status``: where a rollout stands, once or as it goes."""

import argparse
import math
import time
from contextlib import nullcontext

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from precision_operator.api.canary import Comparison
from precision_operator.api.conditions import if_true
from precision_operator.api.drill import Drill
from precision_operator.api.incident import Incident, predicted_late_seconds
from precision_operator.api.mitigation import Mitigation
from precision_operator.api.state import Phase, State
from precision_operator.api.text import names
from precision_operator.api.verification import Checks
from precision_operator.api.workload import shown
from precision_operator.cli.attention import needing_attention
from precision_operator.cli.flags import LISTED_OUTPUTS, Commands, connection_flags
from precision_operator.cli.gain import gain_text
from precision_operator.cli.output import DOCUMENTS, age, console, phase_text, said, write_document, write_name
from precision_operator.cli.session import Session, Target
from precision_operator.cli.summary import (
    ROLLED_BACK,
    UNKNOWN_PERSON,
    placed,
    stages,
    summary,
    under_way,
    waiting,
    whose,
)
from precision_operator.reasons import Reason

EXIT_ROLLED_BACK = 3
TERMINAL = (Phase.HEALTHY, Phase.HELD)
"""Where a rollout or a rollback ends, and with it what was watched."""
VERDICTS = (Reason.CANARY_NO_DIFFERENCE, Reason.CANARY_WORSE, Reason.CANARY_INCONCLUSIVE)
"""With which a rollback ends at its canary, until a person sends the rest after it."""
BAR_COLUMNS = 30
RESTARTS_SHOWN = 5
"""Of the workloads that are restarting; `get` shows all."""


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "status",
        parents=[connection_flags(LISTED_OUTPUTS)],
        help="where the rollout stands; --watch follows it",
        description="Show phase, step, what it waits for, and the newest rollback with its deadline. Exits with 3 while the "
        "fleet, or a part of it, is or is being rolled back. With -o wide every condition. Scripts use `wait`.",
    )
    verb.add_argument("policy", nargs="?", help="default: the only one of the namespace")
    verb.add_argument(
        "-w",
        "--watch",
        action="store_true",
        help="until it is Healthy or only a person moves it; with -o json a document a change",
    )
    verb.set_defaults(run=_status)


def exit_code(target: Target) -> int:
    """3 while something is rolled back."""
    return EXIT_ROLLED_BACK if target.status.phase in ROLLED_BACK else 0


async def _status(session: Session, arguments: argparse.Namespace) -> int:
    if arguments.watch:
        return await _watch(session, arguments)
    target = await session.policy(arguments.policy)
    if arguments.output in DOCUMENTS:
        write_document(summary(target), arguments.output)
    elif arguments.output == "name":
        write_name(target.policy.name)
    else:
        console().print(render(target, wide=arguments.output == "wide"))
    return exit_code(target)


async def _watch(session: Session, arguments: argparse.Namespace) -> int:
    """Until a rollout or a rollback has ended, or goes on by a person alone."""
    from rich.live import Live

    from precision_operator.cli.wait import as_it_changes, settled

    as_document, out = arguments.output in DOCUMENTS, console()
    target = await session.policy(arguments.policy)
    live = (
        nullcontext()
        if as_document or not out.is_terminal
        else Live(console=out, get_renderable=lambda: render(target, wide=arguments.output == "wide"))
    )
    written: object = None
    with live:
        async for target in as_it_changes(session, target, seconds=math.inf):  # noqa: B020 - the newest is shown
            if as_document and (document := summary(target)) != written:
                write_document(document, arguments.output)
                written = document
            elif not (as_document or out.is_terminal) and (line := _line(target)) != written:
                out.print(Text.assemble(time.strftime("%H:%M:%S "), line), soft_wrap=True)
                written = line
            if settled(target) and (target.status.phase in TERMINAL or _left_to_people(target)):
                break
    return exit_code(target)


def _left_to_people(target: Target) -> bool:
    """Only a person goes on with it. A step or a rollback past its deadline is Stalled too, and goes on by itself."""
    from precision_operator.cli.wait import blocked

    found = if_true(target.status.conditions, "Stalled")
    stalled = found.reason if found is not None else ""
    back = target.status.phase is Phase.ROLLING_BACK and stalled not in VERDICTS
    if target.policy.deleted or back:
        return bool(blocked(target, Phase.HELD))
    return stalled != Reason.PROGRESS_DEADLINE_EXCEEDED and bool(blocked(target, Phase.HEALTHY))


def _line(target: Target) -> Text:
    status = target.status
    return Text.assemble(
        f"{target.where} ",
        phase_text(status.phase, target.policy.spec),
        f" {status.step or '-'} {placed(status)} {status.moved}/{status.total} {status.reason}: ",
        said(status.message),
    )


def render(target: Target, *, wide: bool = False) -> RenderableType:
    """The status as a small table; ``wide``: with every condition, not only those that a person should look at."""
    rows = Table.grid(padding=(0, 2))
    _add_phase(rows, target)
    _add_progress(rows, target)
    _add_breaches(rows, target.state)
    conditions = target.status.conditions
    for condition in conditions if wide else needing_attention(conditions):
        label = "alert" if condition.type == "Alerting" else condition.type
        label = f"{label} {condition.status}" if wide else label
        rows.add_row(label, Text.assemble((condition.reason, "bold yellow"), ": ", said(condition.message)))
    _add_answers(rows, target)
    return rows


def _add_phase(rows: Table, target: Target) -> None:
    policy, status = target.policy, target.status
    rows.add_row("policy", Text(target.where, style="bold"))
    rows.add_row("phase", phase_text(status.phase, policy.spec).append(f"  for {age(status.phase_since)}"))
    if policy.deleted:
        rows.add_row("", Text("the policy was deleted: this is what its assignment holds", style="yellow"))
    elif status.observed_generation != policy.generation:
        rows.add_row("", Text("the operator has not looked at the newest spec yet", style="yellow"))
    rows.add_row("reason", Text.assemble((status.reason or "none", "bold"), ": ", said(status.message)))
    found = waiting(target)
    if found is not None and found.reason != status.reason:
        rows.add_row("waits for", Text.assemble((found.reason, "bold"), ": ", said(found.message)))


def _add_progress(rows: Table, target: Target) -> None:
    status, state = target.status, target.state
    if status.step:
        rows.add_row("step", Text(f"{status.step}, for {age(state.step_since)}"))
    if not target.policy.deleted:
        rows.add_row(placed(status), Text(f"{_bar(status.moved, status.total)} {status.moved} of {status.total}"))
        rows.add_row("breached", Text(f"{status.breached}, and {status.unknown} without believable data"))
    if state.evidence_since is not None:
        rows.add_row("evidence", Text(f"good for {age(state.evidence_since)}"))
    if status.gain is not None:
        rows.add_row("gain", Text(gain_text(status.gain, now=time.time())))
    rows.add_row("new pods", _new_pods(target))


def _add_breaches(rows: Table, state: State) -> None:
    for failing in state.failing:
        text = f"{failing.severity} {failing.signal} {failing.measured} in {whose(failing)} for {age(failing.since)}"
        rows.add_row("breach", Text(text, "red"))
    if state.held:
        rows.add_row("held", said(names([shown(h.key) for h in state.held]), "red"))
    for key in sorted({*state.restarts, *state.suspensions})[:RESTARTS_SHOWN]:
        rows.add_row("restart", said(f"{shown(key)} {under_way(state, key)}"))


def _add_answers(rows: Table, target: Target) -> None:
    status, state = target.status, target.state
    for window in state.mitigations:
        rows.add_row("mitigation", _mitigation(window))
    if status.incident is not None:
        rows.add_row("rollback", _incident(status.incident))
    if status.last_drill is not None:
        rows.add_row("drill", _drill(status.last_drill))
    if state.comparison is not None and state.canary:
        rows.add_row("canary", _canary(state.comparison, [shown(key) for key in state.canary]))


def _new_pods(target: Target) -> Text:
    """What admission gives them, and whether it is certain to."""
    state = target.state
    if not state.enforce:
        return Text("start as their templates have them: nothing is enforced yet")
    known = state.fallback or "as their templates have it"
    text = Text(f"{known}, except for those of {len(state.modes)} workloads" if state.modes else str(known))
    for condition in target.status.conditions:
        if condition.type == "AdmissionEnforced" and condition.status != "True" and not target.policy.deleted:
            text.append("  not certain: ", style="yellow").append_text(said(condition.message, "yellow"))
    return text


def _bar(done: int, total: int) -> str:
    full = round(BAR_COLUMNS * done / total) if total else 0
    return "━" * full + "─" * (BAR_COLUMNS - full)


def _mitigation(window: Mitigation) -> Text:
    """Its rung, what it waits for, and until when."""
    text = Text.assemble(f"{shown(window.key)} {window.signal} ", (str(window.rung or "Investigate"), "bold"))
    if not window.open:
        return text.append(f": {window.result}")
    if window.good_since is not None:
        text.append(f": good for {age(window.good_since)}")
    elif window.rung is not None and window.acknowledged_at is None:
        text.append(": not acknowledged yet")
    else:
        text.append(": waiting for good data")
    left = window.until - time.time()
    text.append(f", {left:.0f} s left" if left >= 0 else ", past its window", style="" if left >= 0 else "yellow")
    return text.append(f"\ntried {', '.join(window.found)}" if window.found else "")


def _canary(comparison: Comparison, canary: list[str]) -> Text:
    """Who went first, and what that has shown."""
    text = Text.assemble(names(canary), " ", (str(comparison.verdict), "bold"), f" after {comparison.looks} looks")
    mean = comparison.mean
    return text if mean is None else text.append(f": the rest is worse by {mean:+.2f} (-1 to 1)")


def _drill(drill: Drill) -> Text:
    """Who asked for it, what came of it, and how long it took."""
    who = shown(drill.workload) if drill.workload else f"{drill.workloads} workloads"
    asked = said(f"{who} by {drill.by or UNKNOWN_PERSON}, {age(drill.began_at)} ago: ")
    text = Text.assemble(asked, (str(drill.result), "bold"))
    for name, at in (("requested", drill.requested_at), ("half back", drill.half_at), ("ended", drill.ended_at)):
        text.append(f"\n{name:<10} " + (f"+{at - drill.began_at:.1f} s" if at is not None else "not yet"))
    return text.append("\n").append_text(said(drill.message)) if drill.message else text


def _checks(checks: Checks) -> str:
    return f"{checks.passed} passed, {checks.failed} failed, {checks.unknown} unknown, {checks.pending} to come"


def _incident(incident: Incident) -> Text:
    text = Text.assemble(
        f"{incident.id} {incident.severity} {incident.scope} {incident.strategy} ",
        (incident.reason, "bold"),
        ": ",
        said(incident.message),
    )
    begin = incident.detected_at
    for name, at in stages(incident)[1:]:
        text.append(f"\n{name.removesuffix('At'):<10} " + (f"+{at - begin:.1f} s" if at is not None else "not yet"))
    if incident.checks is not None:
        text.append(f"\nchecklist  {_checks(incident.checks)}")
    late = predicted_late_seconds(incident)
    if late:
        text.append(f"\npredicted  {late:.0f} s past the deadline: DeadlineUnreachable", style="yellow")
    left = incident.deadline_at - (incident.last_ack_at or time.time())
    text.append(f"\ndeadline   +{incident.deadline_at - begin:.0f} s, ")
    return text.append(
        f"{left:.0f} s to spare" if left >= 0 else f"missed by {-left:.0f} s", style="" if left >= 0 else "bold red"
    )
