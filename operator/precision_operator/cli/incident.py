"""``incident``: list, show and export the reports that the operator keeps of rollbacks."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from precision_operator.api.summary import parse_summary
from precision_operator.api.wire import mapping, parse_time, text
from precision_operator.cli.flags import Commands
from precision_operator.cli.output import age, console, said, table, write_json
from precision_operator.cli.session import CommandRefused, Session
from precision_operator.errors import Forbidden, KubeError, NotFound
from precision_operator.kube.port import EVENTS, INCIDENTS, PODS, POLICIES, JsonObject

if TYPE_CHECKING:
    from precision_operator.incidents.report import Report

EVENTS_FILE = "events.json"
LOGS_FOLDER = "logs"


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    group = commands.add_parser("incident", parents=[common], help="the reports of rollbacks: list, show, export")
    verbs = group.add_subparsers(dest="incident_verb", required=True, metavar="list|show|export")
    listed = verbs.add_parser("list", parents=[common], help="all, newest first")
    listed.add_argument("policy", nargs="?", help="only those of this policy")
    listed.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    listed.set_defaults(run=_list)
    shown = verbs.add_parser("show", parents=[common], help="one report, as a page")
    shown.add_argument("name", help="its name, or the id that messages carry")
    shown.set_defaults(run=_show)
    exported = verbs.add_parser(
        "export", parents=[common], help="a folder with Markdown, JSON, decisions, Events, logs and plots"
    )
    exported.add_argument("name", help="its name, or the id that messages carry")
    exported.add_argument("folder", type=Path, help="an empty folder, or one that is made")
    exported.set_defaults(run=_export)


async def find(session: Session, name: str) -> JsonObject:
    """The incident of this name or id.

    Raises:
        CommandRefused: there is none; the message names those that are there.
    """
    try:
        return await session.api.get(INCIDENTS, session.namespace, name)
    except NotFound:
        found = await session.api.list(INCIDENTS, session.namespace)
        named = [body for body in found if mapping(body.get("report")).get("id") == name]
        if named:
            return max(named, key=_decided_at)
        newest = ", ".join(_name(body) for body in sorted(found, key=_decided_at, reverse=True)[:5])
        there = (
            f"the newest are {newest}; see all: `{session.plugin('incident', 'list')}`" if found else "there is none"
        )
        raise CommandRefused(
            f"no PrecisionIncident {name} in namespace {session.namespace}; {there}; or choose another namespace with -n"
        ) from None


async def _list(session: Session, arguments: argparse.Namespace) -> int:
    everywhere = bool(arguments.all_namespaces)
    found = await session.api.list(INCIDENTS, "" if everywhere else session.namespace)
    wanted = listed([b for b in found if arguments.policy in (None, mapping(b.get("report")).get("policy"))])
    if arguments.output == "json":
        hidden = set() if everywhere else {"namespace"}  # it is the one that was asked for
        write_json([{key: value for key, value in row.items() if key not in hidden} for row in wanted])
        return 0
    columns = (*(("namespace",) if everywhere else ()), "name", "policy", "severity", "scope", "phase", "reason")
    rows = table(*map(str.upper, columns), "AGE")
    for row in wanted:
        rows.add_row(*(said(row[column]) for column in columns), age(parse_time(row["decidedAt"])))
    of_policy = f" of policy {arguments.policy}" if arguments.policy else ""
    where = "any namespace" if everywhere else f"namespace {session.namespace}"
    console().print(rows if wanted else said(f"no PrecisionIncident{of_policy} in {where}"))
    return 0


def listed(bodies: Sequence[JsonObject]) -> list[dict[str, str]]:
    """Incidents in few words, newest first."""
    newest = sorted(bodies, key=_decided_at, reverse=True)
    return [
        {"namespace": text(mapping(body.get("metadata")).get("namespace")), "name": _name(body), **_summary(body)}
        for body in newest
    ]


async def _show(session: Session, arguments: argparse.Namespace) -> int:
    from rich.markdown import Markdown

    from precision_operator.incidents.document import from_body
    from precision_operator.incidents.markdown import page

    body = await find(session, arguments.name)
    if arguments.output == "json":
        write_json(body)
        return 0
    report = from_body(body)
    until = await _in_fallback_until(session, report)
    shown = page(report, namespace=session.namespace, name=_name(body), in_fallback_until=until)
    console().print(Markdown("".join(c if c.isprintable() or c == "\n" else "�" for c in shown)))
    return 0


async def _in_fallback_until(session: Session, report: "Report") -> float | None:
    """Now, where the policy is still where this incident has brought it; None: that is not known."""
    from precision_operator.cli.summary import ROLLED_BACK

    try:
        status = parse_summary((await session.api.get(POLICIES, session.namespace, report.policy)).get("status"))
    except KubeError:
        return None
    same = status.incident is not None and status.incident.id == report.id
    return time.time() if same and status.phase in ROLLED_BACK else None


async def _export(session: Session, arguments: argparse.Namespace) -> int:
    from precision_operator.incidents.export import export

    body, folder = await find(session, arguments.name), arguments.folder
    files, plots_missing = export(body, folder)
    events_missing = await _export_events(session, body, folder / EVENTS_FILE)
    files += [] if events_missing else [EVENTS_FILE]
    logs, logs_missing = await _export_logs(session, body, folder / LOGS_FOLDER)
    files += logs
    if arguments.output == "json":
        missing = {"plotsMissing": plots_missing, "eventsMissing": events_missing, "logsMissing": logs_missing}
        write_json({"folder": str(folder), "files": files, **missing})
        return 0
    out = console()
    out.print(said(f"{folder}: {', '.join(files)}"))
    for what, why in (("plots", plots_missing), ("Events", events_missing), ("logs of some pods", logs_missing)):
        if why:
            out.print(said(f"no {what}: {why}", "yellow"))
    return 0


async def _export_events(session: Session, body: JsonObject, path: Path) -> str:
    """Write the Events that are still there; why there are none, where this person may not read them."""
    try:
        events = await session.api.list(EVENTS, session.namespace)
    except Forbidden as error:
        return f"{error}; ask for `list` on events there"
    _write_events(body, events, path)
    return ""


async def _export_logs(session: Session, body: JsonObject, folder: Path) -> tuple[list[str], str]:
    """Write what is left of the fleet's logs; (files, why some are missing)."""
    from precision_operator.incidents.document import from_body
    from precision_operator.incidents.logs import containers, excerpt, pods_to_read, since

    report = from_body(body)
    files: list[str] = []
    missing: dict[str, str] = {}
    for name in pods_to_read(report):
        try:
            pod = await session.api.get(PODS, session.namespace, name)
            for container, restarted in containers(pod):
                for previous in (False, True)[: 1 + restarted]:
                    log = await session.api.log(
                        session.namespace, name, container, since=since(report), previous=previous
                    )
                    file = f"{name}.{container}{'.previous' if previous else ''}.log"
                    _write_log(folder / file, excerpt(log))
                    files.append(f"{folder.name}/{file}")
        except Forbidden as error:
            return files, f"{error}; ask for `get` on pods and pods/log there"
        except KubeError as error:
            missing[name] = error.reason
    return files, ", ".join(f"{name} ({reason})" for name, reason in missing.items())


def _write_log(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")


def _write_events(body: JsonObject, events: Sequence[JsonObject], path: Path) -> None:
    from precision_operator.incidents.document import from_body
    from precision_operator.incidents.events import happenings

    path.write_text(json.dumps(happenings(from_body(body), events), indent=2) + "\n", encoding="utf-8")


def _name(body: JsonObject) -> str:
    return text(mapping(body.get("metadata")).get("name"))


def _summary(body: JsonObject) -> dict[str, str]:
    report = mapping(body.get("report"))
    keys = ("id", "policy", "severity", "scope", "phase", "reason", "message")
    decided = text(mapping(report.get("stages")).get("decidedAt"))
    return {**{key: text(report.get(key)) for key in keys}, "decidedAt": decided}


def _decided_at(body: JsonObject) -> float:
    return parse_time(_summary(body)["decidedAt"]) or 0.0
