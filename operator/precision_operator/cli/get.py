"""``get``: the tree of the fleet."""

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from precision_operator.api.workload import shown
from precision_operator.cli.flags import LISTED_OUTPUTS, Commands, connection_flags
from precision_operator.cli.live import LiveReport, add_flags, readings, targets_of
from precision_operator.cli.output import DOCUMENTS, age, console, phase_text, said, table, write_document, write_name
from precision_operator.cli.session import Session
from precision_operator.cli.summary import placed, summary

if TYPE_CHECKING:
    from precision_operator.cli.fleet import FleetView, PodLine, WorkloadLine


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "get",
        parents=[connection_flags(LISTED_OUTPUTS)],
        help="the tree of a fleet: policy, cohorts, workloads, pods",
        description="Show each policy with its cohorts, workloads and pods: the mode that each is assigned, whether its "
        "processes have acknowledged it, generations, breaches, and what keeps one from being where it should be. With "
        "--prometheus also what each process reports now: mode, generation, signals, and how old that is. With -o wide a "
        "line a workload.",
    )
    add_flags(verb)
    verb.set_defaults(run=_get)


async def _get(session: Session, arguments: argparse.Namespace) -> int:
    from precision_operator.cli.fleet import read_fleets

    targets = await targets_of(session, arguments)
    fleets = await read_fleets(session, targets, await readings(arguments, targets))
    if arguments.output in DOCUMENTS:
        write_document([_json(fleet) for fleet in fleets], arguments.output)
        return 0
    if arguments.output == "name":
        for fleet in fleets:
            write_name(fleet.target.policy.name)
        return 0
    out = console()
    if arguments.output == "wide":
        out.print(_wide(fleets))
        return 0
    for fleet in fleets:
        out.print(_tree(fleet))
    if not fleets:
        where = "any namespace" if arguments.all_namespaces else f"namespace {session.namespace}"
        out.print(f"no PrecisionPolicy in {where}")
    return 0


def _json(fleet: "FleetView") -> dict[str, object]:
    return {
        **summary(fleet.target),
        "cohorts": [
            {"name": cohort.name, "workloads": [workload.as_json() for workload in cohort.workloads]}
            for cohort in fleet.cohorts
        ],
    }


_WIDE = (
    *("POLICY", "WORKLOAD", "COHORT", "ASSIGNED", "GENERATION", "DELIVERY"),
    *("ACKNOWLEDGED", "PODS", "BREACHES", "PROBLEMS"),
)


def _wide(fleets: "Iterable[FleetView]") -> Table:
    """A line a workload, for who sorts and searches them."""
    rows = table(*_WIDE)
    for fleet in fleets:
        for cohort, line in ((c, w) for c in fleet.cohorts for w in c.workloads):
            known = (line.assigned, line.generation, line.delivery, line.acknowledged, len(line.pods))
            cells = ("-" if value is None else str(value) for value in known)
            breaches = ",".join(f"{b.severity}:{b.signal}" for b in line.breaches) or "-"
            rows.add_row(
                fleet.target.where, shown(line.key), cohort.name, *cells, breaches, said("; ".join(line.problems))
            )
    return rows


def _tree(fleet: "FleetView") -> Tree:
    policy, status = fleet.target.policy, fleet.target.status
    stands = "" if policy.deleted else f"step {status.step or 'none'}, {placed(status)} {status.moved}/{status.total}, "
    head = Text.assemble(
        (fleet.target.where, "bold"),
        "  ",
        phase_text(status.phase, policy.spec),
        f"  {policy.spec.target}, {stands}generation {status.generation}, for {age(status.phase_since)}",
    )
    tree = Tree(head)
    if policy.deleted:
        tree.add(Text("the policy was deleted: this is what its assignment holds", style="yellow"))
    if status.reason:
        tree.add(Text.assemble((status.reason, "bold"), ": ", said(status.message)))
    for cohort in fleet.cohorts:
        branch = tree.add(Text(f"{cohort.name} ({len(cohort.workloads)})", style="bold"))
        for workload in cohort.workloads:
            leaf = branch.add(_workload_text(workload))
            for pod in workload.pods:
                leaf.add(_pod_text(pod))
    return tree


def _workload_text(line: "WorkloadLine") -> Text:
    text = Text.assemble(
        shown(line.key),
        f"  assigned {line.assigned or 'nothing: as its template has it'}",
        f", reports {' and '.join(line.reported)}" if line.reported else "",
        f", generation {line.generation}" if line.generation else "",
        f", {line.delivery}" if line.delivery else "",
    )
    if line.acknowledged is not None:
        text.append(*(", acknowledged", "green") if line.acknowledged else (", not acknowledged", "yellow"))
    for breach in line.breaches:
        value = f" {breach.measured}" if breach.measured else ""
        text.append(f"  {breach.severity} {breach.signal}{value} for {age(breach.since)}", style="red")
    for problem in line.problems:
        text.append("  ! ", style="yellow").append_text(said(problem, "yellow"))
    return text


def _report_text(report: LiveReport) -> Text:
    if report.age_seconds is None:
        return Text("; reports nothing", style="yellow")
    generation = "" if report.generation is None else f" generation {report.generation}"
    text = Text(f"; reports {report.mode or 'no mode'}{generation} {report.age_seconds:.0f}s ago")
    values = ", ".join(f"{name} {value:.3g}" for name, value in sorted(report.values.items()))
    return text.append(f": {values}" if values else "", style="dim")


def _pod_text(line: "PodLine") -> Text:
    text = Text(f"{line.name}  requested {line.requested or 'unknown'}")
    text.append(f", generation {line.generation}" if line.generation is not None else ", no generation", style="dim")
    text.append(f", on {line.node}" if line.node else "", style="dim")
    if line.report is not None:
        text.append_text(_report_text(line.report))
    for problem in line.problems:
        text.append("  ! ", style="yellow").append_text(said(problem, "yellow"))
    return text
