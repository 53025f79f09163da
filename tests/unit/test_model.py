"""The explorer finds what is planted, folds what is the same, and leads back to what it found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest

from lab.errors import LabError
from lab.model import events
from lab.model.canonical import fingerprint
from lab.model.delivery import Violation
from lab.model.drills import Drills, answer, converge
from lab.model.events import Event, apply, writes
from lab.model.explore import Explorer, Finding
from lab.model.fleet import Fleet, policy_uids
from lab.model.invariants import Checker
from lab.model.possible import enabled
from lab.model.scenarios import scenario
from lab.model.trace import read_trace, replay, write_trace
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.policy import Policy
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import Action, DeleteAssignment, DeletePod, EvictPod, Notify, ResumeJob
from precision_operator.core.decide import Decision, decide
from precision_operator.core.model import Observation, RestartBy

pytestmark = pytest.mark.slow

SIGNALS = scenario("signals")


def after(*trace: Event, name: str = "signals") -> Fleet:
    fleet = scenario(name).start.clone()
    for event in trace:
        fleet = apply(fleet, event, Checker(), scenario(name).edits)
    return fleet


def careless(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Assigns everything the target again as soon as all of it is in the fallback."""
    decision = decide(policy, state, observation, now)
    if state.phase is Phase.HELD:
        modes = {workload.key: policy.spec.target for workload in observation.workloads}
        return replace(decision, state=replace(decision.state, modes=modes, generation=state.generation + 1))
    return decision


def explore(name: str, depth: int, faults: int) -> Explorer:
    explorer = Explorer(scenario(name))
    explorer.run(depth=depth, faults=faults, seconds=float("inf"))
    return explorer


def test_interchangeable_workloads_are_folded() -> None:
    breach = Event("breach", "a", "overflow")
    assert fingerprint(after(breach)) == fingerprint(after(replace(breach, workload="b")))
    assert fingerprint(after(breach)) != fingerprint(after(replace(breach, workload="c")))  # another kind of workload
    assert fingerprint(after(breach)) != fingerprint(after())


def test_a_steady_fleet_is_one_state_however_late_it_is() -> None:
    steady = SIGNALS.roots["healthy"]
    assert fingerprint(after(*steady)) == fingerprint(after(*steady, *[Event("pass")] * 3))


def test_a_change_is_not_folded_away() -> None:
    moving = SIGNALS.roots["moving"]
    known = {fingerprint(after(*moving))}
    for event in enabled(after(*moving), SIGNALS.kinds, SIGNALS.edits):
        if event.kind not in ("pass", "late"):
            known.add(fingerprint(after(*moving, event)))
    assert len(known) > 8


def test_a_crash_loses_every_subset_of_the_writes() -> None:
    fleet = after(*scenario("crashes").roots["rolling back"][:-1], name="crashes")
    count = len(writes(fleet.decide()))
    lost = [event.choice for event in enabled(fleet, frozenset({"crash"}), {}) if event.kind == "crash"]
    assert count == 4
    assert len(lost) == len(set(lost)) == 2**count


def test_a_copy_shares_nothing_that_can_change() -> None:
    fleet = scenario("restarts").start
    copied = fleet.clone()
    shared = [
        f.name
        for f in fields(fleet)
        if isinstance(value := getattr(fleet, f.name), dict | set) and value is getattr(copied, f.name)
    ]
    assert shared == ["written"], "what a person wrote is not changed"


@pytest.mark.parametrize("kind", ["crowd", "revise", "finalizer", "budget", "unresponsive", "drain"])
def test_what_happens_to_the_pods_that_are_restarted_is_not_folded_away(kind: str) -> None:
    healthy = after(*scenario("restarts").roots["hot"], name="restarts")
    events_of = [e for e in enabled(healthy, frozenset({kind}), {}) if e.kind == kind]
    changed = {fingerprint(apply(healthy, event, Checker(), {})) for event in events_of}
    assert len(changed - {fingerprint(healthy)}) == len(events_of) > 0


def test_a_process_group_is_asked_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
        decision = decide(policy, state, observation, now)
        return replace(decision, actions=decision.actions[1:])

    fleet, checker = after(*scenario("crashes").roots["healthy"], name="crashes"), Checker()
    monkeypatch.setattr(events, "decide", half)
    for kind in ("abort", "pass"):
        fleet = apply(fleet, Event(kind), checker, {})
    assert "a part of a process group is asked for another mode" in {v.text for v in checker.found}


