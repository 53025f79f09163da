"""Make everything that is derived: the CRDs, the recording rules, the dashboards, the chart's version, its value `config`
with values.schema.json, its and the package's copies, docs/reference and manifests/base/operator.yaml.

    python manifests/generate.py            write
    python manifests/generate.py --check    write nothing; exit 1 and name what is out of date

Sources: the version in operator/precision_operator/__init__.py, its reasons, its kinds, its settings.py, and the
models in its api/; manifests/admission/, manifests/webhook/, manifests/monitoring/, manifests/dashboards/,
manifests/values.chart.schema.json (the schema of what the chart alone knows) and helm/precision-operator (values.yaml but
for `config`, templates). Needs `helm` (the laboratory's, or from PATH); without it, --check leaves out
manifests/base/operator.yaml, which is rendered from the chart.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]  # the models of this checkout, whatever is installed

from manifests.crds import all_crds  # noqa: E402
from manifests.dashboards import DASHBOARDS  # noqa: E402
from manifests.recording import with_records  # noqa: E402
from manifests.values import values_schema, with_config  # noqa: E402
from precision_operator.kube.port import Resource  # noqa: E402
from precision_operator.reasons import Reason, ReasonSeverity  # noqa: E402
from precision_operator.reasons.steps import OF_FLEET  # noqa: E402
from precision_operator.workloads.kinds.pod import POD  # noqa: E402
from precision_operator.workloads.kinds.table import KINDS  # noqa: E402

CHART = ROOT / "helm" / "precision-operator"
SHIPPED = ROOT / "operator" / "precision_operator" / "admission" / "shipped"
CRD = ROOT / "crds" / "precision.genesis.ai_precisionpolicies.yaml"
VERSION = ROOT / "operator" / "precision_operator" / "__init__.py"
CHART_SCHEMA = ROOT / "manifests" / "values.chart.schema.json"
ALERTS = ROOT / "manifests" / "monitoring" / "alerts.yaml"
DASHBOARDS_MADE = ROOT / "manifests" / "monitoring" / "dashboards"
GENERATED = "by `make generate`; do not edit."


def helm() -> Path | None:
    """The laboratory's helm, else the one in PATH."""
    built = ROOT / "build" / "bin" / "helm"
    found = built if built.exists() else shutil.which("helm")
    return Path(found) if found else None


