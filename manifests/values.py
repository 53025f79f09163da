"""The chart's value `config`, from the models of the operator's settings: its schema, and its part of values.yaml."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_origin

import yaml

from precision_operator.api.codec import UNREADABLE, Entry, entries
from precision_operator.api.fields import Field
from precision_operator.api.messages import MessageKind
from precision_operator.settings import MessageTemplate, PrometheusEndpoint, Settings

Json = dict[str, Any]

WORKED_OUT = ("watchNamespaces", "admission", "receiver", "requireFence", "httpPort", "namespace", "identity")
"""Settings that the chart makes from other values or leaves alone: people do not write them."""
NAMES = {"maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
"""Names of the admin's choice, that policies may use."""
KEYS: Mapping[object, Json] = {MessageTemplate: {"enum": [str(kind) for kind in MessageKind]}}
"""What an entry may be called, by what it is, where that is not a name of the admin's choice."""
TOKENS = {
    "if": {"type": "object", "properties": {"bearerTokenFile": {"minLength": 1}}, "required": ["bearerTokenFile"]},
    "then": {"properties": {"url": {"pattern": r"^(https://|\$\(|http://(127\.0\.0\.1|localhost|\[::1\])([:/]|$))"}}},
}
"""A token goes over https only, as the operator checks again when ``$(NAME)`` has its value."""
CHART_DEFAULTS = {
    "prometheus": {"default": {"url": "http://prometheus-operated.monitoring.svc:9090", "timeoutSeconds": 5}}
}
"""Where the chart's default is not the operator's: kube-prometheus-stack's usual address."""

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def values_schema(chart_only: str) -> str:
    """values.schema.json: the hand-written schema of what the chart alone knows, with that of `config`."""
    schema = json.loads(chart_only)
    schema["properties"]["config"] = _model(Settings, without=WORKED_OUT)
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def with_config(values: str) -> str:
    """values.yaml with its `config` as the models have it."""
    block = "\n".join(["config:", *_lines(Settings, "  ")])
    return re.sub(r"^config:\n(?:[ ]+.*\n)+", lambda _: block + "\n", values, flags=re.MULTILINE)


def _model(kind: type, without: tuple[str, ...] = ()) -> Json:
    shown = [entry for entry in entries(kind) if entry.path[-1] not in without]
    node: Json = {"type": "object", "additionalProperties": False}
    if required := [entry.path[-1] for entry in shown if entry.field.required]:
        node["required"] = required
    return node | {"properties": {entry.path[-1]: _entry(entry) for entry in shown}}


def _entry(entry: Entry) -> Json:
    return {"description": entry.field.text, **_value(entry.kind, entry.field)}


def _value(kind: object, field: Field) -> Json:
    if isinstance(kind, type) and is_dataclass(kind):
        return _model(kind)
    if isinstance(origin := get_origin(kind), type) and issubclass(origin, Mapping):
        each = _value(get_args(kind)[1], field.items or Field())
        return {
            "type": "object",
            "propertyNames": KEYS.get(get_args(kind)[1], NAMES),
            "additionalProperties": _nullable(each, field.items or Field())
            | (TOKENS if get_args(kind)[1] is PrometheusEndpoint else {}),
        }
    if field.only:
        return {"enum": list(field.only)}
    bounds = {
        "minimum": field.least,
        "exclusiveMinimum": field.above,
        "maximum": field.most,
        "minLength": field.shortest,
        "maxLength": field.longest,
        "pattern": field.pattern or None,
    }
    return {"type": _TYPES[kind], **{name: bound for name, bound in bounds.items() if bound is not None}}  # type: ignore[index]


def _nullable(node: Json, field: Field) -> Json:
    """A null in an overlay takes an entry away."""
    found = {**node, "type": [node["type"], "null"]}
    if field.either:
        found |= {"if": {"type": "object"}, "then": {"oneOf": [{"required": [name]} for name in field.either]}}
    return found


def _lines(kind: type, indent: str) -> Iterator[str]:
    for entry in entries(kind):
        name = entry.path[-1]
        if name in WORKED_OUT and kind is Settings:
            continue
        if isinstance(entry.kind, type) and is_dataclass(entry.kind):
            yield f"{indent}{name}:"
            yield from _lines(entry.kind, indent + "  ")
            continue
        text = " ".join([entry.field.text, *_fields_of_each(entry.kind)])
        comment = textwrap.wrap(text, 138 - len(indent), break_on_hyphens=False)
        yield from (f"{indent}# {'' if number else '-- '}{line}" for number, line in enumerate(comment))
        yield from textwrap.indent(yaml.safe_dump({name: _default(entry)}, sort_keys=False), indent).splitlines()


def _fields_of_each(kind: object) -> list[str]:
    args = get_args(kind)
    if not args or not is_dataclass(args[-1]):
        return []
    return ["Each has " + ", ".join(f"`{entry.path[-1]}`" for entry in entries(args[-1])) + "."]  # type: ignore[arg-type]


def _default(entry: Entry) -> object:
    found = CHART_DEFAULTS.get(entry.path[-1], entry.default)
    if found is UNREADABLE:
        raise TypeError(f"expected a default of config.{entry.path[-1]}, found none; give the setting one")
    return int(found) if isinstance(found, float) and found.is_integer() else found
