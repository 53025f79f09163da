"""``lint``: is this policy sound, before any cluster sees it?"""

import argparse
import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml
from rich.text import Text

from precision_operator.api.spec import parse_spec
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.cli.advice import advice
from precision_operator.cli.flags import Commands, output_flag
from precision_operator.cli.output import console, said, write_json
from precision_operator.cli.schema import defaulted, faults
from precision_operator.errors import ConfigurationError
from precision_operator.kube.port import POLICIES

API_VERSION = POLICIES.api_version


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a file."""

    file: str
    policy: str
    """Its name, or which document of the file it is."""
    level: str
    """``error``: it would be refused. ``warning``: it would be taken, and most likely is not meant."""
    path: str
    message: str


def register(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add the verb."""
    verb = commands.add_parser(
        "lint",
        help="check policy files, without a cluster",
        description="Check PrecisionPolicies against the CRD's schema and rules, and for what is valid but "
        "probably unintended. Exits with 1 where the API server would refuse one. Whether endpoints, queries and workloads "
        "exist, only a cluster knows: `kubectl apply --dry-run=server -f FILE`, then `explain`.",
    )
    verb.add_argument("files", nargs="+", metavar="FILE", help="YAML or JSON; - reads standard input")
    output_flag(verb)
    verb.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check all files; 1 where there is an error."""
    found = [finding for name in arguments.files for finding in lint(name, _read(name))]
    failed = any(finding.level == "error" for finding in found)
    if arguments.output == "json":
        write_json([{name: getattr(finding, name) for name in Finding.__slots__} for finding in found])
    else:
        out = console()
        for finding in found:
            style = "red" if finding.level == "error" else "yellow"
            where = f"{finding.file}: {finding.policy}: "
            out.print(
                Text.assemble(
                    said(where), (finding.level, style), " ", (finding.path, "bold"), ": ", said(finding.message)
                )
            )
        if not found:
            out.print(f"{', '.join(arguments.files)}: sound")
    return 1 if failed else 0


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}: cannot be read: {error}; give a YAML or JSON file, or -") from error


_MERGE = "tag:yaml.org,2002:merge"


class _Strict(yaml.SafeLoader):
    """Reads keys as the API server does: as text, and none twice. Of two `criteria`, one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [_key(self.construct_object(key, deep=True)) for key, _ in node.value if key.tag != _MERGE]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} stands twice", node.start_mark)
        self.flatten_mapping(node)
        return {
            _key(self.construct_object(key, deep=True)): self.construct_object(value, deep=deep)
            for key, value in node.value
        }


def _key(value: object) -> str:
    """`1` and `on` are keys too: "1" and "true" in JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def crd_schema() -> dict[str, object]:
    """The schema of a PrecisionPolicy, from the CRD that this package was built with."""
    body = yaml.safe_load((files(__package__) / "precisionpolicies.yaml").read_text())
    schema: dict[str, object] = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def lint(file: str, content: str) -> Iterator[Finding]:
    """Everything about the policies of a file."""
    try:
        documents = [document for document in yaml.load_all(content, _Strict) if document is not None]
    except yaml.YAMLError as error:
        yield Finding(file, "file", "error", "", " ".join(f"expected YAML: {error}".split()))
        return
    bodies = [item for d in documents for item in (sequence(mapping(d).get("items")) or [d])]
    policies = [
        (index, mapping(body)) for index, body in enumerate(bodies) if mapping(body).get("kind") == "PrecisionPolicy"
    ]
    if not policies:
        yield Finding(
            file, "file", "error", "", f"expected a PrecisionPolicy ({API_VERSION}), found none: is it the right file?"
        )
    for index, body in policies:
        name = text(mapping(body.get("metadata")).get("name")) or f"document {index + 1}"
        yield from _policy(file, name, body)


def _policy(file: str, name: str, body: dict[str, object] | object) -> Iterator[Finding]:
    raw = mapping(body)
    if raw.get("apiVersion") != API_VERSION:
        yield Finding(file, name, "error", "apiVersion", f"expected {API_VERSION}, found {raw.get('apiVersion')!r}")
    if not mapping(raw.get("metadata")).get("name"):
        yield Finding(file, name, "error", "metadata.name", "is required")
    schema = mapping(mapping(crd_schema()["properties"])["spec"])
    if raw.get("spec") is None:
        yield Finding(file, name, "error", "spec", "is required; the least is a selector")
        return
    wrong = faults(schema, raw["spec"], "spec")
    for fault in wrong:
        yield Finding(file, name, "error", fault.path, fault.message)
    if not wrong:
        namespace = text(mapping(raw.get("metadata")).get("namespace")) or "default"
        for fault in advice(parse_spec(defaulted(schema, raw["spec"])), namespace):
            yield Finding(file, name, "warning", fault.path, fault.message)
