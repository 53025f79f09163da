"""Odd policies, made from the CRD's own schema: one field at a time gets a value that somebody might write by mistake.

The API server may refuse them. What it takes must never stop the operator. The order is a seeded shuffle.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

from lab import paths
from precision_operator.api.wire import mapping, sequence, text

CRD = paths.ROOT / "crds" / "precision.genesis.ai_precisionpolicies.yaml"
_ABSENT = object()
_ANY: tuple[object, ...] = (None, "", "10", 0, -1, 2**63 - 1, 0.5, True, [], {}, _ABSENT)
_TEXTS: tuple[object, ...] = ("0s", "-1m", "1ns", "9999999h", "NaN", "x" * 300, "a\nb", "\u202e", '"} or vector(0) #')
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OddPolicy:
    """A spec with one odd field."""

    path: str
    """Of the field, below ``spec``."""
    spec: Mapping[str, object]


def odd_policies(good: Mapping[str, object], *, seed: int, count: int) -> list[OddPolicy]:
    """Specs that differ from a good one in one field each, no two alike.

    Each stands for the transition good → odd → good of one object: an empty value in place of a good one is among them.
    Fewer than `count` where the schema gives no more.
    """
    found = [OddPolicy(".".join(path), _with(good, path, value)) for path, value in _choices(spec_schema())]
    different = {_written(odd.spec): odd for odd in found}
    different.pop(_written(good), None)
    chosen = list(different.values())
    random.Random(seed).shuffle(chosen)
    return chosen[:count]


def _written(spec: Mapping[str, object]) -> str:
    """The same for equal specs only; in Python, ``0 == False``."""
    return json.dumps(spec, sort_keys=True)


def spec_schema() -> Mapping[str, object]:
    """The schema of ``spec`` in the CRD that is shipped."""
    version = mapping(sequence(mapping(yaml.safe_load(CRD.read_text())["spec"])["versions"])[0])
    schema = mapping(mapping(version.get("schema")).get("openAPIV3Schema"))
    return mapping(mapping(schema.get("properties")).get("spec"))


def _choices(schema: Mapping[str, object], path: Path = ()) -> Iterator[tuple[Path, object]]:
    for name, raw in mapping(schema.get("properties")).items():
        inner, here = mapping(raw), (*path, name)
        yield from ((here, value) for value in (*_ANY, *_odd_values(inner)))
        yield from _choices(inner, here)
        yield from ((here, value) for value in _odd_items(inner))
    yield (*path, "unknownField"), "x"


def _odd_items(schema: Mapping[str, object]) -> Iterator[object]:
    """Lists whose first item has one odd field; the others are those of the default, where there is one."""
    first, *others = sequence(schema.get("default")) or [{}]
    if isinstance(first, dict):
        for path, value in _choices(mapping(schema.get("items"))):
            yield [_with(first, path, value), *others]


def _odd_values(schema: Mapping[str, object]) -> Iterator[object]:
    """Beside the bounds, past them, and of the right type but senseless."""
    for bound, beyond in (("minimum", -1), ("maximum", 1)):
        value = schema.get(bound)
        if isinstance(value, int | float):
            yield from (value, value + beyond)
    yield from sequence(schema.get("enum"))
    if text(schema.get("type")) == "string":
        yield from _TEXTS
    if text(schema.get("type")) == "array":
        yield from ([None], [{}], [{}] * 200)


def _with(good: Mapping[str, object], path: Path, value: object) -> dict[str, object]:
    spec = copy.deepcopy(dict(good))
    place = spec
    for name in path[:-1]:
        inner = place.get(name)
        if not isinstance(inner, dict):
            inner = place[name] = {}
        place = inner
    place.pop(path[-1], None)
    if value is not _ABSENT:
        place[path[-1]] = value
    return spec
