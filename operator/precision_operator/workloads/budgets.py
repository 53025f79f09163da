"""Whether PodDisruptionBudgets allow that pods go together. Pure: their bodies in, an answer out.

The API server asks them for each eviction by itself. A suspension takes pods away without asking any of them.
"""

from collections.abc import Iterable, Mapping, Sequence

from precision_operator.api.selector import parse_selector
from precision_operator.api.wire import integer, mapping, sequence, text
from precision_operator.kube.port import JsonObject


def budget_against(
    pods: Iterable[JsonObject],
    budgets: Iterable[JsonObject],
    *,
    going: Sequence[JsonObject] = (),
    torn: Sequence[JsonObject] = (),
) -> str | None:
    """The first budget that keeps some of these pods, and why, for a person; None: none does.

    Args:
        pods: that are to go together.
        budgets: of their namespace.
        going: other pods that are taken away, of which the budgets' statuses may not know yet.
        torn: pods of process groups of which some have gone: their budgets are left to them.
    """
    running = [pod for pod in pods if _runs(pod)]
    found = (_against(running, budget, going=going, torn=torn) for budget in budgets)
    return next((words for words in found if words is not None), None)


def _against(
    running: Sequence[JsonObject], budget: JsonObject, *, going: Sequence[JsonObject], torn: Sequence[JsonObject]
) -> str | None:
    metadata, status = mapping(budget.get("metadata")), mapping(budget.get("status"))
    name, selector = text(metadata.get("name")), mapping(budget.get("spec")).get("selector")
    matched = [pod for pod in running if _selects(selector, _labels(pod))]
    if not matched:
        return None
    if integer(status.get("observedGeneration"), 0) < integer(metadata.get("generation"), 0):
        return f"the disruption budget {name} is still being processed"
    if any(_selects(selector, _labels(pod)) for pod in torn):
        return f"the disruption budget {name} is left to a process group that it has let go in part"
    taken = sum(_ready(pod) and _selects(selector, _labels(pod)) for pod in going)
    allowed = max(0, integer(status.get("disruptionsAllowed"), 0) - taken)
    ready = sum(_ready(pod) for pod in matched)
    if allowed < ready:
        return f"the disruption budget {name} allows {allowed} disruptions, and {ready} of its pods would go"
    # A pod that is not ready counts for no budget, but where too few are ready it may be about to.
    spared = text(mapping(budget.get("spec")).get("unhealthyPodEvictionPolicy")) == "AlwaysAllow"
    healthy, desired = integer(status.get("currentHealthy"), 0), integer(status.get("desiredHealthy"), 0)
    if ready < len(matched) and healthy < desired and not spared:
        return f"the disruption budget {name} needs {desired} healthy pods and has {healthy}"
    return None


def _selects(raw: object, labels: Mapping[str, str]) -> bool:
    """In policy/v1 an empty selector selects every pod, and none selects no pod."""
    if raw is None:
        return False
    selector = parse_selector(raw)
    return selector.empty or selector.matches(labels)


def _labels(pod: JsonObject) -> Mapping[str, str]:
    labels = mapping(mapping(pod.get("metadata")).get("labels"))
    return {key: value for key, value in labels.items() if isinstance(value, str)}


def _runs(pod: JsonObject) -> bool:
    """Whether its end is a disruption: one that waits for a node, or is going already, is none."""
    leaves = "deletionTimestamp" in mapping(pod.get("metadata"))
    return not leaves and text(mapping(pod.get("status")).get("phase")) == "Running"


def _ready(pod: JsonObject) -> bool:
    conditions = map(mapping, sequence(mapping(pod.get("status")).get("conditions")))
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
