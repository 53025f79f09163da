"""A CRD's schema applied without a cluster: structure, ranges, unknown fields, defaults, and its CEL rules.

The rules are CEL; each stands here a second time as a Python predicate, keyed by its text, and a unit test holds this
table to the CRD. What the API server says stays the last word: ``kubectl apply --dry-run=server``.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from precision_operator.api.wire import duration_seconds, mapping, sequence, text

NEVER = float("nan")
"""Compares false with everything: what is no duration is within no bounds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that the API server would refuse."""

    path: str
    message: str


def faults(schema: Mapping[str, object], value: object, path: str) -> tuple[Fault, ...]:
    """All that is wrong with ``value``: the structure first, as the server does, and the rules once that is right."""
    found = tuple(_structure(schema, value, path))
    return found or tuple(_rules(schema, defaulted(schema, value), path))


def defaulted(schema: Mapping[str, object], value: object) -> object:
    """The value with the schema's defaults filled in; null counts as absent."""
    if isinstance(value, dict):
        fields = mapping(schema.get("properties"))
        filled = {k: v for k, v in value.items() if v is not None}
        for name, child in fields.items():
            inner = mapping(child)
            if name not in filled and "default" in inner:
                filled[name] = copy.deepcopy(inner["default"])
            if name in filled:
                filled[name] = defaulted(inner, filled[name])
        return filled
    if isinstance(value, list):
        return [defaulted(mapping(schema.get("items")), item) for item in value]
    return value


