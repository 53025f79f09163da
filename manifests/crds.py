"""The CRDs: what they are called and show, with the schemas of the models."""

from __future__ import annotations

from dataclasses import dataclass, replace

import yaml

from manifests.schema import Json, Schema
from precision_operator.api.fields import Field
from precision_operator.api.spec import SPEC, PolicySpec
from precision_operator.api.state import ASSIGNMENT, State
from precision_operator.api.summary import STATUS, Summary
from precision_operator.incidents.report import Report


@dataclass(frozen=True)
class Column:
    """What `kubectl get` shows."""

    name: str
    path: str
    text: str
    kind: str = "string"
    wide: bool = False
    """Only with -o wide."""

    @property
    def json(self) -> Json:
        """As the CRD has it."""
        found: Json = {"name": self.name, "type": self.kind, "jsonPath": self.path}
        return found | ({"priority": 1} if self.wide else {}) | ({"description": self.text} if self.text else {})


AGE = Column("Age", ".metadata.creationTimestamp", "", "date")


@dataclass(frozen=True)
class Crd:
    """One CRD. ``schema`` has its own fields; those that every object has are added."""

    kind: str
    short: str
    head: str
    columns: tuple[Column, ...]
    schema: Json
    status: bool = False

    @property
    def file(self) -> str:
        """Its file's name."""
        return f"{GROUP}_{self.kind.lower().removesuffix('y')}{'ies' if self.kind.endswith('y') else 's'}.yaml"

    @property
    def text(self) -> str:
        """The file."""
        plural = self.file.removeprefix(f"{GROUP}_").removesuffix(".yaml")
        names = {
            "kind": self.kind,
            "listKind": f"{self.kind}List",
            "plural": plural,
            "singular": self.kind.lower(),
            "shortNames": [self.short],
            "categories": ["genesis"],
        }
        version: Json = {"name": VERSION, "served": True, "storage": True}
        version |= {"subresources": {"status": {}}} if self.status else {}
        version["additionalPrinterColumns"] = [column.json for column in self.columns]
        version["schema"] = {"openAPIV3Schema": self._whole()}
        labels = {"app.kubernetes.io/name": "precision-operator", "app.kubernetes.io/part-of": "genesis-precision"}
        body = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{GROUP}", "labels": labels},
            "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
        }
        text = yaml.dump(body, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
        return "".join(f"# {line}\n" for line in (*self.head.splitlines(), GENERATED)) + text

    def _whole(self) -> Json:
        every = {
            "apiVersion": {"type": "string", "description": f"{GROUP}/{VERSION}"},
            "kind": {"type": "string", "description": self.kind},
            "metadata": {"type": "object"},
        }
        return self.schema | {"properties": every | self.schema["properties"]}


GROUP, VERSION = "precision.genesis.ai", "v1alpha1"
GENERATED = "Made from operator/precision_operator/api by `make generate`; do not edit."


class _Dumper(yaml.SafeDumper):
    """Without anchors: what is equal stands twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def policies() -> Crd:
    """PrecisionPolicy."""
    spec = Schema(defaults=True).model(PolicySpec, SPEC, "")
    # Before the operator's first write kstatus must not take the policy for current.
    status = Schema(defaults=False).model(Summary, STATUS, "") | {"default": {"observedGeneration": -1}}
    text = (
        "A PrecisionPolicy moves the training workloads that it selects onto a lower precision in steps, each promoted by "
        "evidence from Prometheus, keeps watching them there, and takes them back to the fallback on overflow, divergence, "
        "failures, non-finite losses or slow training. It selects workloads of its own namespace only and holds no address, "
        "header or credential."
    )
    enforced = '.status.conditions[?(@.type=="AdmissionEnforced")].status'
    return Crd(
        kind="PrecisionPolicy",
        short="ppol",
        head="What people write to the operator: `kubectl explain ppol.spec --recursive`.",
        columns=(
            Column("Precision", ".status.precision", "Mode that the fleet is being held to."),
            Column("Phase", ".status.phase", "Where the policy stands."),
            Column("Step", ".status.step", "Step of the rollout and its weight."),
            Column("Moved", ".status.progress", "Workloads that have moved / all of them."),
            Column("Held", ".status.held", "Workloads that were rolled back by themselves.", "integer", wide=True),
            Column(
                "Enforced", enforced, "Whether new pods get the mode that is assigned to their workload.", wide=True
            ),
            Column("Since", ".status.phaseSince", "How long it has been in this phase.", "date"),
            Column("Reason", ".status.reason", "Why it stands there.", wide=True),
            AGE,
        ),
        schema={
            "type": "object",
            "description": text,
            "required": ["spec"],
            "properties": {"spec": spec, "status": status},
        },
        status=True,
    )


def assignments() -> Crd:
    """PrecisionAssignment."""
    text = (
        "A PrecisionAssignment gives each workload of a PrecisionPolicy its mode. It has the policy's name and namespace. "
        "Admission gives new pods the mode that stands here; the operator gives it to running pods. It is written by the "
        "operator alone. To release what a deleted policy holds: kubectl delete precisionassignment NAME."
    )
    return Crd(
        kind="PrecisionAssignment",
        short="passign",
        head=(
            "The operator's own record: which mode each workload of a policy has, and how far its work is. It alone\n"
            "writes it. Modes and record are one object without a status subresource: they change in one write, and a\n"
            "backup restores both."
        ),
        columns=(
            Column("Phase", ".state.phase", "Where the policy stands."),
            Column("Default", ".default", "Mode of every workload that is not listed."),
            Column("Enforce", ".enforce", "Whether admission gives new pods their mode.", "boolean"),
            AGE,
        ),
        schema=Schema(defaults=False).model(State, replace(ASSIGNMENT, text=text), ""),
    )


def incidents() -> Crd:
    """PrecisionIncident."""
    text = (
        "A PrecisionIncident is the operator's report of one rollback: timeline with deadlines, the verification "
        "checklist, the questions of the root-cause analysis, the messages, the metrics around the breach, and the "
        "decisions with their inputs. It outlives its policy."
    )
    report = Schema(defaults=False).model(
        Report, Field("The report. The operator writes it until phase is Closed."), ""
    )
    return Crd(
        kind="PrecisionIncident",
        short="pinc",
        head="What the operator keeps of a rollback. It writes these, people read them: `kubectl precision incident`.",
        columns=(
            Column("Policy", ".report.policy", "Policy that rolled back."),
            Column("Severity", ".report.severity", "How urgent it was."),
            Column("Scope", ".report.scope", "How far it reached."),
            Column("Phase", ".report.phase", "Where the incident stands."),
            Column("Reason", ".report.reason", "What called for it."),
            Column("Decided", ".report.stages.decidedAt", "When it was decided.", "date"),
            Column(
                *("Fallback", ".report.stages.lastAckAt", "When the last trainer reported the fallback.", "date"),
                wide=True,
            ),
        ),
        schema={"type": "object", "description": text, "required": ["report"], "properties": {"report": report}},
    )


def all_crds() -> tuple[Crd, ...]:
    """Every CRD."""
    return (policies(), assignments(), incidents())
