"""``explain``: why the policy stands where it does, what it waits for, and what a person can do."""

import argparse
import time
from collections.abc import Iterable
from dataclasses import dataclass

from rich.text import Text

from precision_operator.api.commands import acknowledged, answers
from precision_operator.api.incident import predicted_late_seconds
from precision_operator.api.state import Phase
from precision_operator.cli.attention import bad_news
from precision_operator.cli.flags import Commands
from precision_operator.cli.guidance import BY_CANARY, LEFT_BEHIND, PHASES
from precision_operator.cli.output import age, console, phase_text, said, write_json
from precision_operator.cli.session import Session, Target
from precision_operator.cli.summary import UNKNOWN_PERSON, concerned, summary, waiting
from precision_operator.contract import SUSPEND_BY
from precision_operator.core.rollback.drill import due
from precision_operator.reasons import Reason
from precision_operator.reasons.steps import whole


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer, in the order in which a person asks."""

    phase: str
    reasons: tuple[tuple[str, str], ...]
    """(reason, what it means, with the operator's own message): first why it stands here, then what it waits for."""
    workloads: tuple[str, ...]
    """Which workloads it is about, by kind and name, and what happens to each."""
    people: tuple[str, ...]
    """Who asked for what, where it still matters."""
    steps: tuple[str, ...]
    """What to do next; none: wait."""


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "explain",
        parents=[common],
        help="why it is in this phase, what it waits for, what to do",
        description="Say in words why the policy stands where it does, what it waits for, who asked for it, and what to do.",
    )
    verb.add_argument("policy", nargs="?", help="default: the only one of the namespace")
    verb.set_defaults(run=_explain)


async def _explain(session: Session, arguments: argparse.Namespace) -> int:
    target = await session.policy(arguments.policy)
    found = explain(session, target)
    if arguments.output == "json":
        reasons = [{"reason": reason, "meaning": meaning} for reason, meaning in found.reasons]
        extra = {"meaning": found.phase, "reasons": reasons, "workloads": found.workloads, "people": found.people}
        write_json({**summary(target), **extra, "next": found.steps})
        return 0
    out = console()
    head = Text.assemble((target.where, "bold"), " is ", phase_text(target.status.phase, target.policy.spec))
    out.print(head.append(f" for {age(target.status.phase_since)}: {found.phase}."))
    for reason, meaning in found.reasons:
        out.print(Text.assemble("  ", (reason, "bold"), ": ", said(meaning)))
    for line in (*found.workloads, *found.people):
        out.print(Text("  ").append_text(said(line)))
    out.print(Text("Next:", style="bold"))
    for step in found.steps or ("nothing: it goes on by itself.",):
        out.print(Text("  - ").append_text(said(step)), soft_wrap=True)
    return 0


def explain(session: Session, target: Target) -> Explanation:
    """The explanation of a policy as it was read."""
    status = target.status
    reasons = tuple(dict(_reasons(target)).items())
    steps: dict[str, None] = {}
    for reason, _ in reasons:
        known = Reason.known(reason)
        for step in known.steps if known else ():
            steps[whole_step(step, session, target)] = None
    if status.phase is Phase.HELD and not target.policy.deleted and not any("retry" in step for step in steps):
        steps[whole_step("start again: `!retry {name}`", session, target)] = None
    why = due(target.state, time.time())
    # A fleet that has never been back is not told each time: the doctor and an alert do that.
    if why and not target.policy.deleted and (target.state.incident or target.state.last_drill):
        steps[whole_step(f"{why}, rehearse it: `!drill {{name}}`", session, target)] = None
    return Explanation(_meaning(target), reasons, concerned(target.state), tuple(_people(target)), tuple(steps))


def _meaning(target: Target) -> str:
    if target.policy.deleted and target.state.fallback is None:
        return LEFT_BEHIND
    return BY_CANARY if target.state.by_canary else PHASES[target.status.phase]


def whole_step(step: str, session: Session, target: Target) -> str:
    """The step with the policy's name, and its commands whole."""
    given = acknowledged(target.policy.annotations, transition_id=target.status.transition_id)
    missing = " ".join(item for item in target.policy.spec.reenable.prerequisites if item not in given)
    return whole(
        step,
        name=target.policy.name,
        missing=missing,
        kubectl=session.kubectl,
        plugin=session.plugin,
        selector=target.selector.query,
    )


def _reasons(target: Target) -> Iterable[tuple[str, str]]:
    """(reason, words), the strongest first; the same reason said twice stays where it was first."""
    status = target.status
    if target.policy.spec.suspend:
        yield Reason.SUSPENDED, _words(Reason.SUSPENDED, "")
    if target.policy.deleted and status.reason != Reason.POLICY_DELETED:
        yield Reason.POLICY_DELETED, _words(Reason.POLICY_DELETED, "")
    if status.observed_generation != target.policy.generation:
        yield (
            Reason.NOT_OBSERVED,
            "the operator has not looked at the newest spec yet: is it running, and does it watch this namespace?",
        )
    if status.reason:
        yield status.reason, _words(status.reason, status.message)
    found = waiting(target)
    # In every phase: a workload that is rolled back by itself is waited for while the rest is watched.
    if found is not None:
        yield found.reason, _words(found.reason, found.message + _soaking(target, found.reason))
    late = predicted_late_seconds(status.incident) if status.incident is not None else 0.0
    if late:
        yield Reason.DEADLINE_UNREACHABLE, _words(Reason.DEADLINE_UNREACHABLE, f"by {late:.0f} s, when it was decided")
    for condition in status.conditions:
        odd = condition.type == "Accepted" and condition.reason != Reason.ACCEPTED
        unsure = condition.type == "AdmissionEnforced" and condition.status != "True" and target.state.enforce
        if odd or unsure or bad_news(condition):
            yield condition.reason, _words(condition.reason, condition.message)


def _words(reason: str, message: str) -> str:
    known = Reason.known(reason)
    meaning = known.meaning if known else ""
    return f"{meaning} ({message})" if meaning and message else meaning or message or "no more is known"


def _soaking(target: Target, reason: str) -> str:
    """How much longer the evidence must stay good, where that is what is waited for."""
    status, state, spec = target.status, target.state, target.policy.spec
    if reason != Reason.SOAKING or state.evidence_since is None or status.step_index >= len(spec.stages):
        return ""
    soak = max(
        spec.stages[status.step_index].soak_seconds,
        (spec.evaluation.min_samples - 1) * spec.evaluation.interval_seconds,
    )
    left = max(0.0, state.evidence_since + soak - time.time())
    return f"; about {left:.0f} s more"


def _people(target: Target) -> Iterable[str]:
    annotations = target.policy.annotations
    if target.policy.spec.suspend:
        yield f"paused by {annotations.get(SUSPEND_BY, UNKNOWN_PERSON)}"
    for given in answers(annotations):
        # The transition that follows an answer is the one that it brought about.
        if given.transition_id is not None and target.status.transition_id - given.transition_id in (0, 1):
            yield f"{given.name} by {given.by or UNKNOWN_PERSON}" + (f": {given.message}" if given.message else "")
