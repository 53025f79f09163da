"""What the messages about a policy say: each kind as it is rendered from a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.core.notifying import owed
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.calls import told_of
from precision_operator.incidents.report import stamp
from precision_operator.incidents.wording import Wording, links
from precision_operator.reasons import Reason
from tests.support.standing_calls import INCIDENT, NOW, STANDS

SAYS = {
    "DeadlineAtRisk": "PREDICTED: 4.0 min late",
    "DeadlineMissed": "ago)",
    "Unresponsive": "STATUS: not acknowledged: vit",
    "InvestigationBegun": "vit: overflow, until ",
}
"""What beside the condition's own words must stand in it."""


@pytest.mark.parametrize("kind", STANDS)
def test_a_message_says_what_is_so_since_when_and_what_to_do(kind: str) -> None:
    state, after = STANDS[kind]
    world, now = World(policy(**FAST)), NOW + after
    world.add("vit")
    decision = world.decide()
    found = tuple(replace(condition, message=f"{condition.type} in words") for condition in state.conditions)
    summary = replace(decision.summary, conditions=found, unacknowledged=("vit",))
    seen = RecordedPass(world.policy, state, world.observe(), replace(decision, state=state, summary=summary), now)
    (due,) = owed(state, (), now)
    call, message = due.call, told_of(due, seen, Wording(), now=now)
    reason = Reason.known(call.reason)
    assert (message.kind, message.subject) == (kind, f"[{kind}] ns/fleet: {call.reason}")
    said = [
        f"WHAT: {call.kind.meaning}\n",
        f"SINCE: {stamp(call.since)} (",
        f"STATUS: {call.condition}: {call.condition} in words\n" if call.condition else "STATUS: ",
        SAYS.get(kind, ""),
        "NEXT STEPS:\n1. " if reason is not None and reason.steps else "",
        f"RUN: {links(call.kind, {'namespace': 'ns', 'policy': 'fleet', 'incident': INCIDENT.id}, Wording())['command']}",
        f"RUNBOOK: docs/runbooks.md#{call.kind.runbook}",
    ]
    assert [part for part in said if part not in message.body] == []
    assert "None" not in message.body