def test_more_pods_than_the_steps_weight_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
        stages = tuple(replace(stage, weight=max(stage.weight, 67)) for stage in policy.spec.stages)
        return decide(replace(policy, spec=replace(policy.spec, stages=stages)), state, observation, now)

    monkeypatch.setattr(events, "decide", greedy)
    fleet, checker = scenario("pods").start, Checker()
    for _ in range(2):
        fleet = apply(fleet, Event("pass"), checker, {})
    assert "more of the fleet is assigned the target than the step's weight" in {v.text for v in checker.found}


def test_every_order_of_the_canary_is_tried() -> None:
    assert len(policy_uids(frozenset({"apps/Deployment/a", "apps/Deployment/b", "apps/Deployment/c"}))) == 6


def test_exploring_twice_finds_the_same_states() -> None:
    first, second = explore("signals", 2, 1).result, explore("signals", 2, 1).result
    assert (first.states, first.transitions, first.depth) == (second.states, second.transitions, 2)
    assert first.states > 100


def test_a_planted_fault_is_found_with_a_trace_that_leads_back_to_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(events, "decide", careless)
    findings = explore("signals", 2, 1).result.findings
    (raised,) = [finding for finding in findings if "without a retry" in finding.violation.text][:1]
    name, trace = read_trace(write_trace(raised, tmp_path))
    assert (name, trace) == (raised.scenario, raised.trace)
    lines, violations = replay(name, trace)
    assert raised.violation in violations
    assert "RollingBack(" in "".join(lines)


