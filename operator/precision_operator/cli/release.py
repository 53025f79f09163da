"""``holds``, ``release`` and ``uninstall``: what rollbacks keep in the fallback, and how that ends."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product

from rich.table import Table
from rich.text import Text

from precision_operator.admission.objects import GROUP, PLURALS, VERSIONS
from precision_operator.api.commands import RELEASE_VERB
from precision_operator.api.state import Phase
from precision_operator.api.text import bounded
from precision_operator.api.wire import format_time, mapping, sequence, text
from precision_operator.cli.flags import Commands
from precision_operator.cli.output import age, console, said, table, write_json
from precision_operator.cli.session import CommandRefused, Session, Target
from precision_operator.cli.write import denied, dry_run_flag
from precision_operator.errors import Forbidden, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, INCIDENTS, POLICIES, Deletion, KubeApi, Resource

PART_OF = "app.kubernetes.io/part-of=genesis-precision"
"""What the chart and manifests/base put on all that they install."""

_OURS = tuple(resource.qualified for resource in (POLICIES, ASSIGNMENTS, INCIDENTS))
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")

GONE_SECONDS = 330.0
"""Until Kubernetes has removed a CRD: it may lose track of one, and looks at all of them again every 5 minutes."""
_TELL_SECONDS = 5.0
_PAUSE_SECONDS = 0.5


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    holds = commands.add_parser(
        "holds",
        parents=[common],
        help="what rollbacks keep in the fallback, and how that ends",
        description="List what rollbacks keep in the fallback: fleets, single workloads, what deleted policies left behind. "
        "New pods of these start in the fallback, also while the operator is away.",
    )
    holds.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    holds.add_argument("--exit-code", action="store_true", help="exit with 1 where anything is held")
    holds.set_defaults(run=_holds)
    release = commands.add_parser(
        "release",
        parents=[common],
        help="end what a deleted policy still holds",
        description="Delete the PrecisionAssignment that a deleted policy left behind. Running pods stay as they are; "
        "new ones start as their templates have them.",
    )
    release.add_argument("policy", help="the name that the policy had")
    dry_run_flag(release)
    release.set_defaults(run=_release)
    uninstall = commands.add_parser(
        "uninstall",
        parents=[common],
        help="remove what `helm uninstall` keeps: admission, and the CRDs with all policies",
        description="Show what is held and what would go, and with --yes remove it: the admission policies, then the CRDs "
        "with every policy, assignment and incident of the cluster. Running pods stay as they are; new ones start as their "
        "templates have them.",
    )
    uninstall.add_argument("--yes", action="store_true", help="remove it; without this nothing is written")
    dry_run_flag(uninstall)
    uninstall.set_defaults(run=_uninstall)


async def _holds(session: Session, arguments: argparse.Namespace) -> int:
    everywhere = bool(arguments.all_namespaces)
    held = [target for target in await session.policies(everywhere=everywhere) if target.state.holds]
    if arguments.output == "json":
        write_json([_json(session, target) for target in held])
    elif held:
        console().print(_of_held(session, held))
    else:
        console().print(f"nothing is held in {'any namespace' if everywhere else f'namespace {session.namespace}'}")
    return 1 if held and arguments.exit_code else 0


def _of_held(session: Session, held: Sequence[Target]) -> Table:
    found = table("policy", "held", "why", "for", "ends by")
    for target in held:
        for workload, reason, since in _rows(target):
            found.add_row(said(target.where), said(workload), said(reason), age(since), Text(_end(session, target)))
    return found


def _whole(target: Target) -> bool:
    """All of the fleet is held, not workloads by themselves."""
    state = target.state
    return state.phase in (Phase.ROLLING_BACK, Phase.HELD) and not state.by_canary and not state.deletable


def _rows(target: Target) -> list[tuple[str, str, float | None]]:
    state = target.state
    if state.by_canary:
        return [(key, state.reason, state.phase_since) for key in state.canary]
    if _whole(target):
        known = "" if target.policy.deleted else f" ({target.status.total} workloads)"
        return [(f"the whole fleet{known}", state.reason, state.phase_since)]
    return [(held.key, held.reason, held.since) for held in state.held]


def _end(session: Session, target: Target) -> str:
    name, namespace = target.policy.name, target.policy.namespace
    if not target.policy.deleted:
        return session.plugin("retry", name, namespace=namespace)
    if target.state.deletable:
        return session.plugin("release", name, namespace=namespace)
    return "the operator, once its rollback is finished"


def _json(session: Session, target: Target) -> Mapping[str, object]:
    rows = [] if _whole(target) else _rows(target)
    return {
        "policy": target.policy.name,
        "namespace": target.policy.namespace,
        "policyDeleted": target.policy.deleted,
        "wholeFleet": _whole(target),
        "reason": target.state.reason,
        "since": format_time(target.state.phase_since) if target.state.phase_since is not None else None,
        "workloads": [
            {"workload": key, "reason": reason, "since": format_time(since) if since is not None else None}
            for key, reason, since in rows
        ],
        "endsBy": _end(session, target),
    }


async def _release(session: Session, arguments: argparse.Namespace) -> int:
    target = await session.policy(arguments.policy)
    name = target.policy.name
    if not target.policy.deleted:
        retry = session.plugin("retry", name)
        raise CommandRefused(
            f"{target.where} has its policy, and `{retry}` starts its fleet again; what a deleted policy left is released"
        )
    if not target.state.deletable:
        raise CommandRefused(f"{target.where}: its rollback is being finished; see `{session.plugin('explain', name)}`")
    line = session.kubectl("delete", "precisionassignment", name)
    released = [held.key for held in target.state.held]
    if not arguments.dry_run:
        metadata = mapping(target.body.get("metadata"))
        try:
            await session.api.delete(ASSIGNMENTS, session.namespace, name, Deletion(uid=text(metadata.get("uid"))))
        except Forbidden as error:
            raise denied(session, target, error, RELEASE_VERB) from error
    if arguments.output == "json":
        report = {"policy": name, "namespace": session.namespace, "released": released}
        write_json({**report, "kubectl": line, "dryRun": bool(arguments.dry_run)})
    elif arguments.dry_run:
        sys.stdout.write(f"{line}\n")
    else:
        count = f"{len(released)} workload{'' if len(released) == 1 else 's'}"
        sys.stdout.write(f"{target.where}: {count} released; new pods start as their templates have them\n")
    return 0


async def _uninstall(session: Session, arguments: argparse.Namespace) -> int:
    targets = await session.policies(everywhere=True, installed=False)
    held = [target for target in targets if target.state.holds]
    kinds = ",".join(f"{plural}.{GROUP}" for plural in PLURALS.values())
    lines = (session.everywhere("delete", kinds, "-l", PART_OF), session.everywhere("delete", "crd", *_OURS))
    confirmed = bool(arguments.yes) and not arguments.dry_run
    running = await session.api.list(DEPLOYMENTS, "", label_selector=PART_OF) if confirmed else ()
    if running:
        name, namespace = (text(mapping(running[0].get("metadata")).get(field)) for field in ("name", "namespace"))
        raise CommandRefused(
            f"the operator is still installed, as Deployment {namespace}/{name}; `helm uninstall` its release first"
        )
    incidents = await _incidents(session.api)
    what = f"admission, the CRDs, policies ({len(targets)}), incidents{'' if incidents is None else f' ({incidents})'}"
    if arguments.output != "json":
        if arguments.dry_run:
            ends = f"; it ends what is held: `{session.plugin('holds', everywhere=True)}`" if held else ""
            sys.stderr.write(f"note: this removes {what}{ends}\n")
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        else:
            console().print(_of_held(session, held) if held else "nothing is held in any namespace")
            console().print(f"removing: {what}" if confirmed else f"would be removed: {what}; to do it, add --yes")
    if confirmed:
        await _remove(session.api)
        await _wait_until_gone(session)
    if arguments.output == "json":
        report = {"held": [_json(session, target) for target in held], "policies": len(targets), "incidents": incidents}
        write_json({**report, "kubectl": lines, "confirmed": confirmed, "dryRun": bool(arguments.dry_run)})
    elif confirmed:
        console().print("removed")
    return 0


async def _incidents(api: KubeApi) -> int | None:
    """How many there are; None where they may not be listed."""
    try:
        return len(await api.list_metadata(INCIDENTS, ""))
    except NotFound:
        return 0
    except Forbidden:
        return None


async def _remove(api: KubeApi) -> None:
    """Admission first: what it enforces has no meaning without the assignments. What is gone already is passed over."""
    for plural, version in product(PLURALS.values(), VERSIONS):
        resource = Resource(GROUP, version, plural)
        with suppress(NotFound):  # a version that is not served
            for body in await api.list(resource, "", label_selector=PART_OF):
                with suppress(NotFound):  # the other version has shown it already
                    await api.delete(resource, "", text(mapping(body.get("metadata")).get("name")))
    for name in _OURS:
        with suppress(NotFound):
            await api.delete(CRDS, "", name)


async def _wait_until_gone(session: Session) -> None:
    """Wait for the CRDs: a release that is installed while they go starts with them, and is left without.

    Raises:
        CommandRefused: one is still there; with what Kubernetes says of it.
    """
    since, told = time.monotonic(), False
    for name in _OURS:
        while (why := await _removal(session, name)) is not None:
            waited = time.monotonic() - since
            if waited >= GONE_SECONDS:
                raise _unfinished(session, name, f"found it after {waited:.0f} s ({why})")
            if waited >= _TELL_SECONDS and not told:
                told = True
                sys.stderr.write(f"waiting until Kubernetes has removed {name}; this may take 5 minutes\n")
            await asyncio.sleep(_PAUSE_SECONDS)


async def _removal(session: Session, name: str) -> str | None:
    """What is heard of the removal of a CRD; None: it is gone."""
    try:
        found = await session.api.get(CRDS, "", name)
    except NotFound:
        return None
    except (TooManyRequests, Unavailable) as error:
        return bounded(str(error))
    except Forbidden as error:
        raise _unfinished(session, name, f"may not look ({error})") from error
    if not text(mapping(found.get("metadata")).get("deletionTimestamp")):
        raise _unfinished(session, name, "found it made anew; what applies it, GitOps?")
    conditions = map(mapping, sequence(mapping(found.get("status")).get("conditions")))
    told = [text(condition.get("message")) for condition in conditions if condition.get("type") == "Terminating"]
    return bounded(told[0]) if told else "Kubernetes says nothing"


def _unfinished(session: Session, name: str, found: str) -> CommandRefused:
    look = session.everywhere("get", "crd", name)
    return CommandRefused(
        f"{name} was deleted: expected Kubernetes to remove it, {found}; install nothing before `{look}` finds none"
    )
