"""``wait``: until a fleet is Healthy or Held, with an exit code for scripts."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress

from precision_operator.api.commands import Command, acknowledged, answered
from precision_operator.api.conditions import if_true
from precision_operator.api.spec import PolicyEnforcement
from precision_operator.api.state import Phase
from precision_operator.api.wire import mapping, text
from precision_operator.cli.flags import Commands, seconds_of
from precision_operator.cli.output import write_json
from precision_operator.cli.session import Session, Target
from precision_operator.core.commands import allowed
from precision_operator.errors import TooManyRequests, Unavailable
from precision_operator.kube.port import ASSIGNMENTS, POLICIES

REACHED, TIMED_OUT, NEEDS_A_PERSON = 0, 1, 3
REREAD_SECONDS = 10.0
"""Without a change of the policy: its assignment has one now and then that the status does not show."""
PAUSE_SECONDS = 0.5
"""Between two reads, however often it changes; and before an API server that is away is asked again."""
LAST_LOOK_SECONDS = 1.0
"""How long the policy is waited for once the time is over."""

_ONLY_A_PERSON_LEAVES = frozenset({Phase.PAUSED, Phase.DEGRADED, Phase.HELD})


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "wait",
        parents=[common],
        help="until the fleet is Healthy or Held",
        description="Wait by watch until the fleet is in a phase. Exits with 0 once it is, with 1 after --timeout, and with "
        "3 as soon as only a person can bring it there: for both, once it is paused or only observes; for Healthy also once "
        "it is Held, Degraded or Stalled, or awaits approval.",
    )
    verb.add_argument("policy", nargs="?", help="default: the only one of the namespace")
    verb.add_argument(
        "--for",
        dest="wanted",
        choices=(Phase.HEALTHY, Phase.HELD),
        required=True,
        type=phase_of,
        help="the phase that is waited for",
    )
    verb.add_argument(
        "--timeout", type=seconds_of, default=7200.0, help="how long from the first look on, e.g. 90s, 2h (default 2h)"
    )
    verb.set_defaults(run=_wait)


def phase_of(word: str) -> str:
    """The phase as it is written, also from ``healthy``."""
    return word.capitalize()


async def _wait(session: Session, arguments: argparse.Namespace) -> int:
    wanted = Phase(arguments.wanted)
    target, code, why = await session.policy(arguments.policy), TIMED_OUT, ""
    async for target in as_it_changes(session, target, seconds=arguments.timeout):  # noqa: B020 - the newest is shown
        phase = target.status.phase
        if not settled(target):
            continue
        if phase is wanted:
            code, why = REACHED, ""
            break
        why = blocked(target, wanted)
        if why:
            code = NEEDS_A_PERSON
            break
    why = why if code != TIMED_OUT else f"not {wanted} within {arguments.timeout:g} s"
    if arguments.output == "json":
        write_json({"policy": target.policy.name, "namespace": session.namespace, "phase": phase, "why": why})
    elif code == REACHED:
        sys.stdout.write(f"{target.where} is {phase}\n")
    else:
        explained = session.plugin("explain", target.policy.name)
        sys.stderr.write(f"{target.where} is {phase}, {why}; see `{explained}`\n")
    return code


async def as_it_changes(session: Session, target: Target, *, seconds: float) -> AsyncIterator[Target]:
    """The policy as it stands, and again whenever it may have changed, for these seconds: also while reads are put off."""
    until = asyncio.get_running_loop().time() + seconds
    while True:
        yield target
        try:
            async with asyncio.timeout_at(until):
                target = await _again(session, target)
        except TimeoutError:
            break
    # It may have changed while we paused, or unseen by the watch.
    with suppress(TimeoutError, Unavailable, TooManyRequests):
        target = await asyncio.wait_for(session.policy(target.policy.name), LAST_LOOK_SECONDS)
    yield target


async def _again(session: Session, target: Target) -> Target:
    """The policy once it may have changed; as it is known, where the API server is away or busy."""
    resource, name = ASSIGNMENTS if target.policy.deleted else POLICIES, target.policy.name
    version = text(mapping(target.body.get("metadata")).get("resourceVersion"))
    try:
        await session.api.changed(resource, session.namespace, name, since=version, seconds=REREAD_SECONDS)
        await asyncio.sleep(PAUSE_SECONDS)
        return await session.policy(name)
    except (Unavailable, TooManyRequests) as error:  # who waits for hours outlasts an upgrade of the control plane
        wished = error.retry_after_seconds if isinstance(error, TooManyRequests) else 0.0
        await asyncio.sleep(max(PAUSE_SECONDS, wished))
        return target


def settled(target: Target) -> bool:
    """The operator has seen the newest spec, and has answered what people asked for, so that the phase is the answer."""
    policy, status = target.policy, target.status
    if policy.deleted:
        return True
    asked = {
        command
        for command in Command
        if answered(policy.annotations, command, status.transition_id) and allowed(command, policy, target.state)
    }
    if Command.RETRY in asked:
        given = acknowledged(policy.annotations, transition_id=status.transition_id)
        if any(item not in given for item in policy.spec.reenable.prerequisites):
            asked.discard(Command.RETRY)  # a person has more to say first
    return status.observed_generation == policy.generation and not asked


def blocked(target: Target, wanted: Phase) -> str:
    """Why the phase cannot come without a person; empty: it still may."""
    policy, status = target.policy, target.status
    if policy.deleted:
        return "and its policy was deleted" if status.phase is not Phase.ROLLING_BACK or wanted is Phase.HEALTHY else ""
    if policy.spec.suspend:
        return "and paused: nothing is moved or judged until somebody resumes it"
    if policy.spec.enforcement is PolicyEnforcement.OBSERVE:
        return "and only observes: nothing is moved until somebody sets enforcement: Enforce"
    if wanted is Phase.HELD:
        return ""
    stalled = if_true(status.conditions, "Stalled")
    if stalled is not None:
        return f"which only a person ends ({stalled.reason}: {stalled.message})"
    return f"which only a person ends ({status.reason})" if status.phase in _ONLY_A_PERSON_LEAVES else ""