def silent(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Never raises the generation."""
    decision = decide(policy, state, observation, now)
    return replace(decision, state=replace(decision.state, generation=state.generation))


def eager(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Takes a pod away that is as it should be."""
    decision = decide(policy, state, observation, now)
    workload = observation.workloads[0]
    return replace(decision, actions=(DeletePod(workload, workload.pods[0], decision.state.generation),))


def forgetful(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Lets the assignment go with its policy, whatever it holds."""
    decision = decide(policy, state, observation, now)
    return replace(decision, actions=(DeleteAssignment(),)) if policy.deleted else decision


@pytest.mark.parametrize(
    ("fault", "root", "event", "invariant"),
    [
        (silent, "fresh", "pass", "I8"),
        (eager, "healthy", "pass", "I5"),
        (forgetful, "held alone", "delete-policy", "I7"),
    ],
)
def test_a_planted_fault_of_delivery_breaks_its_invariant(
    fault: Callable[..., Decision], root: str, event: str, invariant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = scenario("fleet")
    fleet = after(*played.roots[root], name="fleet")
    monkeypatch.setattr(events, "decide", fault)
    checker = Checker()
    for kind in (event, "pass"):
        fleet = apply(fleet, Event(kind), checker, played.edits)
    assert invariant in {violation.invariant for violation in checker.found}


def hasty(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Resumes what it suspended, whether or not pods are left."""
    decision, generation = decide(policy, state, observation, now), state.generation
    suspended = [job for job in observation.workloads if job.suspended and job.pods]
    resumed = [ResumeJob(job, generation, job.object_generation) for job in suspended]
    return replace(decision, actions=(*decision.actions, *resumed))


def plucking(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Takes the pods of Jobs away one by one."""
    decision, generation = decide(policy, state, observation, now), state.generation
    jobs = [job for job in observation.workloads if job.restart_by is RestartBy.SUSPENSION]
    return replace(decision, actions=tuple(EvictPod(job, job.pods[0], generation) for job in jobs))


@pytest.mark.parametrize(
    ("fault", "root", "text"),
    [
        (hasty, "suspending", "a Job is resumed that others suspended, or that has pods"),
        (plucking, "healthy", "a pod of a Job is taken away: it uses up the back-off limit"),
    ],
)
def test_a_planted_fault_in_how_jobs_are_restarted_is_noticed(
    fault: Callable[..., Decision], root: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = scenario("jobs")
    fleet, right, wrong = after(*played.roots[root], name="jobs"), Checker(), Checker()
    apply(fleet, Event("pass"), right, played.edits)
    monkeypatch.setattr(events, "decide", fault)
    apply(fleet, Event("pass"), wrong, played.edits)
    assert (right.found, text in {violation.text for violation in wrong.found}) == ([], True)


def test_the_exploration_performs_every_write_that_can_be_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    performed: set[object] = set()
    act = World.act

    def noted(world: World, action: Action) -> None:
        before = world.writes, world.assignment
        act(world, action)
        if (world.writes, world.assignment) != before:
            performed.update({type(action), ("checkpoint", getattr(action, "checkpoint", False))})

    monkeypatch.setattr(World, "act", noted)
    monkeypatch.setattr(Drills, "run", lambda *_: None)  # they cost most of the time, and do it again
    for name in ("jobs", "restarts", "adoption"):  # of what they try, as little as it takes
        part = replace(scenario(name), kinds=scenario(name).kinds & {"delete-policy"})
        Explorer(part).run(depth=2, faults=1, seconds=float("inf"))
    assert {*get_args(Action), ("checkpoint", True)} - performed == {Notify}, "an Event is no write"


def passive(policy: Policy, state: State, observation: Observation, now: float) -> Decision:
    """Forgets every window, and leaves the fleet where it stands."""
    decision = decide(policy, replace(state, mitigations=()), observation, now)
    kept = replace(decision.state, mitigations=(), modes=state.modes, generation=state.generation)
    return replace(decision, state=kept, actions=())


def test_a_member_rests_beside_its_target_only_where_a_window_says_that_bf16_helped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    helped = after(*scenario("mitigation").roots["helped"], name="mitigation")
    assert (helped.due("a"), helped.due("b")) == (Mode.BF16, Mode.FP16)
    converge(helped, rested := Checker(), set())
    assert not rested.found
    monkeypatch.setattr(events, "decide", passive)
    converge(helped, forgotten := Checker(), set())
    assert "at rest in Healthy with a member that is not assigned the target" in {v.text for v in forgotten.found}


def test_a_breach_of_a_member_that_bf16_helped_must_be_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    helped = after(*scenario("mitigation").roots["helped"], name="mitigation")
    for name in "bc":
        helped.drop(name)
    answer(helped, answered := Checker(), set())
    assert not answered.found
    monkeypatch.setattr(events, "decide", lambda p, s, o, now: replace(decide(p, s, o, now), state=s, actions=()))
    answer(helped, ignored := Checker(), set())
    assert [v.invariant for v in ignored.found] == ["L2"]


def test_a_trace_of_another_version_is_refused_with_the_next_step(tmp_path: Path) -> None:
    file = write_trace(Finding("gone", explore_violation(), (Event("pass"),)), tmp_path)
    with pytest.raises(LabError, match="explore again"):
        read_trace(file)
    file.write_text("[]")
    with pytest.raises(LabError, match="expected a trace"):
        read_trace(file)


def explore_violation() -> Violation:
    checker = Checker()
    checker.report("I1", "planted", State())
    return checker.found[0]


CAME_BACK: dict[str, tuple[str, tuple[Event, ...]]] = {
    "an index joins again after scaling": (
        "indexes",
        (
            *[Event("pass")] * 4,
            Event("scale", "a", choice="1"),
            Event("pass"),
            Event("scale", "a", choice="2"),
        ),
    ),
    "a workload without pods, scaled to 0, says nothing that a step could wait for": (
        "indexes",
        (*[Event("pass")] * 4, Event("scale", "b", choice="0"), Event("unobservable", "b"), Event("pass")),
    ),
    "one rank of two was asked for a checkpoint, and a person aborts": (
        "restarts",
        (Event("crash", choice="0"), Event("abort")),
    ),
    "a process obeys between two passes that read the same metrics, and its deadline is past": (
        "crashes",
        (
            Event("edit", choice="one by one"),
            *[Event("pass")] * 16,
            Event("unresponsive", "a"),
            Event("breach", "a", choice="nonFinite"),
            *[Event("pass")] * 3,
            Event("breach", "b", choice="nonFinite"),
            Event("pass"),
        ),
    ),
}
"""What the explorer once found, with the scenario."""


@pytest.mark.parametrize("name", CAME_BACK)
def test_what_the_explorer_once_found_stays_mended(name: str) -> None:
    at, trace = CAME_BACK[name]
    fleet = after(*trace, name=at)
    checker = Checker()
    for _ in range(3):
        fleet = apply(fleet, Event("pass"), checker, scenario(at).edits)
    assert checker.found == []
    assert replay(at, trace)[1] == []


@pytest.mark.parametrize(("least_faults", "come_to"), [(-1, (0, 0)), (0, (2, 0)), (1, (2, 1))])
def test_without_time_an_exploration_ends_once_it_has_tried_the_least(
    least_faults: int, come_to: tuple[int, int]
) -> None:
    found = Explorer(scenario("signals")).run(depth=2, faults=1, seconds=0.0, least_faults=least_faults)
    assert (found.depth, found.faults) == come_to


def test_a_restart_that_was_begun_of_one_that_is_held_alone_goes_on_without_its_policy() -> None:
    rolled_back_alone = (*[Event("pass")] * 16, Event("breach", "b", choice="speed"), *[Event("pass")] * 4)
    _, violations = replay("jobs", (*rolled_back_alone, Event("crash", choice="0"), Event("delete-policy")))
    assert violations == []
