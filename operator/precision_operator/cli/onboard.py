"""``onboard``: the one label by which admission writes the contract into a workload's new pods."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

import yaml

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.cli.flags import Commands, meant
from precision_operator.cli.output import write_json
from precision_operator.cli.session import CommandRefused, Session
from precision_operator.contract import INJECT
from precision_operator.errors import Forbidden, NotFound
from precision_operator.kube.port import JsonObject

if TYPE_CHECKING:
    from precision_operator.workloads.kinds.kind import WorkloadKind


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "onboard",
        parents=[common],
        help="let a workload change precision while it runs",
        description="Show the label that gives a workload's pods the contract, as a patch for kubectl or kustomize, or Helm "
        "values. With --apply it is set, with your own rights: the template changes, so that its pods restart, once.",
    )
    verb.add_argument("workload", help="KIND/NAME, of what has a pod template; NAME alone is a deployment")
    verb.add_argument("--container", default="", help="the trainer's; default: the only one")
    verb.add_argument("--format", choices=("label", "kustomize", "helm"), default="label", help="default label")
    verb.add_argument("--apply", action="store_true", help="set the label; asks for --yes, for it restarts the pods")
    verb.add_argument("--yes", action="store_true", help="restart the pods")
    verb.set_defaults(run=_onboard)


async def _onboard(session: Session, arguments: argparse.Namespace) -> int:
    found, name, body = await _workload(session, arguments.workload)
    kind = found.name
    container = _container(body, arguments.container)
    patch: JsonObject = {"spec": {"template": {"metadata": {"labels": {INJECT: container}}}}}
    line = session.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(patch))
    labels = mapping(mapping(mapping(mapping(body.get("spec")).get("template")).get("metadata")).get("labels"))
    there = labels.get(INJECT) == container
    where = f"{session.namespace}/{kind}/{name}"
    restarts = found.after_change(body)
    anew = f"its template cannot change: create it anew with the label {INJECT}"
    if arguments.apply and not there:
        if found.template_fixed:
            raise CommandRefused(f"{where}: {anew}")
        if not arguments.yes:
            raise CommandRefused(f"{where}: its template changes: {restarts}; to do it, add --yes")
        await _apply(session, found, name, patch)
    if arguments.output == "json":
        report = {"workload": where, "container": container, "patch": patch, "kubectl": line}
        write_json({**report, "there": there, "applied": bool(arguments.apply) and not there})
    elif there:
        sys.stdout.write(f"{where}: has the label {INJECT}={container} already\n")
    elif arguments.apply:
        sys.stdout.write(f"{where}: {INJECT}={container} set: {restarts}\n")
    else:
        sys.stdout.write(_shown(found, name, patch, arguments.format))
        if arguments.format == "label":
            sys.stdout.write(f"# {anew}\n" if found.template_fixed else f"# {restarts}: {line}\n")
    return 0


async def _workload(session: Session, word: str) -> "tuple[WorkloadKind, str, JsonObject]":
    """(kind, name, body) of what is meant."""
    from precision_operator.core.model import RestartBy
    from precision_operator.workloads.kinds.table import KINDS

    kinds = {found.name: found for found in KINDS if found.restart_by is not RestartBy.NEVER}
    kind, _, name = word.lower().rpartition("/")
    kind = kind.partition(".")[0].removesuffix("s") or "deployment"
    if kind not in kinds:
        raise CommandRefused(
            f"expected KIND/NAME with one of {', '.join(kinds)}, found {word}{meant(kind, list(kinds))}"
        )
    resource = kinds[kind].resource
    try:
        return kinds[kind], name, await session.api.get(resource, session.namespace, name)
    except NotFound:
        names = [
            text(mapping(b.get("metadata")).get("name")) for b in await session.api.list(resource, session.namespace)
        ]
        there = ", ".join(names[:5]) or "none"
        raise CommandRefused(
            f"no {kind} {name} in namespace {session.namespace}; there are {there}{meant(name, names)}"
        ) from None


def _container(body: JsonObject, wanted: str) -> str:
    spec = mapping(mapping(mapping(body.get("spec")).get("template")).get("spec"))
    names = [text(mapping(container).get("name")) for container in sequence(spec.get("containers"))]
    if not wanted and len(names) > 1:
        raise CommandRefused(f"name the trainer's container by --container: there are {', '.join(names)}")
    if wanted and wanted not in names:
        raise CommandRefused(f"no container {wanted}; there are {', '.join(names)}{meant(wanted, names)}")
    return wanted or names[0]


async def _apply(session: Session, kind: "WorkloadKind", name: str, patch: JsonObject) -> None:
    try:
        await session.api.merge_patch(kind.resource, session.namespace, name, patch)
    except Forbidden as error:
        can = session.kubectl("auth", "can-i", "patch", f"{kind.resource.qualified}/{name}")
        raise CommandRefused(f"{error}; to see what you may do: `{can}`") from error


def _shown(kind: "WorkloadKind", name: str, patch: JsonObject, form: str) -> str:
    """The YAML that is pasted."""
    labels = patch["spec"]["template"]["metadata"]["labels"]  # type: ignore[index,call-overload]
    if form == "helm":
        return (
            f"# where the chart takes labels of pods by this value, as most do\n{yaml.safe_dump({'podLabels': labels})}"
        )
    if form == "label":
        return str(yaml.safe_dump(patch))
    target = {"kind": kind.singular, "name": name}
    whole = {"apiVersion": kind.resource.api_version, "kind": kind.singular, "metadata": {"name": name}, **patch}
    return str(yaml.safe_dump({"patches": [{"target": target, "patch": json.dumps(whole)}]}, width=1000))
