"""The OpenAPI schema of a model in precision_operator/api, from each field's type, default and metadata.

Descriptions are what `kubectl explain` shows; rules are CEL (x-kubernetes-validations), and each message says what was
expected and what to do. has() guards the fields of a rule that have a default, because `default: {}` of an object is
judged before its own fields get theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, get_args, get_origin

from precision_operator.api.codec import UNREADABLE, Entry, coder_of, entries
from precision_operator.api.criteria import ALERT, ANSWERS, Criterion
from precision_operator.api.fields import Duration, Field, Keyed, Rule, Time
from precision_operator.api.signal_records import COMMON, SIGNALS

Json = dict[str, Any]

DURATION = {"maxLength": 16, "pattern": "^([0-9]{1,6}(ms|s|m|h))+$"}


@dataclass(frozen=True)
class Schema:
    """Makes the schema of a model. ``defaults``: people write it, and the API server fills in what they leave out."""

    defaults: bool

    def model(self, kind: type, field: Field, path: str, base: object = None) -> Json:
        """An object with a model's fields; ``base`` has other defaults than its own."""
        node = self._node("object", field, path)
        groups = field.groups or {}
        node["properties"] = {}
        for entry in entries(kind):
            default = entry.default if base is None else getattr(base, entry.attribute)
            where, place = node, path
            for step, name in enumerate(entry.path[:-1]):
                place = f"{place}.{name}".lstrip(".")
                group = groups[".".join(entry.path[: step + 1])]
                where = where["properties"].setdefault(name, self._group(group, place))
                if group.opaque:
                    break
            else:
                self._add(where, entry, default, place)
        return node

    def _group(self, field: Field, path: str) -> Json:
        node = self._node("object", field, path)
        if field.opaque:
            return {**node, "x-kubernetes-preserve-unknown-fields": True}
        return {**node, **({"default": {}} if self.defaults else {}), "properties": {}}

    def _add(self, node: Json, entry: Entry, default: object, path: str) -> None:
        name = entry.path[-1]
        node["properties"][name] = self.field(entry, default, f"{path}.{name}".lstrip("."))
        if entry.field.required:
            node.setdefault("required", []).append(name)

    def field(self, entry: Entry, default: object, path: str) -> Json:
        """One field, with its default."""
        shown = None if default is UNREADABLE or default is None else entry.coder.write(default)
        node = self.value(entry.kind, entry.field, path, default, shown)
        if self.defaults and not entry.field.required and shown not in (None, "", [], {}):
            node["default"] = {} if node["type"] == "object" else shown
        return node

    def value(self, kind: object, field: Field, path: str, default: object = None, shown: object = None) -> Json:
        """A value of this type. ``default`` is as in code, ``shown`` as on the wire."""
        origin = get_origin(kind)
        if isinstance(field, Keyed):
            return self._criteria(field, path, default)
        if isinstance(field, Duration):
            found = replace(field, rules=(*duration_rules(field, path, shown), *field.rules))
            return self._node("string", found, path, shown) | DURATION
        if isinstance(field, Time):
            return self._node("string", field, path, shown) | {"format": "date-time"}
        if origin is tuple:
            node = self._node("array", field, path, shown)
            return node | {"items": self.value(get_args(kind)[0], field.items or Field(), f"{path}[]")}
        if origin is not None and issubclass(origin, Mapping):
            return self._map(kind, field, path, default)
        assert isinstance(kind, type)
        if issubclass(kind, StrEnum):
            return self._node("string", field, path, shown) | {"enum": [str(m) for m in field.only or kind]}
        if kind in (bool, int, float, str):
            return self._node(_TYPES[kind], field, path, shown)
        return self.model(kind, field, path, default if isinstance(default, kind) else None)

    def _map(self, kind: object, field: Field, path: str, default: object) -> Json:
        keys, values = get_args(kind)
        node = self._node("object", field, path)
        each = field.items or Field()
        if keys is str:
            return node | {"additionalProperties": self.value(values, each, path)}
        entry = Entry("", values, each, (), None, coder_of(values, each), False, False, True)
        node["properties"] = {}
        for key, known in default.items():  # type: ignore[attr-defined]
            keyed = replace(entry, field=replace(each, text=each.text.replace("{key}", key)))
            node["properties"][str(key)] = self.field(keyed, known, f"{path}.{key}")
        return node

    def _criteria(self, field: Field, path: str, default: object) -> Json:
        node = self._node("object", field, path)
        node["properties"] = {str(c.signal): self._criterion(c, f"{path}.{c.signal}") for c in default}  # type: ignore[attr-defined]
        return node

    def _criterion(self, default: Criterion, path: str) -> Json:
        record = SIGNALS[default.signal]
        node = self._node("object", Field(record.text, rules=record.rules()), path) | {"default": {}, "properties": {}}
        for entry in entries(Criterion):
            if entry.attribute in (*COMMON, *record.attributes):
                found = replace(entry, field=_of_signal(entry, default))
                self._add(node, found, getattr(default, entry.attribute), path)
        return node

    def _node(self, kind: str, field: Field, path: str, shown: object = None) -> Json:
        node: Json = {"type": kind}
        number = kind in ("integer", "number")
        if kind == "integer":
            node["format"] = field.format or "int32"
        if field.text:
            node["description"] = described(field, shown)
        node |= _bounds(field) if number else {}
        names = {"string": "Length", "array": "Items", "object": "Properties"}
        for bound, value in (("min", field.shortest), ("max", field.longest)):
            if value is not None:
                node[f"{bound}{names[kind]}"] = value
        if field.pattern:
            node["pattern"] = field.pattern
        if kind == "string" and field.only:
            node["enum"] = list(field.only)
        if field.format and kind == "string":
            node["format"] = field.format
        if field.topology:
            node[f"x-kubernetes-{'map' if kind == 'object' else 'list'}-type"] = field.topology
            node |= {"x-kubernetes-list-map-keys": ["type"]} if field.topology == "map" else {}
        if field.rules:
            node["x-kubernetes-validations"] = [_rule(rule) for rule in field.rules]
        return node


