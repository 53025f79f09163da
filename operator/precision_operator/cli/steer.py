"""``promote``, ``pause``, ``resume``, ``rollback``, ``drill``, ``retry``: each refuses what would not be acted on."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from precision_operator.api.commands import Command, acknowledged
from precision_operator.api.drill import DrillOrder, drill_value
from precision_operator.api.state import Phase
from precision_operator.api.text import names
from precision_operator.api.workload import name_of, shown
from precision_operator.cli.flags import Commands
from precision_operator.cli.session import CommandRefused, Session, Target
from precision_operator.cli.write import Already, Asked, Planned, Write, asked, carry_out, dry_run_flag, message_flag
from precision_operator.core.commands import Refused, allowed
from precision_operator.reasons import Reason

Plan = Callable[[Session, Target, Asked], Planned | Already]


@dataclass(frozen=True, slots=True)
class Verb:
    """One command."""

    help: str
    description: str
    plan: Plan
    """What it writes. Raises CommandRefused, with what to do instead."""
    says_why: bool = True
    """It is an annotation, which can carry a reason."""


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    for name, verb in VERBS.items():
        added = commands.add_parser(name, parents=[common], help=verb.help, description=verb.description)
        added.add_argument("policy", nargs="?", help="default: the only one of the namespace")
        dry_run_flag(added)
        if verb.says_why:
            message_flag(added)
        if name == "rollback":
            added.add_argument("--emergency", action="store_true", help="everything at once, before everything else")
        if name == "drill":
            added.add_argument("--workload", default="", help="one that was moved, by name or key; default: the fleet")
            added.add_argument(
                "--allow-restarts", action="store_true", help="also what only a restart moves: loses steps"
            )
        added.set_defaults(run=_steer, plan=verb.plan)


async def _steer(session: Session, arguments: argparse.Namespace) -> int:
    target = await session.policy(arguments.policy)
    return await carry_out(session, target, arguments.plan(session, target, asked(arguments)), arguments)


def _refused(target: Target, why: str) -> Exception:
    return CommandRefused(f"{target.where} {why}")


def _only_if_allowed(session: Session, target: Target, command: Command) -> None:
    found = allowed(command, target.policy, target.state)
    if isinstance(found, Refused):
        raise _refused(target, f"{found.message}{_instead(session, target, found.reason)}")


def _instead(session: Session, target: Target, reason: Reason) -> str:
    """What to do where a command is refused for this reason."""
    name, status = target.policy.name, target.status
    match reason:
        case Reason.POLICY_DELETED if target.state.deletable:
            return f"; to end what it left behind: `{session.plugin('release', name)}`"
        case Reason.POLICY_DELETED:
            return "; its rollback is being finished"
        case Reason.SUSPENDED:
            return f": first `{session.plugin('resume', name)}`"
        case Reason.OBSERVING:
            patch = '{"spec":{"enforcement":"Enforce"}}'
            return f": first `{session.kubectl('patch', 'precisionpolicy', name, '--type=merge', '-p', patch)}`"
        case Reason.COMPARING_CANARY:
            return "; what ends that is a verdict, `promote` or `rollback`"
        case Reason.NOT_AWAITING_APPROVAL:
            waits = f"{status.phase}, {status.reason}: {status.message}"
            return f" ({waits}); see `{session.plugin('explain', name)}`"
        case _:
            return ""


def _needs_a_policy(session: Session, target: Target) -> None:
    if target.policy.deleted:
        found = Reason.POLICY_DELETED
        raise _refused(target, f"was deleted, so nobody reads its commands{_instead(session, target, found)}")


def _promote(session: Session, target: Target, given: Asked) -> Planned | Already:
    _only_if_allowed(session, target, Command.PROMOTE)
    step = target.status.step
    if target.state.by_canary:
        done = "the rest follows the canary"
    elif target.status.phase is Phase.PAUSED:
        done = f"step {step} approved"
    else:
        done = f"its comparison overruled: step {step} goes on, and is compared anew"
    return Planned(Write({Command.PROMOTE: given.answering(target)}), done)


def _pause(session: Session, target: Target, given: Asked) -> Planned | Already:
    _needs_a_policy(session, target)
    if target.policy.spec.suspend:
        return Already("is paused already")
    write = Write(suspend=True)
    if target.status.phase is Phase.ROLLING_BACK and not given.dry_run:
        line = write.kubectl(session, target.policy.name)
        raise _refused(
            target, f"is being rolled back: a pause would leave it half moved. Where that is meant: `{line}`"
        )
    return Planned(write, "paused: nothing is moved, forward or back, and nothing is watched, until `resume`")


def _resume(session: Session, target: Target, given: Asked) -> Planned | Already:
    _needs_a_policy(session, target)
    if target.policy.spec.suspend:
        return Planned(Write(suspend=False), "resumed")
    if target.status.phase is Phase.PAUSED:
        line = session.plugin("promote", target.policy.name)
        raise _refused(target, f"is not paused by a person, its rollout waits for approval: `{line}`")
    return Already("is not paused")


def _rollback(session: Session, target: Target, given: Asked) -> Planned | Already:
    _needs_a_policy(session, target)
    status, emergency = target.status, given.emergency
    command = Command.ABORT if emergency else Command.ROLLBACK
    found = allowed(command, target.policy, target.state)
    if isinstance(found, Refused):
        if found.reason is Reason.OBSERVING:
            _only_if_allowed(session, target, command)
        return Already(f"is {status.phase} already: {status.reason}")
    # A pause must not stand in the way of safety: both in one write, so that nothing is promoted in between.
    resumed = False if target.policy.spec.suspend else None
    write = Write({command: given.answering(target)}, suspend=resumed)
    how = "emergency rollback" if emergency else "gradual rollback"
    done = f"{how} of {status.total} workloads to {target.policy.spec.fallback} asked for"
    done += ", and its pause ended" if resumed is not None else ""
    return Planned(write, done)


def _drill(session: Session, target: Target, given: Asked) -> Planned | Already:
    _only_if_allowed(session, target, Command.DRILL)
    if target.status.reason == Reason.HALTED:
        raise _refused(target, "is halted with the whole cluster, so the operator would not act")
    key = _moved(target, given.workload) if given.workload else ""
    order = DrillOrder(key, given.allow_restarts, given.why)
    write = Write({Command.DRILL: f"{target.status.transition_id}: {drill_value(order)}"})
    who = shown(key) if key else f"{len(target.state.members)} workloads"
    watch = session.plugin("status", target.policy.name)
    done = f"drill of {who} asked for: to {target.policy.spec.fallback} and back by itself. To follow it: `{watch}`"
    return Planned(write, done)


def _moved(target: Target, word: str) -> str:
    """The key of the moved workload that is meant."""
    found = [key for key in target.state.members if word in (key, shown(key), name_of(key))]
    if len(found) != 1:
        known = names([shown(key) for key in target.state.members])
        what = "several workloads of that name" if found else "no such workload"
        raise _refused(target, f"has moved {what} as {word}; expected one of {known}")
    return found[0]


def waits_for_retry(target: Target) -> bool:
    """Something was rolled back, the fleet or single workloads, and stays so until a person retries."""
    return target.status.phase is Phase.HELD or bool(target.state.held) or target.state.by_canary


def _retry(session: Session, target: Target, given: Asked) -> Planned | Already:
    _only_if_allowed(session, target, Command.RETRY)
    status = target.status
    known = acknowledged(target.policy.annotations, transition_id=status.transition_id)
    missing = [str(p) for p in target.policy.spec.reenable.prerequisites if p not in known]
    note = ""
    if missing and waits_for_retry(target):
        line = session.plugin("ack", target.policy.name, *missing)
        note = f"it starts once these are acknowledged: {', '.join(missing)}. To do so: `{line}`"
    return Planned(Write({Command.RETRY: given.answering(target)}), "retry asked for", note)


VERBS: Mapping[str, Verb] = {
    "promote": Verb(
        "approve the step that waits for a person",
        "Answer a `pause: {}` step: the rollout goes on. Only the step that waits now is approved. In a rollback by canary: "
        "the rest of the fleet follows it, in batches.",
        _promote,
    ),
    "pause": Verb(
        "stop moving the fleet, forward or back",
        "Set spec.suspend: nothing is moved, judged or watched. New pods still get the mode assigned to their workload.",
        _pause,
        says_why=False,
    ),
    "resume": Verb("end a pause", "Unset spec.suspend.", _resume, says_why=False),
    "rollback": Verb(
        "take the fleet back to its fallback",
        "Ask for a rollback of the whole fleet: gradual, in batches, or with --emergency everything at once, as a P0. "
        "An emergency also hurries on a rollback that is under way. Ends a pause, which would stand in its way.",
        _rollback,
    ),
    "drill": Verb(
        "rehearse a rollback, of the fleet or of one workload",
        "Take workloads in good health to the fallback, as a rollback does, time it, and let them go back by themselves. "
        "It counts as no rollback. What only a restart moves takes part with --allow-restarts alone. A breach ends it.",
        _drill,
    ),
    "retry": Verb(
        "start again after a rollback",
        "Leave Held, or let workloads that were rolled back by themselves join again, once what spec.reenable asks for is "
        "met: acknowledgements, and the back-off after repeated rollbacks.",
        _retry,
    ),
}
