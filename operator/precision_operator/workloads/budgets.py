"""Whether PodDisruptionBudgets allow that pods go together. Pure: their bodies in, an answer out.

The API server asks them for each eviction by itself. A suspension takes pods away without asking any of them. Who may edit
a namespace may make as many budgets as it holds: each is read once, each pod is matched once, and too many are refused.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, islice

from precision_operator.api.selector import BySelector, Selector, parse_selector
from precision_operator.api.wire import has_condition, integer, mapping, text
from precision_operator.errors import DisruptionBudget
from precision_operator.kube.port import JsonObject
from precision_operator.workloads.reading import strings

BUDGETS_LIMIT = 2_000
"""Budgets of a namespace."""

TERMS_LIMIT = 20_000
"""Labels and values that all selectors of a namespace's budgets name together."""

SELECTING_LIMIT = 10
"""Budgets that select one pod; the API server evicts none that two select."""


@dataclass(slots=True, eq=False)
class _Budget:
    """One, and which of its pods are taken away."""

    name: str
    body: JsonObject
    torn: bool = False
    going: set[str] = field(default_factory=set)
    """Uids of ready pods that its status may count still."""


class Budgets:
    """Those of a namespace, for the pods that are to go at one time."""

    def __init__(self) -> None:
        self._count = self._terms = 0
        self._all: list[_Budget] = []
        """In policy/v1 an empty selector selects every pod, and none selects no pod."""
        self._some: BySelector[_Budget] = BySelector()
        self._of: dict[str, tuple[_Budget, ...]] = {}
        """By a pod's uid."""

    def add(self, body: JsonObject) -> None:
        """One more.

        Raises:
            DisruptionBudget: there are too many, or their selectors are too long.
        """
        raw = mapping(body.get("spec")).get("selector")
        selector = parse_selector(raw)
        self._count += 1
        self._terms += _terms(selector)
        if self._count > BUDGETS_LIMIT:
            raise _refused(f"the namespace has more than {BUDGETS_LIMIT} disruption budgets")
        if self._terms > TERMS_LIMIT:
            raise _refused(f"the namespace's disruption budgets select by more than {TERMS_LIMIT} labels and values")
        budget = _Budget(text(mapping(body.get("metadata")).get("name")), body)
        if not selector.empty:
            self._some.add(selector, budget)
        elif raw is not None:
            self._all.append(budget)

    def selecting(self, pod: JsonObject) -> Sequence[_Budget]:
        """The budgets that select it, at most one more than the limit; found once."""
        uid = _uid(pod)
        if uid not in self._of:
            found = chain(self._all, self._some.matching(_labels(pod)))
            self._of[uid] = tuple(islice(found, SELECTING_LIMIT + 1))
        return self._of[uid]

    def goes(self, pod: JsonObject) -> None:
        """It is taken away, and the budgets' statuses may not know of it yet."""
        if _ready(pod):
            for budget in self.selecting(pod):
                budget.going.add(_uid(pod))

    def tears(self, pod: JsonObject) -> None:
        """Some of its process group have gone: its budgets are left to that."""
        for budget in self.selecting(pod):
            budget.torn = True

    def against(self, pods: Iterable[JsonObject]) -> str | None:
        """The first budget that keeps some of these pods, and why, for a person; None: none does, and all of them go."""
        pods, running = list(pods), dict[_Budget, list[JsonObject]]()
        for pod in filter(_runs, pods):
            found = self.selecting(pod)
            if len(found) > SELECTING_LIMIT:
                return f"more than {SELECTING_LIMIT} disruption budgets select one of its pods: leave one that does"
            for budget in found:
                running.setdefault(budget, []).append(pod)
        own = frozenset(map(_uid, pods))
        words = next((words for budget in running if (words := _against(budget, running[budget], own))), None)
        if words is None:
            for pod in pods:
                self.goes(pod)
        return words


def _against(budget: _Budget, running: Sequence[JsonObject], own: Set[str]) -> str | None:
    name, spec, status = budget.name, mapping(budget.body.get("spec")), mapping(budget.body.get("status"))
    generation = integer(mapping(budget.body.get("metadata")).get("generation"), 0)
    if integer(status.get("observedGeneration"), 0) < generation:
        return f"the disruption budget {name} is still being processed"
    if budget.torn:
        return f"the disruption budget {name} is left to a process group that it has let go in part"
    allowed = max(0, integer(status.get("disruptionsAllowed"), 0) - len(budget.going) + len(own & budget.going))
    ready = sum(map(_ready, running))
    if allowed < ready:
        return f"the disruption budget {name} allows {allowed} disruptions, and {ready} of its pods would go"
    # A pod that is not ready counts for no budget, but where too few are ready it may be about to.
    spared = text(spec.get("unhealthyPodEvictionPolicy")) == "AlwaysAllow"
    healthy, desired = integer(status.get("currentHealthy"), 0), integer(status.get("desiredHealthy"), 0)
    if healthy < desired and not spared:
        return f"the disruption budget {name} needs {desired} healthy pods and has {healthy}"
    return None


def _refused(words: str) -> DisruptionBudget:
    return DisruptionBudget(words, budget=words)


def _terms(selector: Selector) -> int:
    return len(selector.match_labels) + sum(1 + len(one.values) for one in selector.match_expressions)


def _uid(pod: JsonObject) -> str:
    return text(mapping(pod.get("metadata")).get("uid"))


def _labels(pod: JsonObject) -> Mapping[str, str]:
    return strings(mapping(pod.get("metadata")).get("labels"))


def _runs(pod: JsonObject) -> bool:
    """Whether its end is a disruption: one that waits for a node, or is going already, is none."""
    leaves = "deletionTimestamp" in mapping(pod.get("metadata"))
    return not leaves and text(mapping(pod.get("status")).get("phase")) == "Running"


def _ready(pod: JsonObject) -> bool:
    return has_condition(pod.get("status"), "Ready")
