"""Where histories are played: a world whose pods can differ, a person who gives commands, and a table of what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lab.model.policies import FAST, policy
from lab.model.timeline import Timeline
from lab.model.world import World
from precision_operator.api.policy import Policy
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.contract import STAMP
from precision_operator.core.model import Observation, PodView

MINUTE = 60.0
MILD, SLOW = {Signal.OVERFLOW: 0.25}, {Signal.SPEED: 0.7}
_NODES = 3


def _policy(spec: dict[str, object]) -> Policy:
    return policy(**{**FAST, **spec})


class Stage(World):
    """A world whose nodes have names, and in which one pod of several can be the odd one."""

    def __init__(self, **spec: object) -> None:
        super().__init__(_policy(spec))
        self.seen_too: dict[str, object] = {}
        """Fields of the observation that are not made from this world."""

    def observe(self) -> Observation:
        """See World."""
        return replace(super().observe(), **self.seen_too)  # type: ignore[arg-type]

    def pods_are(self, name: str, change: Callable[[int, PodView], PodView]) -> None:
        """Change a workload's pods, by number."""
        found = self.workloads[name]
        pods = tuple(change(number, pod) for number, pod in enumerate(found.pods))
        self.workloads[name] = replace(found, pods=pods)

    def workload_is(self, name: str, **changes: object) -> None:
        """Change a workload from outside."""
        self.workloads[name] = replace(self.workloads[name], **changes)  # type: ignore[arg-type]

    def pass_by(self, name: str) -> None:
        """Its pods are replaced by way of an API server that knows of no assignment yet."""
        self.bypassed = True
        self.replace_pods(name)
        self.bypassed = False

    def all_are(self, values: dict[Signal, float]) -> None:
        """What every workload's metrics are while it trains in reduced precision."""
        self.bad = dict.fromkeys(self.workloads, values)

    def commands(self, command: str, message: str = "", by: str = "") -> None:
        """A person's command, in answer to the transition that stands now."""
        given = f"{self.state.transition_id}: {message}" if message else str(self.state.transition_id)
        stamp = {f"{command}{STAMP}": by} if by else {}
        self.policy = replace(self.policy, annotations={**self.policy.annotations, command: given, **stamp})

    def respec(self, **spec: object) -> None:
        """An edit of the policy."""
        edited = _policy(spec)
        self.policy = replace(
            self.policy, spec=edited.spec, settings=edited.settings, generation=self.policy.generation + 1
        )

    def made_again(self) -> None:
        """The policy is deleted, and made again with the same spec; the operator sees the new one only."""
        policy = _policy({})
        self.recreate_policy(replace(policy, uid=f"{self.policy.uid}-again"))


Line = Timeline[Stage]
History = Callable[[], Line]


def approval_after(weight: int) -> dict[str, object]:
    """Two steps, of which the second waits for a person."""
    return {"steps": [{"setWeight": weight}, {"pause": {}}, {"setWeight": 100}]}


def in_phase(phase: Phase) -> Callable[[Stage], bool]:
    """Whether the policy is in this phase."""
    return lambda world: world.state.phase is phase


def fleet(hot: int = 5, *, literal: bool = True, **spec: object) -> Line:
    """Some hot workloads of two pods each, and one that is moved by restart, none of them moved yet."""
    world = Stage(**spec)
    for index in range(hot):
        world.add(f"hot-{index}", pods=2)
    if literal:
        world.add("literal", hot=False)
    for number, name in enumerate(world.workloads):
        node = f"node-{number % _NODES}"
        world.runs_on(name, node, pool=f"pool={node}")
    return Line(world)


def guarded(hot: int = 5, *, literal: bool = True, **spec: object) -> Line:
    """The same, promoted and at rest; the table begins there."""
    line = fleet(hot, literal=literal, **spec)
    line.until(in_phase(Phase.HEALTHY))
    line.passes(6)
    return Line(line.world)
