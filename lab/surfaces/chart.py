"""Values of the chart that do something: each is changed alone, and what the chart renders must change with it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from lab import paths
from lab.process import run
from lab.setup import kube, older

CHART = paths.ROOT / "helm" / "precision-operator"

Value = Any  # of a YAML file

SERVED = tuple(
    part
    for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
    for part in ("--api-versions", f"monitoring.coreos.com/v1/{kind}")
)


ON: Value = {
    "image": {"registry": "localhost"},
    "admission": {"mode": "Webhook"},
    "receiver": {"tokenSecret": "alerts"},
    "config": {"notifications": {"chat": {"urlFile": "/etc/precision-operator/credentials/chat"}}},
    "serviceAccount": {"name": "other"},
}
"""Values on which others hang, apart from those that are named ``enabled``."""


def leaves(values: Value, *above: str) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Each value that is no mapping, or an empty one, with its path."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, *above, str(name))
    else:
        yield above, values


def nested(path: tuple[str, ...], value: Value) -> Value:
    """``("a", "b"), 1`` → ``{"a": {"b": 1}}``."""
    for name in reversed(path):
        value = {name: value}
    return value


def schema_of(whole: Value, path: tuple[str, ...]) -> Value:
    """The part of a JSON schema that judges the value at a path."""
    part = whole
    for name in path:
        part = _resolved(whole, part)
        properties = part.get("properties", {})
        part = properties[name] if name in properties else part.get("additionalProperties", {})
    return _resolved(whole, part)


def _resolved(whole: Value, part: Value) -> Value:
    while "$ref" in part:
        names = part["$ref"].removeprefix("#/").split("/")
        part = whole
        for name in names:
            part = part[name]
    return part


def merged(below: Value, above: Value) -> Value:
    """Two trees of values as Helm lays one over the other."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {name: merged(below.get(name), above[name]) if name in above else below[name] for name in below | above}
    return above


def rendered(values: Value, file: Path) -> str:
    """What the chart makes of values, which are written to a file; empty where it refuses them."""
    file.write_text(yaml.safe_dump(values))
    command: list[str | Path] = [
        kube.kube_binaries() / "helm",
        "template",
        "precision-operator",
        CHART,
        *SERVED,
        "--values",
        file,
    ]
    done = run([*command, "--namespace", "precision-system"], check=False)
    return done.stdout if done.returncode == 0 else ""


def other(value: Value, schema: Value) -> Iterator[Value]:
    """Values that could stand in its place, the likeliest first."""
    yield from (choice for choice in schema.get("enum", []) if choice != value)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (value + 1, value - 1)
    elif isinstance(value, str):
        yield from (f"{value}x", "other", "1Gi", "30s", "http://elsewhere:9090", "sha256:" + "0" * 64, "10.0.0.1")
    elif isinstance(value, list):
        yield from (
            [{"name": "other"}],
            [{"name": "other", "mountPath": "/other"}],
            ["other"],
            [9999],
            [{"podSelector": {}}],
            [],
        )
    elif isinstance(value, dict):
        yield from (
            {"other": "other"},
            {"kind": "Issuer", "name": "other"},
            {"type": "RuntimeDefault"},
            {"Notice": {"subject": "other"}},
        )
    else:
        yield from ("other", 1, {"maxUnavailable": 1})


def tested(folder: Path) -> tuple[int, list[str]]:
    """How many values change what is rendered, and those that no value was found for that does.

    Everything that can be switched on is on, as what hangs on a switch shows only then. What could not be changed so is
    changed in the defaults: some may not be switched off while another is on.
    """
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    switched_on = merged(merged(defaults, ON), _switches(defaults))
    bases = [switched_on, merged(defaults, {"image": {"registry": "localhost"}})]
    plain = [rendered(base, folder / "plain.yaml") for base in bases]

    def alive(at: tuple[int, tuple[tuple[str, ...], Value]]) -> bool:
        number, (path, value) = at
        file = folder / f"{number}.yaml"
        choices = list(other(value, schema_of(schema, path)))
        return any(
            rendered(merged(base, nested(path, choice)), file) not in ("", unchanged)
            for base, unchanged in zip(bases, plain, strict=True)
            for choice in choices
        )

    found = list(leaves(switched_on))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(alive, enumerate(found)))
    dead = [".".join(path) for (path, _), is_alive in zip(found, answers, strict=True) if not is_alive]
    return len(found) - len(dead), dead


def _switches(defaults: Value) -> Value:
    """Every ``enabled`` that is off, switched on."""
    found: Value = {}
    for path, value in leaves(defaults):
        if path[-1] == "enabled" and value is False:
            found = merged(found, nested(path, True))
    return found


def versions_run() -> list[str]:
    """The minors of Kubernetes that this checkout compiles and runs, the newest first."""
    return [version.removeprefix("v").rpartition(".")[0] for version in (kube.VERSION, older.VERSION)]
