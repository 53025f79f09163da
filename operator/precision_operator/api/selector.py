"""Label selectors, with Kubernetes' semantics for all four operators."""

from collections.abc import Mapping
from dataclasses import dataclass

from precision_operator.api.wire import mapping, sequence, text


@dataclass(frozen=True, slots=True)
class Requirement:
    """One ``matchExpressions`` entry."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """As a part of a ``labelSelector``."""
        match self.operator:
            case "In":
                return f"{self.key} in ({','.join(self.values)})"
            case "NotIn":
                return f"{self.key} notin ({','.join(self.values)})"
            case "DoesNotExist":
                return f"!{self.key}"
        return self.key

    def matches(self, labels: Mapping[str, str]) -> bool:
        """As the API server evaluates it; an unknown operator matches nothing."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return self.key not in labels or labels[self.key] not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return False


@dataclass(frozen=True, slots=True)
class Selector:
    """A label selector; an empty one matches nothing here, so that a mistake can never mean *everything*."""

    match_labels: tuple[tuple[str, str], ...] = ()
    match_expressions: tuple[Requirement, ...] = ()

    @property
    def empty(self) -> bool:
        """It asks for nothing."""
        return not self.match_labels and not self.match_expressions

    @property
    def query(self) -> str:
        """As a ``labelSelector`` of a list."""
        equal = [f"{key}={value}" for key, value in self.match_labels]
        return ",".join([*equal, *(requirement.query for requirement in self.match_expressions)])

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet every requirement."""
        if self.empty:
            return False
        return all(labels.get(key) == value for key, value in self.match_labels) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


def parse_selector(raw: object) -> Selector:
    """Read ``spec.selector``."""
    body = mapping(raw)
    labels = tuple(sorted((k, v) for k, v in mapping(body.get("matchLabels")).items() if isinstance(v, str)))
    expressions = tuple(
        Requirement(
            key=text(entry.get("key")),
            operator=text(entry.get("operator")),
            values=tuple(v for v in sequence(entry.get("values")) if isinstance(v, str)),
        )
        for entry in map(mapping, sequence(body.get("matchExpressions")))
    )
    return Selector(labels, expressions)


def selector_to_wire(selector: Selector) -> dict[str, object]:
    """As a PrecisionAssignment has it."""
    wire: dict[str, object] = {}
    if selector.match_labels:
        wire["matchLabels"] = dict(selector.match_labels)
    if selector.match_expressions:
        wire["matchExpressions"] = [
            {"key": e.key, "operator": e.operator, **({"values": list(e.values)} if e.values else {})}
            for e in selector.match_expressions
        ]
    return wire