_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def _bounds(field: Field) -> Json:
    found: Json = {}
    for name, value, exclusive in (
        ("minimum", field.least, False),
        ("minimum", field.above, True),
        ("maximum", field.most, False),
        ("maximum", field.below, True),
    ):
        if value is not None:
            found[name] = value
            found |= {f"exclusive{name.capitalize()}": True} if exclusive else {}
    return found


def _rule(rule: Rule) -> Json:
    node = {
        "rule": rule.rule,
        "fieldPath": f".{rule.field}" if rule.field else "",
        "reason": "FieldValueInvalid" if rule.invalid else "",
        "message": rule.message,
        "messageExpression": rule.found,
    }
    return {key: value for key, value in node.items() if value}


def _range(field: Field) -> str:
    if field.least is not None and field.most is not None:
        return f"{field.least} to {field.most}"
    low = f"at least {field.least}" if field.least is not None else f"above {field.above}"
    high = f"at most {field.most}" if field.most is not None else f"below {field.below}"
    none_low, none_high = field.least is None and field.above is None, field.most is None and field.below is None
    return ", ".join(text for text, none in ((low, none_low), (high, none_high)) if not none)


def described(field: Field, shown: object) -> str:
    """A field's text, with its default and its bounds."""
    default = f"default {str(shown).lower() if isinstance(shown, bool) else shown}"
    return field.text.replace("{default}", "; ".join(part for part in (default, _range(field)) if part))


def duration_rules(field: Duration, path: str, shown: object) -> tuple[Rule, ...]:
    """The bounds of a duration; a schema cannot say them."""
    if field.most is None:
        return ()
    name = path.rpartition("[].")[2]
    order, low = (">", field.above) if field.above is not None else (">=", field.least)
    rule = f"duration(self) {order} duration('{low}') && duration(self) <= duration('{field.most}')"
    expected = f"{name} must be between {low} and {field.most}"
    if field.above is not None:
        expected = f"{name} must be above {low} and at most {field.most}"
    elif low == "0s":
        expected = f"{name} must be at most {field.most}"
    if field.advice:
        found = f"'{expected}, found ' + self + ': {field.advice}'"
        return (Rule(rule, f"{expected}: {field.advice}", found),)
    expected = f"{expected}, e.g. {shown}"
    return (Rule(rule, expected, f"'{expected}; found ' + self"),)


def _of_signal(entry: Entry, default: Criterion) -> Field:
    """A criterion's field as this signal has it."""
    record, field = SIGNALS[default.signal], entry.field
    beyond, within = ("below", "above") if default.lower_is_worse else ("above", "below")
    answers = f"{ANSWERS} {ALERT}" if "P3" in record.severities else ANSWERS
    text = field.text.replace("{beyond}", beyond).replace("{within}", within).replace("{measure}", record.measure)
    field = replace(field, text=text.replace("{answers}", answers))
    if entry.attribute == "severity":
        return replace(field, only=record.severities)
    if entry.attribute in ("enter", "leave", "promote_below", "warn"):
        return replace(field, least=record.bounds.least, above=record.bounds.above, most=record.bounds.most)
    return field
