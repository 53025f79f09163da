"""Random histories: passes of the operator mixed with crashes, stale views, breaches, lost metrics, restarts and edits."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from lab.model.cluster import Room
from lab.model.invariants import NO_BREACH, edges_from
from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode, is_safer
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.actions import DeletePod, EvictPod, RequestPod
from precision_operator.core.cohorts.order import cohort_size
from precision_operator.core.decide import Decision, decide, edge_key
from tests.support.fleets import ROLLED_BACK, answer, member_names

NAMES = [f"hot-{i}" for i in range(6)] + ["literal-0", "literal-1"]
BAD = {
    Signal.OVERFLOW: 0.6,
    Signal.DIVERGENCE: float("nan"),
    Signal.FAILURES: 1.0,
    Signal.NON_FINITE: 2.0,
    Signal.SPEED: 0.1,
}
events = st.one_of(
    *[st.tuples(st.just("pass"), st.sampled_from([1.0, 15.0, 31.0]))] * 8,
    st.tuples(st.just("crash"), st.integers(0, 12)),
    st.tuples(st.just("stale"), st.integers(0, 2)),
    st.tuples(st.just("breach"), st.sampled_from(NAMES), st.sampled_from(list(BAD))),
    st.tuples(st.just("recover"), st.sampled_from(NAMES)),
    st.tuples(st.just("unobservable"), st.sampled_from(NAMES)),
    st.tuples(st.just("observable"), st.sampled_from(NAMES)),
    st.tuples(st.just("away"), st.booleans()),
    st.tuples(st.just("stranger"), st.booleans()),
    st.tuples(st.just("drain"), st.sampled_from(NAMES)),
    st.tuples(st.just("bypass"), st.sampled_from(NAMES)),
    st.tuples(st.just("room"), st.sampled_from(NAMES), st.sampled_from(list(Room))),
    st.tuples(st.just("lag"), st.booleans()),
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("recreate"), st.integers(0, 3)),
    st.tuples(st.just("lose"), st.just(0)),
    st.tuples(st.just("retry"), st.just(0)),
)
"""What may happen, as names and arguments."""

History = Sequence[tuple[object, ...]]


@dataclass
class Checked(World):
    """A world that checks every decision against the invariants as it is made."""

    breached: set[str] = field(default_factory=set)
    """Workloads that were ever in breach."""

    def decide(self) -> Decision:
        """One pass, without acting."""
        before = self.state
        decision = super().decide()
        self.check_edge(decision)
        self.check_promotion(decision)
        self.check_assigned(decision)
        self.check_cause(decision)
        self.check_healthy(decision)
        assert decision.state == before or decision.state.writer == "test"
        return decision

    def check_edge(self, decision: Decision) -> None:
        """I3: at most one edge a pass, counted."""
        before, after = self.state, decision.state
        if after.phase is not before.phase:
            assert after.phase in edges_from(before, self.policy), (before.phase, after.phase)
        edge = edge_key(after) != edge_key(before)
        assert after.transition_id == before.transition_id + edge
        assert abs(after.step_index - before.step_index) <= 1 or after.step_index == 0
        assert after.generation >= before.generation

    def check_promotion(self, decision: Decision) -> None:
        """I2: nothing is promoted while a reading of a member is Unknown, or admission is not certain."""
        before, after = self.state, decision.state
        promoted = after.step_index > before.step_index or (
            before.phase in (Phase.PROGRESSING, Phase.PAUSED) and after.phase in (Phase.HEALTHY, Phase.DEGRADED)
        )
        if promoted:
            assert self.echoed
            assert not self.metrics_away
            assert not member_names(self) & self.unobservable
            assert not member_names(self) & set(self.bad)

    def check_assigned(self, decision: Decision) -> None:
        """I1: no write asks for less than is assigned, and after a rollback nothing but the fallback is assigned."""
        after = decision.state
        if after.phase in ROLLED_BACK and not after.by_canary and after.fallback is not None:
            assert (after.enforce, after.modes) == (True, {})
        for action in decision.actions:
            if isinstance(action, RequestPod | DeletePod | EvictPod):
                mode = after.assigned(action.workload.key)
                assert mode is not None
                assert action.generation <= after.generation
                if isinstance(action, RequestPod) and not action.checkpoint:
                    assert not is_safer(mode, action.mode)
                    assert action.pod.request is None or action.pod.request.generation < action.generation

    def check_cause(self, decision: Decision) -> None:
        """I2: a rollback for a breach is for one of ours: what pods of strangers report counts for nothing."""
        before, incident = self.state.incident, decision.state.incident
        if incident is not None and incident != before and incident.reason not in NO_BREACH:
            assert set(incident.workloads) <= self.breached, incident.message

    def check_healthy(self, decision: Decision) -> None:
        """Nothing of a healthy fleet is held, or poisoned: a policy that rests need not ask."""
        after = decision.state
        assert after.phase is not Phase.HEALTHY or not (after.held or after.poisoned)

    def check_radius(self) -> None:
        """I5: during a step, no more of the fleet is assigned the target than its weight."""
        if self.state.phase is Phase.PROGRESSING:
            stage = self.policy.spec.stages[self.state.step_index]
            assert len(self.state.modes) <= cohort_size(stage.weight, len(self.workloads))


def new_world() -> Checked:
    """Six hot workloads, one of them of two pods, and two that are moved by restart."""
    world = Checked(policy(**FAST))
    for name in NAMES:
        world.add(name, hot=name.startswith("hot"), pods=2 if name == "hot-0" else 1)
    return world


def play(world: Checked, history: History) -> None:
    """Let these things happen."""
    views = [(world.state, world.observe(), world.now)]
    for event, *args in history:
        match event, args:
            case "pass", [float(seconds)]:
                world.step(seconds)
            case "crash", [int(count)]:
                _crash(world, count)
            case "stale", [int(age)]:
                state, observation, now = views[max(0, len(views) - 2 - age)]
                if state == world.state:  # a newer state makes the compare-and-swap fail: nothing is acted on
                    decision = decide(world.policy, state, observation, now)
                    world.commit(decision)
                    for action in decision.actions:
                        world.act(action)
                    world.train()
            case _:
                _happens(world, str(event), args)
        views.append((world.state, world.observe(), world.now))


def _crash(world: Checked, count: int) -> None:
    """The operator dies after so many writes."""
    decision = world.decide()
    world.commit(decision)
    for action in decision.actions[:count]:
        world.act(action)
    world.train()
    world.turn()
    world.now += 5.0


def _happens(world: Checked, event: str, args: list[object]) -> None:
    name = str(args[0])
    if not (_on_metrics(world, event, args) or _on_pods(world, event, args) or _on_objects(world, event, name)):
        raise AssertionError(event)


def _on_metrics(world: Checked, event: str, args: list[object]) -> bool:
    match event, args:
        case "breach", [name, Signal() as signal]:
            world.bad[str(name)] = {signal: BAD[signal]}
            world.breached.add(str(name))
        case "recover", [name]:
            world.bad.pop(str(name), None)
        case "unobservable", [name]:
            world.unobservable.add(str(name))
        case "observable", [name]:
            world.unobservable.discard(str(name))
        case "away", [bool(away)]:
            world.metrics_away = away
        case "stranger", [bool(there)]:
            world.meet_stranger() if there else world.strangers.clear()
        case _:
            return False
    return True


def _on_pods(world: Checked, event: str, args: list[object]) -> bool:
    match event, args:
        case "drain" | "bypass", [str(name)]:
            if name in world.workloads:
                world.bypassed = event == "bypass"
                world.replace_pods(name)
                world.bypassed = False
        case "room", [str(name), Room() as room]:
            world.room[name] = room
        case "lag", [bool(lagging)]:
            world.lagging = True
            if not lagging:
                world.catch_up()
        case _:
            return False
    return True


def _on_objects(world: Checked, event: str, name: str) -> bool:
    match event:
        case "add":
            if f"new-{name}" not in world.workloads:
                world.add(f"new-{name}")
        case "recreate":
            world.recreate_policy(replace(world.policy, uid=f"another-{name}", annotations={}))
        case "lose":
            world.lose_assignment()
        case "retry":
            answer(world, "retry")
        case _:
            return False
    return True


def heal(world: World) -> None:
    """Every fault stops."""
    world.bad, world.unobservable, world.metrics_away, world.room = {}, set(), False, {}
    world.strangers.clear()
    world.catch_up()


def converged(world: World) -> None:
    """At rest, in the modes that are assigned, which are those of the phase, and nothing more is written."""
    assert world.state.phase in (Phase.HEALTHY, Phase.DEGRADED, Phase.HELD), world.summary.message
    stuck = {key.rpartition("/")[2] for key, restart in world.state.restarts.items() if restart.rounds > 1}
    for name in set(world.workloads) - stuck:
        assigned = world.state.assigned(world.workloads[name].key)
        assert {mode for mode, _ in world.processes(name)} <= {assigned}, name
    wanted = Mode.FP32 if world.state.phase is Phase.HELD else Mode.FP16
    moved = member_names(world) - {h.name for h in world.state.held}
    assert {world.state.assigned(world.workloads[name].key) for name in moved & set(world.workloads)} <= {wanted}
    writes = (world.writes, world.commits, world.summaries)
    world.run(10)
    assert (world.writes, world.commits, world.summaries) == writes
