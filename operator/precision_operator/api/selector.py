"""Label selectors, with Kubernetes' semantics for all four operators."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from precision_operator.api.codec import decode
from precision_operator.api.fields import Field, Rule, Via

T = TypeVar("T")

LABEL_KEY = "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_VALUE = Field(longest=63, pattern="^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """One ``matchExpressions`` entry. One that cannot be read stays: it matches nothing."""

    key: Annotated[str, Field("The label key.", required=True, shortest=1, longest=317, pattern=LABEL_KEY)] = ""
    operator: Annotated[
        str,
        Field(
            "In: the label is there and its value is one of values. NotIn: it is not there, or its value is none of "
            "them. Exists: it is there. DoesNotExist: it is not there.",
            required=True,
            only=("In", "NotIn", "Exists", "DoesNotExist"),
        ),
    ] = ""
    values: Annotated[
        tuple[str, ...],
        Field(
            "Values for In and NotIn; must be absent or empty for the other two. At most 32.",
            longest=32,
            topology="atomic",
            items=LABEL_VALUE,
        ),
    ] = ()

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

    match_labels: Annotated[
        tuple[tuple[str, str], ...],
        Field(
            "Labels, all of which must be there with exactly these values. At most 16.",
            longest=16,
            items=LABEL_VALUE,
            rules=(
                Rule(
                    f"self.all(k, size(k) <= 317 && k.matches('{LABEL_KEY}'))",
                    "every key of matchLabels must be a label key, [prefix/]name with a name of at most 63 characters, "
                    "e.g. app or training.example.com/team",
                ),
            ),
            via=Via(Mapping[str, str], read=lambda labels: tuple(sorted(labels.items())), write=dict),
        ),
    ] = ()
    match_expressions: Annotated[
        tuple[Requirement, ...],
        Field(
            "Requirements, all of which the labels must meet. At most 16.",
            longest=16,
            topology="atomic",
            items=Field(
                rules=(
                    Rule(
                        "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
                        "the operators In and NotIn need at least one value: list the values, or use Exists or "
                        "DoesNotExist",
                        field="values",
                    ),
                    Rule(
                        "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
                        "the operators Exists and DoesNotExist take no values: remove values, or use In or NotIn",
                        field="values",
                    ),
                )
            ),
        ),
    ] = ()

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
    """Read a selector; what is none matches nothing."""
    return decode(raw, Selector())


class BySelector(Generic[T]):
    """Things with selectors, by a label that each asks for: of many of them one object concerns few."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str] | None, list[tuple[Selector, T]]] = {}
        """None: of those that ask for no value of a label."""

    def add(self, selector: Selector, thing: T) -> None:
        """One more; it may be there under several selectors."""
        self._found.setdefault(next(iter(selector.match_labels), None), []).append((selector, thing))

    def matching(self, labels: Mapping[str, str]) -> Iterator[T]:
        """Those whose selector the labels meet. Only selectors are looked at that ask for a label which is there."""
        for label in (None, *labels.items()):
            for selector, thing in self._found.get(label, ()):
                if selector.matches(labels):
                    yield thing