def chart() -> str:
    """Chart.yaml with the version of the product, for the chart as for the image that it names."""
    found = re.search(r'^__version__ = "(.+)"$', VERSION.read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit(f'expected __version__ = "…" in {VERSION}, found none: put it back')
    return re.sub(
        r"^(version|appVersion): .*$", rf"\1: {found[1]}", (CHART / "Chart.yaml").read_text(), flags=re.MULTILINE
    )


def copies() -> dict[Path, str]:
    """Helm reads only files inside the chart, so it holds copies of what other tools read where it stands."""
    admission = {path.name: path.read_text() for path in sorted((ROOT / "manifests" / "admission").glob("*.yaml"))}
    webhook = {path.name: path.read_text() for path in sorted((ROOT / "manifests" / "webhook").glob("*.yaml"))}
    # the operator compares what is installed with its own
    found = {
        folder / name: text
        for folders, texts in (
            ((CHART / "files" / "admission", SHIPPED), admission),
            ((CHART / "files" / "webhook", SHIPPED / "webhook"), webhook),
        )
        for folder in folders
        for name, text in texts.items()
    }
    # `kubectl precision lint` checks a file without a cluster and without this checkout
    packaged = ROOT / "operator" / "precision_operator" / "cli" / "precisionpolicies.yaml"
    crds = {CHART / "files" / "crds" / path.name: path.read_text() for path in sorted(CRD.parent.glob("*.yaml"))}
    monitoring = {CHART / "files" / "monitoring" / ALERTS.name: ALERTS.read_text()}
    # for the chart, and for people who import them by hand
    folders = (CHART / "files" / "dashboards", DASHBOARDS_MADE)
    dashboards = {folder / name: text for folder in folders for name, text in DASHBOARDS.items()}
    rights = {CHART / "files" / "kinds.yaml": kind_rules(kind.resource for kind in KINDS if kind is not POD)}
    return {**crds, packaged: CRD.read_text(), **found, **monitoring, **dashboards, **rights}


def kind_rules(resources: Iterable[Resource]) -> str:
    """The operator's rights on kinds of workloads; on pods it has more, which the chart's template names."""
    plurals: dict[str, list[str]] = {}
    for resource in resources:
        plurals.setdefault(resource.group or '""', []).append(resource.plural)
    return "".join(
        f"- apiGroups: [{group}]\n  resources: [{', '.join(found)}]\n  verbs: [list, watch]\n"
        for group, found in plurals.items()
    )


def rendered(program: Path) -> str:
    """What the chart gives with its defaults, as the release precision-operator in precision-system."""
    served = ("MutatingAdmissionPolicy", "MutatingWebhookConfiguration")
    command = [
        *(str(program), "template", "precision-operator", str(CHART), "--namespace", "precision-system"),
        *("--kube-version", "1.36.0"),
        *(part for kind in served for part in ("--api-versions", f"admissionregistration.k8s.io/v1/{kind}")),
        *("--set", "image.registry=registry", "--no-hooks"),
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    output = output.replace('image: "registry/', 'image: "')  # an overlay names it: kustomize's `images`
    # no Helm release stands behind these: leave out what would say so
    without = re.sub(r"^ *(helm\.sh/chart|helm\.sh/resource-policy): .*\n", "", output, flags=re.MULTILINE)
    without = re.sub(r"^( *)annotations:\n(?!\1 +\S)", "", without, flags=re.MULTILINE)
    without = without.replace("app.kubernetes.io/managed-by: Helm", "app.kubernetes.io/managed-by: kustomize")
    return f"# Made {GENERATED}\n{without}"


def prose(text: str) -> str:
    """A paragraph as pages wrap it."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def field_rows(node: dict[str, Any], path: str, depth: int) -> list[str]:
    """One table row for each field below a node of the schema."""
    rows: list[str] = []
    required = node.get("required", [])
    for name, child in node.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        items = child.get("items", {})
        kind = child["type"] + (f" of {items['type']}" if items else "")
        if values := child.get("enum"):
            kind = " \\| ".join(f"`{value}`" for value in values)
        if "additionalProperties" in child:
            kind = "map of string"
        default = child.get("default")
        if default is None or default == {} or isinstance(default, list):
            shown = "required" if name in required else ""
        else:
            shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
        text = " ".join(child.get("description", "").split())
        rows.append(f"| `{where}` | {kind} | {shown} | {text} |")
        rows += field_rows(child, where, depth + 1)
        if items.get("properties"):
            rows += field_rows(items, f"{where}[]", depth + 1)
    return rows


def rule_rows(node: dict[str, Any], path: str) -> list[str]:
    """One table row for each CEL rule of the schema."""
    rows = [f"| `{path}` | {rule['message']} |" for rule in node.get("x-kubernetes-validations", [])]
    for name, child in node.get("properties", {}).items():
        rows += rule_rows(child, f"{path}.{name}")
    if node.get("items"):
        rows += rule_rows(node["items"], f"{path}[]")
    return rows


def api_reference() -> str:
    """docs/reference/precisionpolicy.md from the CRD."""
    version = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    head = "| field | type | default | meaning |\n|---|---|---|---|\n"
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    return "\n".join(
        [
            f"<!-- Made from operator/precision_operator/api {GENERATED} -->",
            "# PrecisionPolicy (precision.genesis.ai/v1alpha1)",
            "",
            prose(schema["description"]),
            "",
            prose(
                "Short name `ppol`, category `genesis`, namespaced. "
                "Durations are strings like `500ms`, `15s`, `5m`, `1h30m`."
            ),
            "",
            "## spec",
            "",
            head + "\n".join(field_rows(spec, "", 0)),
            "",
            "## What is refused, and what the API server says",
            "",
            "| field | message |\n|---|---|\n" + "\n".join(rule_rows(spec, "spec")),
            "",
            "## status",
            "",
            prose(status["description"]),
            "",
            head + "\n".join(field_rows(status, "", 0)),
            "",
        ]
    )


def value_rows(text: str) -> list[str]:
    """One table row for each value that a `# --` comment stands in front of."""
    values = yaml.safe_load(text)
    rows: list[str] = []
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# -- "):
            comment = [stripped[5:]]
        elif stripped.startswith("#") and comment:
            comment.append(stripped[1:].strip())
        elif match := re.match(r"^( *)([A-Za-z]+):", line):
            indent, key = len(match[1]), match[2]
            path = [*[entry for entry in path if entry[0] < indent], (indent, key)]
            if comment:
                value: Any = values
                for _, name in path:
                    value = value[name]
                flow = yaml.safe_dump(value, default_flow_style=True, width=1000).replace("\n...", "").strip()
                rows.append(f"| `{'.'.join(name for _, name in path)}` | `{flow}` | {' '.join(comment)} |")
            comment = []
        else:
            comment = []
    return rows


def values_reference() -> str:
    """docs/reference/chart-values.md from the chart's values.yaml."""
    rows = value_rows((CHART / "values.yaml").read_text())
    return "\n".join(
        [
            f"<!-- Made from helm/precision-operator/values.yaml {GENERATED} -->",
            "# Values of the precision-operator chart",
            "",
            "Whatever is not listed here is refused by values.schema.json.",
            "",
            "| value | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def reasons_reference() -> str:
    """docs/reference/reasons.md from the table of reasons."""
    lines = [
        f"<!-- Made from operator/precision_operator/reasons {GENERATED} -->",
        "# Reasons",
        "",
        prose(
            "The word in a condition, an Event, the label `reason` of a metric and the field `reason` of a log line. "
            "`kubectl precision explain` shows those of one policy, with its name filled in."
        ),
        "",
    ]
    for severity in ReasonSeverity:
        rows = sorted((reason for reason in Reason if reason.severity is severity), key=str)
        lines += [f"## {severity}", "", severity.asks, "", "| reason | meaning | what to do |", "|---|---|---|"]
        lines += [f"| `{reason}` | {_cell(reason.meaning)} | {_todo(reason)} |" for reason in rows]
        lines.append("")
    return "\n".join(lines)


def _todo(reason: Reason) -> str:
    steps = (re.sub(r"`!kubectl ", "`kubectl ", step) for step in reason.steps)
    names = {"{name}": "NAME", "{missing}": "ITEM…", OF_FLEET: "-l SELECTOR"}
    whole = (
        reduce(lambda text, name: text.replace(name, names[name]), names, re.sub(r"`!", "`kubectl precision ", step))
        for step in steps
    )
    return "<br>".join(map(_cell, whole))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<signal>", "SIGNAL")


def main() -> int:
    """Write or check; returns the exit status."""
    check = "--check" in sys.argv[1:]
    wrong: list[str] = []

    def settle(path: Path, content: str) -> None:
        if path.exists() and path.read_text() == content:
            return
        wrong.append(str(path.relative_to(ROOT)))
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    settle(CHART / "Chart.yaml", chart())  # first: what is rendered has its version
    settle(CHART / "values.yaml", with_config((CHART / "values.yaml").read_text()))  # before what is read from it
    settle(CHART / "values.schema.json", values_schema(CHART_SCHEMA.read_text()))
    for crd in all_crds():
        settle(CRD.parent / crd.file, crd.text)  # before their copies
    settle(ALERTS, with_records(ALERTS.read_text()))  # before its copy
    expected = copies()
    for path, content in expected.items():
        settle(path, content)
    for path in (
        *filter(Path.is_file, (CHART / "files").rglob("*")),
        *SHIPPED.rglob("*.yaml"),
        *DASHBOARDS_MADE.glob("*.json"),
    ):
        if path not in expected:
            wrong.append(str(path.relative_to(ROOT)))
            if not check:
                path.unlink()
    settle(ROOT / "docs" / "reference" / "precisionpolicy.md", api_reference())
    settle(ROOT / "docs" / "reference" / "chart-values.md", values_reference())
    settle(ROOT / "docs" / "reference" / "reasons.md", reasons_reference())
    program = helm()
    if program is not None:
        settle(ROOT / "manifests" / "base" / "operator.yaml", rendered(program))  # last: it reads the chart's copies
    else:
        sys.stderr.write(
            "helm not found: build the laboratory's (lab/README.md), or put Helm 3.14 or later into PATH\n"
        )
        if not check:
            return 1
    for name in wrong:
        sys.stderr.write(f"{'out of date' if check else 'wrote'}: {name}\n")
    return 1 if check and wrong else 0


if __name__ == "__main__":
    sys.exit(main())
