"""The announcer over a fleet of values: told at least once, once where nothing fails, and never in the way of a rollback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.messages import Notified
from precision_operator.api.policy import PolicyKey
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.decide import Decision, decide
from precision_operator.core.notifying import remembered
from precision_operator.core.observer import RecordedPass
from precision_operator.incidents.announcer import Announcer
from precision_operator.incidents.channels import NotDelivered, Outgoing
from precision_operator.incidents.notifier import PROMPT_TRIES, Notifier
from precision_operator.incidents.wording import Wording
from precision_operator.observability.metrics import Metrics
from precision_operator.settings import NotificationChannel
from tests.support.reported import CHANNELS, WorldClock
from tests.support.rollbacks import QUICK

pytestmark = pytest.mark.slow

KEY = PolicyKey("ns", "fleet")
APPROVED = {**FAST, "strategy": {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}}


@dataclass
class Stage:
    """A fleet with an announcer; what was delivered goes into the state with the next pass, as on a cluster."""

    world: World
    channels: dict[str, NotificationChannel] = field(default_factory=lambda: dict(CHANNELS))
    refused: int = 0
    delivered: list[tuple[str, Outgoing]] = field(default_factory=list)
    asked: list[PolicyKey] = field(default_factory=list)
    leads: bool = True

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.lead()

    def lead(self) -> None:
        """As a new leader starts: with the state, and with nothing else."""
        clock = WorldClock(self.world)
        self.notifier = Notifier(self.channels, metrics=self.metrics, clock=clock, send=self.send)
        self.announcer = Announcer(
            self.notifier,
            wording=Wording(),
            metrics=self.metrics,
            clock=clock,
            leading=lambda: self.leads,
            changed=self.asked.append,
        )

    async def send(self, channel: NotificationChannel, batch: Sequence[Outgoing]) -> int:
        if self.refused > 0 or "dead" in channel.url:
            self.refused -= self.refused > 0
            raise NotDelivered("busy")
        self.delivered += [(channel.role, outgoing) for outgoing in batch]
        return len(batch)

    def decide(self, notified: tuple[Notified, ...] = ()) -> Decision:
        return decide(
            self.world.policy, self.world.state, replace(self.world.observe(), notified=notified), self.world.now
        )

    async def passes(self, count: int, seconds: float = 15.0, *, delivers: bool = True) -> None:
        for _ in range(count):
            before, observation, now = self.world.state, self.world.observe(), self.world.now
            decision = self.decide(self.announcer.notified(KEY))
            self.world.carry_out(decision)
            self.world.train()
            self.world.turn()
            self.announcer.observe(RecordedPass(self.world.policy, before, observation, decision, now))
            await self.announcer.turn()
            if delivers and await self.notifier.turn():
                await self.announcer.turn()
            self.world.now = round(self.world.now + seconds, 3)

    def kinds(self) -> list[tuple[str, str]]:
        return [(role, outgoing.message.kind) for role, outgoing in self.delivered]


async def waiting(**changes: object) -> Stage:
    """A fleet of which the first step waits for an approval, before anything was sent."""
    stage = Stage(World(policy(**{**APPROVED, **changes})))
    for name in ("hot-0", "hot-1", "hot-2", "hot-3"):
        stage.world.add(name)
    for _ in range(40):
        if stage.world.step(15.0).state.phase is Phase.PAUSED:
            return stage
    raise AssertionError(stage.world.state)


async def test_an_approval_is_asked_for_once_with_its_command_and_the_state_remembers_it() -> None:
    stage = await waiting()
    await stage.passes(40, 60.0)
    assert stage.kinds() == [("on-call", "ApprovalWanted")]
    (_, outgoing) = stage.delivered[0]
    assert outgoing.message.subject == "[ApprovalWanted] ns/fleet: AwaitingApproval"
    assert "RUN: kubectl precision promote -n ns fleet" in outgoing.message.body
    assert outgoing.facts["command"] == "kubectl precision promote -n ns fleet"
    assert [entry.topic for entry in stage.world.state.notified] == ["ApprovalWanted"]
    assert stage.asked == [KEY], "the next pass is asked for, to remember it"
    assert stage.announcer.notified(KEY) == ()


async def test_a_new_leader_sends_nothing_that_the_state_remembers() -> None:
    stage = await waiting()
    await stage.passes(3)
    stage.lead()
    await stage.passes(10, 60.0)
    assert stage.kinds() == [("on-call", "ApprovalWanted")]


async def test_a_leader_that_ended_before_the_delivery_is_followed_by_one_that_sends_it() -> None:
    stage = await waiting()
    await stage.passes(1, delivers=False)
    stage.lead()
    await stage.passes(5)
    assert stage.kinds() == [("on-call", "ApprovalWanted")]


async def test_a_leader_that_ended_before_the_write_is_followed_by_one_that_sends_it_again() -> None:
    stage = await waiting()
    await stage.passes(1)
    assert stage.kinds() == [("on-call", "ApprovalWanted")]
    stage.lead()
    await stage.passes(5)
    assert stage.kinds() == [("on-call", "ApprovalWanted")] * 2, "at least once"


async def test_a_channel_that_refuses_is_asked_again_with_ever_longer_pauses_until_it_takes_the_message() -> None:
    stage = await waiting()
    stage.refused = 3
    await stage.passes(10)
    assert stage.kinds() == [("on-call", "ApprovalWanted")]
    long = await waiting()
    long.refused = 1000
    await long.passes(180, 60.0)
    tries = 1000 - long.refused
    assert PROMPT_TRIES < tries < PROMPT_TRIES + 3 * 3600 / 300, "for as long as it stands, one try in five minutes"
    assert not long.world.state.notified, "nobody was told"
    late = f'precision_notifications_total{{channel="on-call",result="Undelivered"}} {tries - PROMPT_TRIES + 1}.0'
    assert late.encode() in long.metrics.exposition()
    long.refused = 0
    await long.passes(10, 60.0)
    assert long.kinds() == [("on-call", "ApprovalWanted")]
    assert [entry.topic for entry in long.world.state.notified] == ["ApprovalWanted"]


async def test_what_does_not_stand_any_more_is_not_sent_late() -> None:
    stage = await waiting()
    stage.refused = 1
    await stage.passes(1)
    annotations = {"precision.genesis.ai/promote": str(stage.world.state.transition_id)}
    stage.world.policy = replace(stage.world.policy, annotations=annotations)
    await stage.passes(20)
    assert stage.world.state.phase is not Phase.PAUSED
    assert stage.kinds() == []
    assert stage.notifier._tries == {}


async def with_a_dead_channel(name: str) -> Stage:
    """All is told, and a new leader has a channel of that name that never answers."""
    stage = await waiting()
    await stage.passes(2)
    stage.delivered.clear()
    stage.channels[name] = NotificationChannel("slack://dead/b/c", role="on-call")
    stage.lead()
    return stage


async def test_what_comes_and_goes_is_told_once_in_ten_minutes_though_another_channel_is_gone() -> None:
    stage = await with_a_dead_channel("dead")
    state = stage.world.state
    for minute in range(20):
        bad = tuple(
            replace(c, status="True", last_transition_time=stage.world.now) if c.type == "Stuck" else c
            for c in state.conditions
        )
        now = replace(state, conditions=bad if minute % 2 else state.conditions)
        now = replace(now, notified=remembered(now, stage.announcer.notified(KEY), stage.world.now))
        seen = RecordedPass(
            stage.world.policy, state, stage.world.observe(), replace(stage.decide(), state=now), stage.world.now
        )
        stage.announcer.observe(seen)
        await stage.announcer.turn()
        while await stage.notifier.turn():
            await stage.announcer.turn()
        stage.world.now += 60.0
        state = replace(state, notified=now.notified)
    assert stage.kinds().count(("on-call", "WorkloadBlocked")) == 2


async def test_a_leader_that_leads_again_sends_nothing_of_what_ended_meanwhile() -> None:
    stage = await waiting()
    stage.refused = 1
    await stage.passes(1)
    stage.leads = False
    await stage.announcer.turn()
    stage.world.now += 4 * 3600.0
    stage.leads = True
    await stage.announcer.turn()
    await stage.notifier.turn()
    assert stage.kinds() == []
    await stage.passes(3)
    assert stage.kinds() == [("on-call", "ApprovalWanted")], "it still stands, as the next pass shows"


async def test_a_channel_that_never_answers_keeps_no_higher_role_from_being_told() -> None:
    stage = await with_a_dead_channel("on-call")
    state = stage.world.state
    found = tuple(replace(c, status="True") if c.type == "Blocked" else c for c in state.conditions)
    state = replace(state, conditions=found)
    for _ in range(40):
        decision = replace(stage.decide(), state=state)
        seen = RecordedPass(stage.world.policy, state, stage.world.observe(), decision, stage.world.now)
        stage.announcer.observe(seen)
        await stage.announcer.turn()
        while await stage.notifier.turn():
            await stage.announcer.turn()
        stage.world.now += 60.0
    assert sorted(set(stage.kinds())) == [("executive", "Escalation"), ("ml-lead", "Escalation")]


async def test_a_held_fleet_asks_for_its_prerequisites_and_says_when_a_retry_is_possible() -> None:
    stage = await healthy()
    stage.world.bad = {"hot-1": {Signal.OVERFLOW: 0.9}, "hot-2": {Signal.OVERFLOW: 0.9}}
    await stage.passes(20)
    assert stage.world.state.phase is Phase.HELD
    assert {kind for _, kind in stage.kinds()} <= {"AcknowledgementsWanted", "RetryPossible"}
    assert len(stage.kinds()) == 1


async def test_what_a_channel_that_hangs_holds_delays_no_pass_of_a_rollback() -> None:
    """Two fleets, one of whose channels never answer: their passes decide the same."""
    with_messages, without = await waiting(), await waiting()
    without.channels.clear()
    without.lead()
    phases: list[list[Phase]] = []
    for stage in (with_messages, without):
        stage.world.bad = {"hot-1": {Signal.NON_FINITE: 3.0}, "hot-2": {Signal.NON_FINITE: 3.0}}
        seen = []
        for _ in range(20):
            await stage.passes(1, 5.0, delivers=False)
            seen.append(stage.world.state.phase)
        phases.append(seen)
    assert phases[0] == phases[1]
    assert phases[0][-1] is Phase.HELD


async def test_without_a_channel_nothing_is_kept_and_nothing_remembered() -> None:
    stage = await waiting()
    stage.channels.clear()
    stage.lead()
    await stage.passes(10)
    assert stage.world.state.notified == ()
    assert stage.announcer._tracks == {}


async def test_of_a_policy_that_is_gone_nothing_stays() -> None:
    stage = await waiting()
    stage.refused = 1000
    await stage.passes(2)
    stage.announcer.gone(KEY)
    await stage.notifier.turn()
    assert stage.announcer._tracks == {}
    assert (stage.notifier._queued, stage.notifier._taken, stage.notifier._tries) == (set(), set(), {})


async def test_what_stays_blocked_reaches_one_role_more_after_15_and_30_minutes() -> None:
    stage = await waiting()
    await stage.passes(2)
    stage.delivered.clear()
    state = stage.world.state
    found = tuple(replace(c, status="True") if c.type == "Blocked" else c for c in state.conditions)
    state = replace(state, conditions=found)
    for _ in range(40):
        state = replace(state, notified=remembered(state, stage.announcer.notified(KEY), stage.world.now))
        decision = replace(stage.decide(), state=state)
        stage.announcer.observe(
            RecordedPass(stage.world.policy, state, stage.world.observe(), decision, stage.world.now)
        )
        await stage.announcer.turn()
        while await stage.notifier.turn():
            await stage.announcer.turn()
        stage.world.now += 60.0
    assert stage.kinds() == [
        ("on-call", "WorkloadBlocked"),
        *(("ml-lead", "Escalation"), ("on-call", "Escalation")),
        *(("executive", "Escalation"), ("ml-lead", "Escalation"), ("on-call", "Escalation")),
    ]
    subjects = {outgoing.message.subject.rpartition(" after ")[2] for _, outgoing in stage.delivered[1:]}
    assert all(
        outgoing.message.body.count("RUNBOOK: docs/runbooks.md#workloadblocked") for _, outgoing in stage.delivered
    )
    assert len(subjects) == 2


async def healthy(**spec: object) -> Stage:
    stage = Stage(World(policy(**{**FAST, **spec})))
    for name in ("hot-0", "hot-1", "hot-2", "hot-3"):
        stage.world.add(name)
    for _ in range(40):
        stage.world.step(15.0)
    assert stage.world.state.phase is Phase.HEALTHY
    return stage


async def test_an_investigation_is_reported_as_it_begins_and_as_it_ends_well() -> None:
    stage = await healthy()
    stage.world.everywhere = {Signal.SPEED: 0.7}
    await stage.passes(30, 30.0)
    assert [kind for _, kind in stage.kinds()] == ["InvestigationBegun"]
    assert "until" in stage.delivered[0][1].message.body
    stage.world.everywhere = {}
    await stage.passes(60, 30.0)
    assert [kind for _, kind in stage.kinds()] == ["InvestigationBegun", "InvestigationOver"]


async def test_a_rollback_canary_that_helped_nobody_asks_a_person() -> None:
    stage = await healthy(rollback={**QUICK, "strategies": {"P2": "Canary"}, "fleetShare": 0.5})
    stage.world.everywhere = {Signal.SPEED: 0.7}
    await stage.passes(260, 60.0)
    assert stage.world.state.by_canary
    held = [outgoing for _, outgoing in stage.delivered if outgoing.message.kind == "RollbackCanaryHeld"]
    assert len(held) == 1
    assert held[0].facts["incident"]
    assert held[0].facts["command"] == "kubectl precision promote -n ns fleet"


async def test_a_step_over_its_deadline_and_metrics_that_are_away_are_reported() -> None:
    stage = Stage(World(policy(**FAST)))
    for name in ("hot-0", "hot-1", "hot-2", "hot-3"):
        stage.world.add(name)
    for _ in range(40):
        if stage.world.step(15.0).state.phase is Phase.PROGRESSING:
            break
    stage.world.metrics_away = True
    await stage.passes(40, 60.0)
    assert {"RolloutHeld", "MetricsMissing"} <= {kind for _, kind in stage.kinds()}
    assert len(stage.kinds()) == len(set(stage.kinds())), "each once"
