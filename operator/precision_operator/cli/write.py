"""A person's command as one write, or as the kubectl line that does the same."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_operator.api.commands import VERBS
from precision_operator.api.wire import mapping, text
from precision_operator.cli.output import write_json
from precision_operator.cli.session import CommandRefused, Session, Target
from precision_operator.contract import STAMP, SUSPEND_BY
from precision_operator.errors import Forbidden, KubeError
from precision_operator.kube.denials import denial
from precision_operator.kube.port import POLICIES, SELF_SUBJECT_REVIEWS, JsonObject


@dataclass(frozen=True, slots=True)
class Write:
    """What changes on the policy."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    suspend: bool | None = None
    """What ``spec.suspend`` becomes; None leaves it."""

    def patch(self) -> JsonObject:
        """As a merge patch."""
        body: JsonObject = {}
        if self.annotations:
            body["metadata"] = {"annotations": dict(self.annotations)}
        if self.suspend is not None:
            body["spec"] = {"suspend": self.suspend}
        return body

    def signed(self, user: str | None) -> JsonObject:
        """The same, with who gives the command; None: not known, and then nobody's name may stay beside it."""
        body = self.patch()
        stamps: JsonObject = {f"{key}{STAMP}": user for key in self.annotations}
        if self.suspend is not None:
            stamps[SUSPEND_BY] = user
        body["metadata"] = {"annotations": {**self.annotations, **stamps}}
        return body

    @property
    def verbs(self) -> tuple[str, ...]:
        """What the writer must be allowed to do with the policy."""
        return ("patch", *sorted({VERBS[key] for key in self.annotations}))

    def kubectl(self, session: Session, name: str) -> str:
        """The line that does the same without this program."""
        if self.suspend is None:
            pairs = (f"{key}={value}" for key, value in self.annotations.items())
            return session.kubectl("annotate", "--overwrite", "precisionpolicy", name, *pairs)
        return session.kubectl("patch", "precisionpolicy", name, "--type=merge", "-p", json.dumps(self.patch()))


def dry_run_flag(verb: argparse.ArgumentParser) -> None:
    """The flag that every command has."""
    verb.add_argument("--dry-run", action="store_true", help="write nothing; print the kubectl line that does the same")


def message_flag(verb: argparse.ArgumentParser) -> None:
    """The flag of commands that can carry a reason."""
    verb.add_argument("-m", "--message", default="", help="why: kept beside the command")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person adds to a command."""

    message: str = ""
    """Why."""
    emergency: bool = False
    workload: str = ""
    """The only one that a drill concerns; empty: the fleet."""
    allow_restarts: bool = False
    dry_run: bool = False

    @property
    def why(self) -> str:
        """The reason in one line."""
        return " ".join(self.message.split())

    def answering(self, target: Target) -> str:
        """What a command's annotation says: the transition that it answers, and why."""
        transition = str(target.status.transition_id)
        return f"{transition}: {self.why}" if self.why else transition


@dataclass(frozen=True, slots=True)
class Planned:
    """A command that has something to do, as it is written."""

    write: Write
    done: str
    """What happens then, for a person."""
    note: str = ""
    """What a person still has to do, so that it happens."""


@dataclass(frozen=True, slots=True)
class Already:
    """It is so already."""

    why: str


def asked(arguments: argparse.Namespace) -> Asked:
    """What the command line adds to a command; not every verb has all flags."""
    given = vars(arguments)
    return Asked(
        str(given.get("message", "")),
        emergency=bool(given.get("emergency")),
        workload=str(given.get("workload", "")),
        allow_restarts=bool(given.get("allow_restarts")),
        dry_run=bool(given["dry_run"]),
    )


async def carry_out(session: Session, target: Target, plan: Planned | Already, arguments: argparse.Namespace) -> int:
    """Write, or only say how."""
    if isinstance(plan, Already):
        return _nothing_to_do(target, arguments=arguments, why=plan.why)
    if plan.note:
        sys.stderr.write(f"note: {plan.note}\n")
    write, name = plan.write, target.policy.name
    line = write.kubectl(session, name)
    if not arguments.dry_run:
        await send(session, target, write)
    if arguments.output == "json":
        done = None if arguments.dry_run else plan.done
        write_json(_json(target, arguments, message=done, patch=write.patch(), kubectl=line))
    elif arguments.dry_run:
        sys.stdout.write(f"{line}\n")
    else:
        sys.stdout.write(f"{target.where}: {plan.done}\n")
    return 0


async def send(session: Session, target: Target, write: Write, *, dry_run: bool = False) -> JsonObject:
    """Write with the user's own rights, or have the API server judge it and write nothing; what the policy becomes.

    Raises:
        CommandRefused: the user may not; the message says which right is missing.
    """
    name, body = target.policy.name, write.signed(await user_of(session))
    act = session.api.dry_run if dry_run else session.api.merge_patch
    try:
        return await act(POLICIES, session.namespace, name, body)
    except Forbidden as error:
        raise denied(session, target, error, *write.verbs) from error


def denied(session: Session, target: Target, error: Forbidden, *verbs: str) -> CommandRefused:
    """What a person reads whom the API server refuses: what the admission policy says, and what shows his rights."""
    asked = (session.kubectl("auth", "can-i", verb, f"precisionpolicies/{target.policy.name}") for verb in verbs)
    return CommandRefused(
        f"{target.where}: {denial(error)}; to see what you may do: {', '.join(f'`{line}`' for line in asked)}"
    )


async def self_review(session: Session) -> JsonObject:
    """What the API server says of who asks; nothing where it has no answer."""
    review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        return await session.api.create(SELF_SUBJECT_REVIEWS, "", review)
    except KubeError:
        return {}


async def user_of(session: Session) -> str | None:
    """Who the API server takes us for; None where it does not say. Admission overwrites it where it stamps commands."""
    review = await self_review(session)
    return text(mapping(mapping(review.get("status")).get("userInfo")).get("username")) or None


def _nothing_to_do(target: Target, *, arguments: argparse.Namespace, why: str) -> int:
    if arguments.output == "json":
        write_json(_json(target, arguments, message=why, patch={}, kubectl=None))
    else:
        sys.stdout.write(f"{target.where}: {why}\n")
    return 0


def _json(
    target: Target, arguments: argparse.Namespace, *, message: str | None, patch: JsonObject, kubectl: str | None
) -> dict[str, object]:
    policy = {"policy": target.policy.name, "namespace": target.policy.namespace}
    written = {"patch": patch, "kubectl": kubectl, "dryRun": bool(arguments.dry_run)}
    return {**policy, "transitionId": target.status.transition_id, **written, "message": message}
