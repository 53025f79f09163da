"""lab/isolation/readers.py lists everything that reads what a tenant wrote: what is new and not listed is found here.

A function of the operator *reads tenants' text* where it uses a compiled regular expression, a key of the contract, or
something that is made of one; parses JSON or YAML; or takes annotations, labels, a reason or a message from a body. The
readers must run it. What they need not run is named below, with the reason.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import pytest
import yaml

import precision_operator
from lab.isolation.readers import of_the_cli, readers, words
from lab.isolation.tenant_text import WRITTEN
from precision_operator import contract

ROOT = Path(precision_operator.__file__).parent
ADMISSION = ROOT.parents[1] / "manifests" / "admission"

FIELDS = {"annotations", "labels", "message", "reason"}
"""Of a body: what people and programs of a namespace fill."""
PARSERS = {("json", "loads"), ("yaml", "safe_load"), ("yaml", "safe_load_all")}
KEYS = {
    name for name, value in vars(contract).items() if isinstance(value, str) and value.startswith(f"{contract.PREFIX}/")
}

TEXTS = (
    "",
    "x",
    "7: words",
    "30s",
    "2026-11-23T00:00:00Z",
    "fleet/7/fp16",
    "password=abc123def456",
    '{"generation":7,"mode":"fp16"}',
    '2026-11-23T00:00:00Z {"event": "step"}',
    'sum(x{mode=~"(fp){2}16"})',
)
"""Enough to reach what reads on: how a reader bears hostile ones is another test's matter."""

BOUNDED = "reads what a reader of the list has bounded and cleaned"
PERSON = "runs in the process of a person, with that person's rights: nobody else waits for it"
OURS = "reads or writes what an administrator or the operator itself wrote"
ENVELOPE = "reads what a server with credentials sent; what of it is a tenant's, a reader of the list reads"

EXCEPTIONS: Mapping[str, tuple[str, ...]] = {
    BOUNDED: (
        "core.facts:Facts.asked",
        "core.promotion.checks.approved:approved",
        "core.promotion.checks.preflight:_version",
        "core.rollback.drill:_asked",
        "core.rollback.drill:_new",
        "core.rollback.retry:reenabled",
        "incidents.changes:_of_label",
        "incidents.changes:owner",
        "incidents.questions:_again",
        "incidents.passes:_acknowledged",
    ),
    PERSON: (
        "incidents.events:happenings",
        "incidents.export:export",
        "incidents.logs:pods_to_read",
        "incidents.markdown:_plain",
        "replay.backtest:workload_of",
        "replay.history:_chunk",
        "replay.curves:name_of",
        "replay.recording:unpack",
        "replay.rerun:_value",
        "selftest:injected",
    ),
    OURS: (
        "admission.objects:_read",
        "api.commands:Prerequisite.annotation",
        "api.policy:deleted_policy",
        "api.state:_as_object",
        "config_file:load_settings",
        "controller.echo:Echoes._once",
        "controller.echo:_judged",
        "controller.halt:_cause",
        "controller.installed:InstalledPolicies._normal",
        "controller.preflight:WayBack._write",
        "incidents.channels:_carried_out",
        "incidents.channels:_without",
        "incidents.document:name_of",
        "incidents.retention:Retention._prune",
        "reasons.steps:whole",
        "receiver.tokens:parse_tokens",
        "workloads.requests:request_pod",
    ),
    ENVELOPE: ("receiver.server:_parsed", "webhook.server:WebhookServer._admit"),
}

UNWRITTEN: Mapping[str, str] = {
    "precision-fence-pods.precision.genesis.ai": "judges the operator's own writes only",
    "precision-assignment-deleters.precision.genesis.ai": "reads the name of an assignment, which the API server bounds",
}
"""Admission policies that read text, and are not met by what `lab.isolation.tenant_text` writes."""


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


