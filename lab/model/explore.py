"""Through everything that can happen, fewest faults first: a violation comes with a trace that has no fault too many."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, product

from lab.model.canonical import fingerprint
from lab.model.delivery import Violation
from lab.model.drills import Drills
from lab.model.events import Event, apply
from lab.model.fleet import Fleet
from lab.model.invariants import Checker
from lab.model.possible import enabled
from lab.model.scenarios import Scenario

_FREE = frozenset({"pass", "heal", "back", "catch-up"})
"""What is no fault, command or edit, and does not count against their number."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation, with a shortest way to it."""

    scenario: str
    violation: Violation
    trace: tuple[Event, ...]


@dataclass
class Result:
    """What one exploration came to: every sequence of ``depth`` events with up to ``faults`` faults has been tried."""

    scenario: str
    states: int = 0
    transitions: int = 0
    depth: int = 0
    faults: int = 0
    begun: int | None = None
    """Where time ended it: so many events deep it came with one fault more."""
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Reached:
    fleet: Fleet
    key: int
    faults: int
    """Faults, commands and edits on the way from the root."""
    depth: int
    """Events on that way."""


class Explorer:
    """Explores one scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._parents: dict[int, tuple[int, Event] | tuple[Event, ...]] = {}
        self._ways: dict[int, tuple[tuple[int, int], ...]] = {}
        """State → (faults, depth) of the ways to it of which none is better in both."""
        self._drills = Drills()
        self._found: dict[Violation, Finding] = {}
        self.result = Result(scenario.name)

    def run(
        self,
        *,
        depth: int,
        faults: int,
        seconds: float,
        least_faults: int = -1,
        tell: Callable[[Result], None] | None = None,
    ) -> Result:
        """Explore every sequence of ``depth`` events with up to ``faults`` faults, as far as ``seconds`` allow.

        ``least_faults``: with so many all are tried, whatever time it takes.
        """
        begun = time.monotonic()
        levels: defaultdict[tuple[int, int], list[_Reached]] = defaultdict(list)
        levels[0, 0] += self._roots()
        for layer, level in product(range(faults + 1), range(depth)):
            free = ((origin, False) for origin in levels[layer, level])
            faulty = (
                (origin, True) for origin in levels.pop((layer - 1, level), ())
            )  # those of this layer wait for the next
            for number, (origin, wrong) in enumerate(chain(free, faulty)):
                levels[layer, level + 1] += self._expand(origin, wrong=wrong)
                if number % 64 == 0:
                    self.result.seconds = time.monotonic() - begun
                    if tell is not None:
                        tell(self.result)
                    if self.result.seconds > seconds and layer > least_faults:
                        return self._conclude(begun)
            self._completed(layer, level + 1, depth)
        return self._conclude(begun)

    def _completed(self, layer: int, level: int, depth: int) -> None:
        result = self.result
        result.begun = level if layer and level < depth else None
        if layer == 0 or level == depth:
            result.faults, result.depth = layer, level

    def _conclude(self, begun: float) -> Result:
        self.result.seconds = time.monotonic() - begun
        self.result.findings = sorted(self._found.values(), key=lambda f: (f.violation.invariant, len(f.trace)))
        return self.result

    def _roots(self) -> Iterator[_Reached]:
        for events in self._scenario.roots.values():
            fleet, checker = self._scenario.start.clone(), Checker()
            for event in events:
                fleet = apply(fleet, event, checker, self._scenario.edits)
            key = fingerprint(fleet)
            if key not in self._parents:
                self._parents[key] = events
                self._ways[key] = ((0, 0),)
                self.result.states += 1
                self._note(checker, key)
                self._drill(fleet, key)
                yield _Reached(fleet, key, 0, 0)

    def _expand(self, origin: _Reached, *, wrong: bool) -> Iterator[_Reached]:
        """What follows from it by one fault, or without one."""
        if (origin.faults, origin.depth) not in self._ways[origin.key]:
            return  # a better way to it was found since
        way = (origin.faults + wrong, origin.depth + 1)
        for event in enabled(origin.fleet, self._scenario.kinds, self._scenario.edits):
            if (event.kind in _FREE) is wrong:
                continue
            checker = Checker()
            fleet = apply(origin.fleet, event, checker, self._scenario.edits)
            self.result.transitions += 1
            if checker.found:
                self._note(checker, origin.key, event)
                continue  # what follows a violation tells nothing new
            key = fingerprint(fleet)
            known = self._ways.get(key, ())
            if any(faults <= way[0] and depth <= way[1] for faults, depth in known):
                continue
            self._ways[key] = (way, *(other for other in known if not (way[0] <= other[0] and way[1] <= other[1])))
            if not known:
                self._parents[key] = (origin.key, event)
                self.result.states += 1
                self._drill(fleet, key)
            yield _Reached(fleet, key, *way)

    def _drill(self, fleet: Fleet, key: int) -> None:
        checker = Checker()
        self._drills.run(fleet, checker, self._scenario.kinds)
        self._note(checker, key)

    def _note(self, checker: Checker, key: int, *more: Event) -> None:
        for violation in checker.found:
            if violation not in self._found:
                self._found[violation] = Finding(self._scenario.name, violation, (*self._trace(key), *more))

    def _trace(self, key: int) -> tuple[Event, ...]:
        events: list[Event] = []
        while True:
            parent = self._parents[key]
            if not parent or isinstance(parent[0], Event):
                return (*(e for e in parent if isinstance(e, Event)), *reversed(events))
            key, event = parent
            events.append(event)
