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


def answering(target: Target, arguments: argparse.Namespace) -> str:
    """What a command's annotation says: the transition that it answers, and why."""
    why = " ".join(str(arguments.message).split())
    return f"{target.status.transition_id}: {why}" if why else str(target.status.transition_id)


async def carry_out(session: Session, target: Target, write: Write, *, arguments: argparse.Namespace, done: str) -> int:
    """Write, or only say how; ``done`` tells a person what happens now."""
    name = target.policy.name
    line = write.kubectl(session, name)
    if not arguments.dry_run:
        body = write.signed(await user_of(session))
        try:
            await session.api.merge_patch(POLICIES, session.namespace, name, body)
        except Forbidden as error:
            raise denied(session, target, error, *write.verbs) from error
    if arguments.output == "json":
        report = {"policy": name, "namespace": session.namespace, "transitionId": target.status.transition_id}
        write_json({**report, "patch": write.patch(), "kubectl": line, "dryRun": bool(arguments.dry_run)})
    elif arguments.dry_run:
        sys.stdout.write(f"{line}\n")
    else:
        sys.stdout.write(f"{target.where}: {done}\n")
    return 0


def denied(session: Session, target: Target, error: Forbidden, *verbs: str) -> CommandRefused:
    """What a person reads whom the API server refuses: what the admission policy says, and what shows his rights."""
    asked = (session.kubectl("auth", "can-i", verb, f"precisionpolicies/{target.policy.name}") for verb in verbs)
    return CommandRefused(
        f"{target.where}: {denial(error)}; to see what you may do: {', '.join(f'`{line}`' for line in asked)}"
    )


async def user_of(session: Session) -> str | None:
    """Who the API server takes us for; None where it does not say. Admission overwrites it where it stamps commands."""
    review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await session.api.create(SELF_SUBJECT_REVIEWS, "", review)
    except KubeError:
        return None
    return text(mapping(mapping(answer.get("status")).get("userInfo")).get("username")) or None


def nothing_to_do(target: Target, *, arguments: argparse.Namespace, why: str) -> int:
    """It is so already."""
    if arguments.output == "json":
        report = {"policy": target.policy.name, "namespace": target.policy.namespace}
        write_json({**report, "transitionId": target.status.transition_id, "patch": {}, "message": why})
    else:
        sys.stdout.write(f"{target.where}: {why}\n")
    return 0
