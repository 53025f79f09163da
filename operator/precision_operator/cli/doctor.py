"""``doctor``: what of the installation and of the fleets does not work, each with the command that mends it."""

import argparse

from precision_operator.cli.findings import Diagnosis, Level, error
from precision_operator.cli.flags import Commands
from precision_operator.cli.live import add_flags, readings, targets_of
from precision_operator.cli.output import console, said, write_json
from precision_operator.cli.session import Session
from precision_operator.errors import OperatorError

_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.ERROR: "bold red"}


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "doctor",
        parents=[common],
        help="what does not work, and the command that mends it",
        description="Look at the installation (CRDs, admission and its echo, rights, Lease, endpoints, clock, alert rules, "
        "the last drill) and at each fleet (conditions, contract and metrics by workload, size). Writes nothing. Exits with "
        "1 where there is an error. With --prometheus it says which series of which workload are missing.",
    )
    add_flags(verb)
    verb.set_defaults(run=_doctor)


async def _fleets(session: Session, arguments: argparse.Namespace) -> list[Diagnosis]:
    from precision_operator.cli.examine_fleet import examine_fleet
    from precision_operator.cli.fleet import read_fleets

    targets = await targets_of(session, arguments)
    evaluations = await readings(arguments, targets)
    fleets = await read_fleets(session, targets, evaluations)
    return [f for fleet in fleets for f in examine_fleet(session, fleet, evaluations.get(fleet.target.policy.uid))]


async def _doctor(session: Session, arguments: argparse.Namespace) -> int:
    from precision_operator.cli.examine_installation import examine_installation

    found = await examine_installation(session, everywhere=bool(arguments.all_namespaces))
    if not any(finding.level is Level.ERROR and finding.check == "crds" for finding in found):
        try:
            found += await _fleets(session, arguments)
        except OperatorError as failed:
            found.append(
                error("fleets", f"cannot be looked at: {failed}", session.everywhere("auth", "can-i", "--list"))
            )
    if arguments.output == "json":
        write_json([{"check": f.check, "level": f.level, "message": f.message, "mend": f.mend} for f in found])
    else:
        out = console()
        for finding in found:
            head = said(f"{finding.level:<8}", _STYLES[finding.level]).append(f"{finding.check}: ", style="bold")
            out.print(head.append_text(said(finding.message)), soft_wrap=True)
            if finding.mend:
                out.print(said(f"        {finding.mend}"), soft_wrap=True)
    return int(any(finding.level is Level.ERROR for finding in found))