_TYPES: Mapping[str, Callable[[object], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
}


def _structure(schema: Mapping[str, object], value: object, path: str) -> Iterator[Fault]:
    kind = text(schema.get("type"))
    if kind and not _TYPES[kind](value):
        yield Fault(path, f"expected type {kind}, found {value!r}")
        return
    choices = sequence(schema.get("enum"))
    if choices and value not in choices:
        yield Fault(path, f"expected one of {', '.join(map(str, choices))}, found {value!r}")
    if isinstance(value, dict):
        yield from _fields(schema, value, path)
    elif isinstance(value, list):
        yield from _bounds(schema, len(value), path, names=("minItems", "maxItems"), what="items")
        if schema.get("x-kubernetes-list-type") == "set" and any(value.count(item) > 1 for item in value):
            yield Fault(path, f"expected each item once, found {value}")
        for index, item in enumerate(value):
            yield from _structure(mapping(schema.get("items")), item, f"{path}[{index}]")
    elif isinstance(value, str):
        yield from _bounds(schema, len(value), path, names=("minLength", "maxLength"), what="characters")
        pattern = text(schema.get("pattern"))
        if pattern and re.search(pattern, value) is None:
            yield Fault(path, f"expected a text like {pattern}, found {value!r}")
    elif isinstance(value, int | float):
        yield from _bounds(schema, value, path, names=("minimum", "maximum"), what="")
        if schema.get("exclusiveMinimum") and value == schema.get("minimum"):
            yield Fault(path, f"expected more than {schema['minimum']}, found {value}")
        if schema.get("exclusiveMaximum") and value == schema.get("maximum"):
            yield Fault(path, f"expected less than {schema['maximum']}, found {value}")


def _fields(schema: Mapping[str, object], value: Mapping[str, object], path: str) -> Iterator[Fault]:
    known, anything = mapping(schema.get("properties")), schema.get("additionalProperties")
    present = {name: item for name, item in value.items() if item is not None}
    yield from _bounds(schema, len(present), path, names=("minProperties", "maxProperties"), what="fields")
    for name in sequence(schema.get("required")):
        if name not in present:
            yield Fault(f"{path}.{name}", "is required")
    for name, item in present.items():
        if name in known:
            yield from _structure(mapping(known[name]), item, f"{path}.{name}")
        elif isinstance(anything, dict):
            yield from _structure(anything, item, f"{path}.{name}")
        elif known:
            yield Fault(f"{path}.{name}", f"is no field; expected one of {', '.join(known)}")


def _bounds(
    schema: Mapping[str, object], size: float, path: str, *, names: tuple[str, str], what: str
) -> Iterator[Fault]:
    low, high = (schema.get(name) for name in names)
    if isinstance(low, int | float) and size < low:
        yield Fault(path, f"expected at least {low} {what}, found {size}".replace("  ", " ").replace(" ,", ","))
    if isinstance(high, int | float) and size > high:
        yield Fault(path, f"expected at most {high} {what}, found {size}".replace("  ", " ").replace(" ,", ","))


def rules_of(schema: Mapping[str, object]) -> Iterator[str]:
    """The text of every CEL rule of a schema."""
    for rule in map(mapping, sequence(schema.get("x-kubernetes-validations"))):
        yield text(rule.get("rule"))
    for child in (*mapping(schema.get("properties")).values(), schema.get("items")):
        if isinstance(child, dict):
            yield from rules_of(child)


def _rules(schema: Mapping[str, object], value: object, path: str) -> Iterator[Fault]:
    for rule in map(mapping, sequence(schema.get("x-kubernetes-validations"))):
        holds = predicate(text(rule.get("rule")))
        if holds is not None and not holds(value):
            found = f" (found {value})" if isinstance(value, str | int | float) else ""
            yield Fault(path + text(rule.get("fieldPath")), text(rule.get("message")) + found)
    if isinstance(value, dict):
        for name, child in mapping(schema.get("properties")).items():
            if name in value:
                yield from _rules(mapping(child), value[name], f"{path}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _rules(mapping(schema.get("items")), item, f"{path}[{index}]")


Predicate = Callable[[object], bool]

_RANGE = re.compile(r"(?:duration\(self\) (>=?) duration\('(\w+)'\) && )?duration\(self\) <= duration\('(\w+)'\)")
_ORDER = re.compile(r"!has\(self\.(\w+)\) \|\| !has\(self\.(\w+)\) \|\| self\.\1 (<=?|>) self\.\2")
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def predicate(rule: str) -> Predicate | None:
    """The rule as Python; None where it is not known here."""
    if bounds := _RANGE.fullmatch(rule):
        least = duration_seconds(bounds[2], NEVER) if bounds[2] else 0.0
        return _within(least, duration_seconds(bounds[3], NEVER), strict=bounds[1] == ">")
    if order := _ORDER.fullmatch(rule):
        return _ordered(order[1], order[2], order[3])
    return _KNOWN.get(rule)


def _within(least: float, most: float, *, strict: bool) -> Predicate:
    """A duration between two bounds, in seconds."""

    def holds(value: object) -> bool:
        seconds = duration_seconds(value, NEVER)
        return (least < seconds if strict else least <= seconds) and seconds <= most

    return holds


def _ordered(first: str, second: str, relation: str) -> Predicate:
    """Two numbers stand in this relation, where both are given."""

    def holds(value: object) -> bool:
        a, b = mapping(value).get(first), mapping(value).get(second)
        if not isinstance(a, int | float) or not isinstance(b, int | float):
            return True
        return {"<": a < b, "<=": a <= b, ">": a > b}[relation]

    return holds


def _weights_rise(value: object) -> bool:
    found = [mapping(item)["setWeight"] for item in sequence(value) if "setWeight" in mapping(item)]
    weights = [weight for weight in found if isinstance(weight, int)]
    return all(a < b for a, b in pairwise(weights))


def _not_shorter(longer: str, shorter: str) -> Predicate:
    """Two durations stand in this order, where both are given."""

    def holds(value: object) -> bool:
        high, low = (duration_seconds(mapping(value).get(name), NEVER) for name in (longer, shorter))
        return not high < low

    return holds


_KNOWN: Mapping[str, Predicate] = {
    "self.unit != 'Pod' || !has(self.strategy) || !has(self.strategy.canary) || !has(self.strategy.canary.by) || "
    "self.strategy.canary.by != 'NodeLabel'": lambda v: (
        mapping(v).get("unit") != "Pod"
        or mapping(mapping(mapping(v).get("strategy")).get("canary")).get("by") != "NodeLabel"
    ),
    "self.fallback == 'fp32' || self.target == 'fp16'": lambda v: (
        mapping(v).get("fallback") == "fp32" or mapping(v).get("target") == "fp16"
    ),
    "(has(self.matchLabels) && size(self.matchLabels) > 0) || "
    "(has(self.matchExpressions) && size(self.matchExpressions) > 0)": (
        lambda v: bool(mapping(v).get("matchLabels") or mapping(v).get("matchExpressions"))
    ),
    "self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?"
    "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))": lambda v: all(
        len(k) <= 317 and _LABEL_KEY.fullmatch(k) for k in mapping(v)
    ),
    "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)": lambda v: (
        mapping(v).get("operator") not in ("In", "NotIn") or bool(mapping(v).get("values"))
    ),
    "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0": lambda v: (
        mapping(v).get("operator") in ("In", "NotIn") or not mapping(v).get("values")
    ),
    "!has(self.query) || !has(self.promql)": lambda v: not {"query", "promql"} <= mapping(v).keys(),
    "size(self) == 0 || has(self[0].setWeight)": lambda v: not v or "setWeight" in mapping(sequence(v)[0]),
    "self.filter(s, has(s.setWeight)).map(s, s.setWeight).isSorted() && self.filter(s, has(s.setWeight))"
    ".all(s, self.exists_one(t, has(t.setWeight) && t.setWeight == s.setWeight))": _weights_rise,
    "has(self.setWeight) != has(self.pause)": lambda v: ("setWeight" in mapping(v)) != ("pause" in mapping(v)),
    "!has(self.window) || !has(self.interval) || duration(self.window) >= duration(self.interval)": (
        _not_shorter("window", "interval")
    ),
    "!has(self.window) || !has(self.limit) || duration(self.window) <= duration(self.limit)": (
        _not_shorter("limit", "window")
    ),
}
