"""Replays a trace: before each revision of an assignment, pod or Job, what stood then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from lab.faults.trace import Entry, Note, Object, Trace
from precision_operator.api.assignment import parse_assignment
from precision_operator.api.commands import answers
from precision_operator.api.policy import Policy, parse_policy
from precision_operator.api.state import State
from precision_operator.api.wire import boolean, generation, mapping, sequence, text, texts
from precision_operator.contract import REQUEST
from precision_operator.workloads.identity import workload_key

_GROUPS = {"Deployment": "apps/Deployment", "StatefulSet": "apps/StatefulSet", "Job": "batch/Job"}

Key = tuple[str, str, str]
"""Kind, namespace, name."""


@dataclass
class World:
    """All that stands at a revision."""

    unreported: bool = False
    """Whether a process may run that was never asked what it trains in."""
    objects: dict[Key, Entry] = field(default_factory=dict)
    gone: dict[Key, Entry] = field(default_factory=dict)
    """What was deleted, as it stood last."""
    asked: set[tuple[str, str, str, int | None]] = field(default_factory=set)
    """Commands that a policy has ever carried: its namespace and name, the annotation, the transition that it answers."""
    reported: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Namespace, pod → the key of its workload, and the mode that its process reported last."""
    requested: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Uid of a pod → the highest generation that it was ever asked under, and the mode that was asked for."""

    def find(self, kind: str, namespace: str, name: str) -> Entry | None:
        """An object that stands."""
        return self.objects.get((kind, namespace, name))

    def of(self, kind: str, namespace: str) -> list[Entry]:
        """All objects of a kind in a namespace."""
        return [entry for (k, n, _), entry in self.objects.items() if (k, n) == (kind, namespace)]

    def policy(self, namespace: str, name: str) -> Policy | None:
        """A policy that stands."""
        entry = self.find("PrecisionPolicy", namespace, name)
        return parse_policy(entry.body) if entry is not None else None

    def states(self, namespace: str) -> dict[str, State]:
        """Name → what its assignment says."""
        return {entry.name: parse_assignment(entry.body) for entry in self.of("PrecisionAssignment", namespace)}

    def fleet(self, namespace: str, state: State) -> list[str]:
        """Keys of the workloads that an assignment governs, by their pod template's labels."""
        return [
            f"{group}/{entry.name}"
            for kind, group in _GROUPS.items()
            for entry in self.of(kind, namespace)
            if state.selector.matches(_template_labels(entry))
        ]

    def governing(self, namespace: str, key: str) -> list[State]:
        """The assignments that say what a workload trains in; more than one only where two policies overlap."""
        states = [state for state in self.states(namespace).values() if state.enforce]
        return [s for s in states if s.assigned(key) is not None and key in self.fleet(namespace, s)]

    def processes(self, namespace: str) -> dict[str, tuple[str, str]]:
        """Pods that stand and are not on their way out → the key of the workload, and the mode reported last.

        One that runs and has reported nothing trains in no mode that is known: empty.
        """
        pods = [entry for entry in self.of("Pod", namespace) if not terminating(entry)]
        silent = {p.name: (workload_key(p.body), "") for p in pods if _running(p) and not self.unreported}
        said = {p.name: self.reported[namespace, p.name] for p in pods if (namespace, p.name) in self.reported}
        return silent | said


@dataclass(frozen=True, slots=True)
class Step:
    """One revision, and what stood before it. `world` is the truth up to this revision, this one not included."""

    entry: Entry
    before: Entry | None
    """The object's revision before; None: it is new, or a gap hides it."""
    world: World
    hidden: bool = False
    """Whether a gap may hide the revision before."""

    @property
    def created(self) -> bool:
        """It was made by this write, and not only seen for the first time."""
        return self.before is None and mapping(self.entry.body.get("metadata")).get("generation") == 1

    @property
    def state(self) -> State | None:
        """An assignment as it stands now; None: this is none, or it went."""
        written = self.entry.kind == "PrecisionAssignment" and not self.entry.deleted
        return parse_assignment(self.entry.body) if written else None

    @property
    def states(self) -> tuple[State, State] | None:
        """An assignment before and after; None: this is not one that stood before and stands now."""
        if self.entry.kind != "PrecisionAssignment" or self.before is None or self.entry.deleted:
            return None
        return parse_assignment(self.before.body), parse_assignment(self.entry.body)

    @property
    def policy(self) -> Policy | None:
        """The policy of this assignment, as it stood."""
        return self.world.policy(self.entry.namespace, self.entry.name)