class Product:
    """The operator's modules, and the names in them that stand for how tenants' text is read."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.trees = trees
        self._imported = {module: dict(_imports(tree)) for module, tree in trees.items()}
        self._marked = {("contract", key) for key in KEYS}
        while found := {name for module, tree in trees.items() for name in self._made_of(module, tree)} - self._marked:
            self._marked |= found

    def _is_marked(self, module: str, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and self._imported[module].get(node.id, (module, node.id)) in self._marked

    def _made_of(self, module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
        """The module's own names that hold a regular expression, or something made of what is marked."""
        for statement in tree.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if any(_of_re(node) or self._is_marked(module, node) for node in ast.walk(statement.value)):
                    names = (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
                    yield from ((module, name.id) for name in names)

    def reading(self) -> set[str]:
        """Every function that reads tenants' text, as ``module:qualified name``."""
        return {
            f"{module}:{name}"
            for module, tree in self.trees.items()
            if not module.startswith("cli.")  # see PERSON
            for name, function in _functions(tree)
            if self._reads(module, function)
        }

    def _reads(self, module: str, function: ast.AST) -> bool:
        called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
        return any(
            self._is_marked(module, node) or _of_re(node) or _parses(node) or _takes(node, called=id(node) in called)
            for node in ast.walk(function)
        )


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("precision_operator"):
            module = node.module.removeprefix("precision_operator").removeprefix(".")
            yield from ((alias.asname or alias.name, (module, alias.name)) for alias in node.names)


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions and methods; what is defined within one belongs to it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _of_re(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _named(node.func.value) == "re"


def _parses(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and (_named(node.value), node.attr) in PARSERS


def _takes(node: ast.AST, *, called: bool) -> bool:
    """``x.annotations`` and ``x.labels``, but for a metric's method; and ``x.get("message")``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("annotations", "labels") and isinstance(node.ctx, ast.Load) and not called
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and any(isinstance(argument, ast.Constant) and argument.value in FIELDS for argument in node.args[:1])
    )


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


@pytest.fixture(scope="module")
def reading() -> set[str]:
    return Product({_module(path): ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}).reading()


@pytest.fixture(scope="module")
def run() -> set[str]:
    """Every function of the operator that the readers run."""
    found: set[tuple[str, str]] = set()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    everything = [*readers().values(), *of_the_cli().values(), *words().values()]
    before = sys.getprofile()
    sys.setprofile(called)
    try:
        for read in everything:
            for text in TEXTS:
                read(text)
    finally:
        sys.setprofile(before)
    ours = ((Path(file), name) for file, name in found if file.startswith(f"{ROOT}/"))
    return {f"{_module(file)}:{name.split('.<locals>')[0]}" for file, name in ours}


def test_whatever_reads_text_of_tenants_is_run_by_a_reader_or_named_with_a_reason(
    reading: set[str], run: set[str]
) -> None:
    named = {name for names in EXCEPTIONS.values() for name in names}
    assert reading - run - named == set(), "add a reader to lab/isolation/readers.py, or the reason why none is needed"


def test_no_exception_is_out_of_date(reading: set[str], run: set[str]) -> None:
    named = {name for names in EXCEPTIONS.values() for name in names}
    assert named - (reading - run) == set()


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n return re.sub('a+', '', x)",
        "import re\n_A = re.compile('a')\n_B = (_A, 1)\ndef f(x):\n return _B[0].match(x)",
        "from precision_operator.contract import MODE\n_M = {MODE}\ndef f(x):\n return x & _M",
        "def f(x):\n return json.loads(x)",
        "def f(x):\n return x.get('message')",
        "def f(sample):\n return sample.labels['pod']",
        "class C:\n def f(self):\n  return [lambda a: a.annotations]",
    ],
)
def test_each_way_to_read_is_recognised(source: str) -> None:
    assert [name.rpartition(":")[2].rpartition(".")[2] for name in Product({"new": ast.parse(source)}).reading()] == [
        "f"
    ]


def test_a_metric_with_labels_reads_nothing() -> None:
    assert not Product({"new": ast.parse("def f(gauge):\n gauge.labels('x').set(1)")}).reading()


def admission_policies() -> Iterator[tuple[str, Mapping[str, object]]]:
    for path in sorted(ADMISSION.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document["kind"].endswith("AdmissionPolicy"):
                yield document["metadata"]["name"], document["spec"]


def _judges_what_is_written(rule: Mapping[str, list[str]]) -> bool:
    return any(r in rule["resources"] and {o, "*"} & set(rule["operations"]) for r, o in WRITTEN)


def test_texts_are_written_past_every_admission_policy_that_reads_some() -> None:
    unmet = set()
    for name, spec in admission_policies():
        constraints = spec["matchConstraints"]
        assert isinstance(constraints, dict)
        expressions = json.dumps({key: value for key, value in spec.items() if key != "matchConstraints"})
        reads = re.search(r"annotations|labels|\benv\b|matches\(", expressions)
        if reads and not any(map(_judges_what_is_written, constraints["resourceRules"])):
            unmet.add(name)
    assert unmet == set(UNWRITTEN)