def replay(trace: Trace) -> Iterator[Step]:
    """Every revision in order. The world is the same object throughout, and moves on with each."""
    world, hidden = World(unreported=boolean(trace.header.expectations.get("unreported"), False)), set[Key]()
    for entry in trace.entries:
        if entry.kind == Note.RESTORED:
            world.objects.clear()
            world.gone.clear()
            world.requested.clear()
            hidden.clear()
        if entry.kind == Note.GAP:
            hidden |= _hidden_by(entry, world)
        if entry.kind == Note.REPORTED:
            pod = (text(entry.body.get("namespace")), text(entry.body.get("pod")))
            world.reported[pod] = (text(entry.body.get("workload")), text(entry.body.get("mode")))
        if entry.kind in frozenset(Note):
            yield Step(entry, None, world)
            continue
        key = (entry.kind, entry.namespace, entry.name)
        if entry.kind == "PrecisionPolicy":
            commands = answers(parse_policy(entry.body).annotations)
            world.asked |= {(entry.namespace, entry.name, c.annotation, c.transition_id) for c in commands}
        yield Step(entry, None if key in hidden else world.objects.get(key), world, key in hidden)
        hidden.discard(key)
        if entry.kind == "Pod":
            _take_in(entry, world)
        world.objects.pop(key, None)
        (world.gone if entry.deleted else world.objects)[key] = entry


def _take_in(pod: Entry, world: World) -> None:
    """What is known of a pod beside what stands: the next of its name has reported nothing yet."""
    asked = request_of(pod)
    now = generation(asked.get("generation"))
    if now is not None and now >= world.requested.get(pod.uid, (0, ""))[0]:
        world.requested[pod.uid] = now, text(asked.get("mode"))
    if pod.deleted:
        world.reported.pop((pod.namespace, pod.name), None)


def _hidden_by(gap: Entry, world: World) -> set[Key]:
    """Objects of which revisions may be missing; where nobody knows which, all of that kind that stand."""
    kind, changed = text(gap.body.get("kind")), texts(gap.body.get("changed"))
    if "?" in changed:
        return {key for key in world.objects if key[0] == kind}
    return {(kind, namespace, name) for namespace, _, name in (place.partition("/") for place in changed)}


def end_of(trace: Trace) -> World:
    """What stands at the end."""
    world = World()
    for step in replay(trace):
        world = step.world
    return world


def annotation(entry: Entry, name: str) -> str:
    """An annotation's value; empty: it has none."""
    return text(mapping(mapping(entry.body.get("metadata")).get("annotations")).get(name))


def request_of(pod: Entry) -> Object:
    """What a pod is asked for; empty: nothing, or nothing that can be read."""
    try:
        return mapping(json.loads(annotation(pod, REQUEST) or "{}"))
    except ValueError:
        return {}


def terminating(entry: Entry) -> bool:
    """It is on its way out."""
    return bool(mapping(entry.body.get("metadata")).get("deletionTimestamp"))


def spec_of(entry: Entry) -> Object:
    """The object's spec."""
    return mapping(entry.body.get("spec"))


def expected(trace: Trace, name: str) -> tuple[str, ...]:
    """A list among the header's expectations."""
    return tuple(text(value) for value in sequence(trace.header.expectations.get(name)))


def _running(pod: Entry) -> bool:
    return mapping(pod.body.get("status")).get("phase") == "Running"


def _template_labels(entry: Entry) -> dict[str, str]:
    template = mapping(mapping(spec_of(entry).get("template")).get("metadata"))
    return {key: text(value) for key, value in mapping(template.get("labels")).items()}
