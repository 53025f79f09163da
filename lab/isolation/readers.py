"""Everything of the operator that reads what a tenant wrote, each as one function of one text.

A reader must return whatever it is given. ``words`` are shown to people or written into our own objects: what they return is
bounded and has no control character. tests/unit/isolation/test_readers_are_complete.py finds what is missing here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from lab.isolation.texts import QUERY_CHARACTERS
from precision_operator.admission.injection import inject
from precision_operator.admission.known import KnownAssignments
from precision_operator.admission.review import patch_for
from precision_operator.api.commands import ANNOTATIONS, REASON_CHARACTERS, Answer, answers
from precision_operator.api.drill import drill_order
from precision_operator.api.injection import parse_refusal
from precision_operator.api.modes import parse_mode
from precision_operator.api.policy import Policy, parse_policy
from precision_operator.api.selector import parse_selector
from precision_operator.api.signals import Signal
from precision_operator.api.text import MESSAGE_CHARACTERS, bounded
from precision_operator.api.wire import duration_seconds, generation_text, parse_time
from precision_operator.contract import (
    ADMITTED,
    DRILL,
    ECHO_NONCE,
    ENABLE,
    ENABLE_ENV,
    INJECT,
    INJECTED,
    MODE,
    MODE_ENV,
    REQUEST,
    REQUEST_FILE,
    STAMP,
    WORKLOAD,
)
from precision_operator.controller.echo import moved_on
from precision_operator.incidents.cost import Cost, with_steps
from precision_operator.incidents.evidence import LABEL_CHARACTERS, SERIES_LIMIT, Question, fitted, keep, series_of
from precision_operator.incidents.logs import excerpt
from precision_operator.incidents.slowness import CHECKS, say
from precision_operator.inventory.caches import WATCHED, Inventory
from precision_operator.kube.answers import error_of, parsed_object
from precision_operator.kube.denials import denial, denying_policies
from precision_operator.kube.port import JOBS, PODS, JsonObject
from precision_operator.receiver.alertmanager import parse_webhook
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.grouping import group, split
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.port import Labels, MetricSource, Sample, Series
from precision_operator.workloads.budgets import Budgets
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.kinds.suspension import LAST_APPLIED, stated_by
from precision_operator.workloads.kinds.table import KINDS
from precision_operator.workloads.reading import parse_admitted, parse_request, read_pod

Json = dict[str, Any]
Reader = Callable[[str], object]

RUN_LABELS = ("torch", "device", "capability", "world_size")
"""What a trainer says of its run, beside the mode."""

_ENV = (ENABLE_ENV, MODE_ENV, "PRECISION_REQUEST_FILE")
_OURS = (REQUEST, ADMITTED, ENABLE, MODE, INJECTED, LAST_APPLIED)


def readers() -> Mapping[str, Reader]:
    """Every reader, by what it reads."""
    return {
        "annotation request": parse_request,
        "annotation admitted": parse_admitted,
        "annotation injected": parse_refusal,
        "annotations of a pod": lambda text: read_pod(pod(annotations=dict.fromkeys(_OURS, text))),
        "labels of a pod": lambda text: read_pod(pod(labels={INJECT: text, WORKLOAD: text, text: text})),
        "environment of a pod": lambda text: read_pod(pod(env=text)),
        "status of a pod": lambda text: read_pod(pod(status=text)),
        "everything of a pod": lambda text: read_pod(filled(pod(), text)),
        "everything of a pod, for the inventory": _observed,
        "everything of a workload": lambda text: [kind.read(filled(workload(), text)) for kind in KINDS],
        "everything of a policy": _policy,
        "annotations of a policy": lambda text: answers(_commanded(text).annotations),
        "a drill of a policy": lambda text: drill_order({DRILL: text}, why_characters=REASON_CHARACTERS),
        "a selector": lambda text: parse_selector(filled(workload()["spec"]["selector"], text)).matches({text: text}),
        "a workload's key": lambda text: workload_key(filled(pod(labels={WORKLOAD: text}), text)),
        "a disruption budget": lambda text: _kept_by(filled(_budget(), text), filled(pod(), text)),
        "a pod that a disruption budget may keep": lambda text: _kept_by(_budget(), _running(text)),
        "a workload's last manifest": _last_applied,
        "a pod under admission": _admitted,
        "a pod under injection": _injected,
        "a policy under admission": _echoed,
        "annotations of a policy that admission has seen": lambda text: moved_on(policy(text), policy("")),
        "labels of a series": _grouped,
        "labels of a run": _described,
        "labels of evidence": _kept,
        "labels of a slow trainer": lambda text: say(
            CHECKS[0], [Sample(Labels(pod="p", batch_size=text), 1.0)], {"p": "w"}
        ),
        "labels of a pod that a rollback restarted": lambda text: with_steps(
            Cost(), _steps(text), _steps(text), pods={text: "w"}, since=1.0
        ),
        "labels of an alert": _alert,
        "a denial": lambda text: (denying_policies(ValueError(text)), denial(ValueError(text))),
        "an answer of the API server": lambda text: parsed_object(text.encode(errors="replace")),
        "a mode": parse_mode,
        "a time": parse_time,
        "a duration": lambda text: duration_seconds(text, 1.0),
        "a generation": generation_text,
        "a query of a policy": _query,
    }


def of_the_cli() -> Mapping[str, Reader]:
    """What reads it in the process of a person, with that person's rights: nobody else waits for it."""
    return {"lines of a log": excerpt}


def words() -> Mapping[str, Callable[[str], str]]:
    """What becomes words for people, by what it is."""
    return {
        "a bounded text": bounded,
        "the reason of a command": lambda text: _answer(text).message,
        "who gave a command": lambda text: _answer(text).by or "",
        "an alert that is refused": _refused,
        "an error of the API server": lambda text: str(error_of("patch", 403, {"message": text, "reason": text})),
        "a finalizer": lambda text: read_pod(filled(pod(), text)).view.finalizer,
    }


def pod(
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    env: str = "",
    status: str = "",
) -> Json:
    """A pod with what the operator reads."""
    state = {"waiting": {"reason": status, "message": status}, "terminated": {"exitCode": 1, "reason": status}}
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u",
            "labels": {"app": "p", "apps.kubernetes.io/pod-index": "0", **(labels or {})},
            "annotations": dict(annotations or {}),
            "creationTimestamp": "2026-11-23T00:00:00Z",
            "deletionTimestamp": "2026-11-23T00:00:00Z",
            "finalizers": ["example.com/f"],
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
            ],
        },
        "spec": {
            "nodeName": "n",
            "nodeSelector": {"pool": "a"},
            "containers": [
                {
                    "name": "c",
                    "env": [{"name": name, "value": env} for name in _ENV],
                    "volumeMounts": [{"name": "v", "mountPath": "/etc/precision"}],
                }
            ],
            "volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "f"}}]}}],
        },
        "status": {
            "phase": "Running",
            "reason": status,
            "message": status,
            "conditions": [{"type": "Ready", "status": "True", "reason": status, "message": status}],
            "containerStatuses": [{"name": "c", "state": state, "lastState": state}],
        },
    }


def workload() -> Json:
    """A workload with what the operator reads of any kind."""
    return {
        "metadata": {
            "name": "w",
            "namespace": "ns",
            "uid": "u",
            "labels": {"app": "w"},
            "annotations": {LAST_APPLIED: "{}"},
            "managedFields": [{"manager": "m", "operation": "Update", "fieldsV1": {"f:spec": {"f:suspend": {}}}}],
            "ownerReferences": [_owner("TrainJob")],
        },
        "spec": {
            "suspend": True,
            "completions": 3,
            "parallelism": 2,
            "managedBy": "kubernetes.io/job-controller",
            "selector": {
                "matchLabels": {"app": "w"},
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["w"]}],
            },
            "template": {key: value for key, value in pod().items() if key != "status"},
        },
        "status": {
            "failedIndexes": "1",
            "currentRevision": "r",
            "updateRevision": "r",
            "conditions": [{"type": "Failed"}],
        },
    }


def _owner(kind: str) -> Json:
    return {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": True}


def filled(body: Json, text: str) -> Json:
    """The body with the text in place of every string in it, and for keys that are free also as a key."""
    return cast(Json, _filled(body, text))


def _filled(value: object, text: str) -> object:
    if isinstance(value, dict):
        found = {key: _filled(item, text) for key, item in value.items()}
        return {**found, text: text} if value and all(isinstance(item, str) for item in value.values()) else found
    if isinstance(value, list):
        return [_filled(item, text) for item in value]
    return text if isinstance(value, str) else value


def policy(text: str) -> Json:
    """A policy whose commands, and whose free strings, are this text."""
    spec: Json = {"selector": workload()["spec"]["selector"], "suspend": False, "prometheusRef": {"name": "x"}}
    annotations = {name: text for command in ANNOTATIONS for name in (command, f"{command}{STAMP}")}
    return {"metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations}, "spec": spec}


def _commanded(text: str) -> Policy:
    return parse_policy(policy(text))


def _policy(text: str) -> object:
    return parse_policy(filled(policy(text), text))


def _answer(text: str) -> Answer:
    return answers(_commanded(text).annotations)[0]


def _observed(text: str) -> object:
    """The inventory after one event of each kind; each object is there."""
    inventory = Inventory()
    for resource in WATCHED:
        body = filled(pod() if resource == PODS else workload(), text)
        body["metadata"] |= {"uid": resource.plural, "namespace": "ns", "name": "n"}
        body["metadata"]["ownerReferences"] = []
        body["status"]["phase"] = "Running"
        body["status"]["conditions"] = []
        inventory.observe(resource, body, deleted=False)
        if inventory.count(resource) != 1:
            raise LookupError(f"{resource.plural}: the object was lost")
    everything = parse_selector({})
    inventory.unsupported("ns", everything), inventory.selected("ns", everything)
    return inventory.count(JOBS)


def _budget() -> Json:
    return {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "p"}}}, "status": {}}


def _kept_by(budget: Json, pod: Json) -> object:
    budgets = Budgets()
    budgets.add(budget)
    return budgets.against([pod])


def _running(text: str) -> Json:
    """A pod that can be disrupted, with this text among its labels."""
    body = pod(labels={text: text, "note": text})
    del body["metadata"]["deletionTimestamp"]
    return body


def _last_applied(text: str) -> object:
    """As it stands there: with the word that it is read for."""
    body = workload()
    for raw in (text, json.dumps({"suspend": text})):
        body["metadata"]["annotations"] = {LAST_APPLIED: raw}
        stated_by(body)
    return stated_by(body)


def _query(text: str) -> object:
    """As a pass asks for it, on the event loop, where policies may bring PromQL; refused ones stay policies."""
    plan = EvaluationPlan("x", "ns", 300.0, 20, 15.0, raw=(("overflow", text[:QUERY_CHARACTERS]),))
    return Evaluator({"x": cast(MetricSource, None)}, {}, allow_raw=True).problem(plan)


def _known() -> KnownAssignments:
    known = KnownAssignments()
    metadata: JsonObject = {"name": "fleet", "namespace": "ns", "uid": "u"}
    selector: JsonObject = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    assignment: JsonObject = {
        "metadata": metadata,
        "selector": selector,
        "generation": 1,
        "default": "fp32",
        "enforce": True,
    }
    known.observe(assignment, deleted=False)
    return known


def _admitted(text: str) -> object:
    body = pod(annotations=dict.fromkeys(_OURS, text), labels={INJECT: "c"}, env=text)
    body["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] = text
    request = {"namespace": "ns", "object": body, "resource": {"resource": "pods"}, "operation": "CREATE"}
    return json.dumps(patch_for(request, _known()))


def _injected(text: str) -> object:
    """Into a container that has nothing of ours yet, that mounts something elsewhere, and that has our mount."""
    found = []
    for mount in ({}, {"name": text, "mountPath": text}, {"name": text, "mountPath": REQUEST_FILE.rpartition("/")[0]}):
        body = pod(annotations={"note": text}, labels={INJECT: "c"})
        body["spec"]["containers"][0] |= {
            "env": [{"name": text, "value": text}],
            "volumeMounts": [mount] if mount else [],
        }
        body["spec"]["volumes"] = [{"name": text, "downwardAPI": {"items": [{"path": text}]}}]
        found.append(inject(body))
    return json.dumps(found)


def _echoed(text: str) -> object:
    body = policy(text)
    body["metadata"] |= {"name": "fleet", "annotations": {ECHO_NONCE: text}}
    request = {
        "namespace": "ns",
        "object": body,
        "resource": {"resource": "precisionpolicies"},
        "operation": "UPDATE",
        "dryRun": True,
    }
    return json.dumps(patch_for(request, _known()))


def _grouped(text: str) -> object:
    samples = [
        Sample(Labels(pod="p", mode=text, generation=text), -1.0),
        Sample(Labels(pod=text, mode="fp16"), -1.0),
    ]
    answers = {name: split(name, samples) for name in ("ack", "overflow")}
    return group(answers, {"overflow": Signal.OVERFLOW}, at=0.0)


def _described(text: str) -> object:
    labels = msgspec.convert(dict.fromkeys(RUN_LABELS, text) | {"pod": "p"}, Labels)
    said = group({"run": split("run", [Sample(labels, 1.0)])}, {}, at=0.0).pods["p"].runs_on
    if said is None or max(map(len, (said.torch, said.device, said.capability))) > MESSAGE_CHARACTERS:
        raise ValueError("expected a bounded description of the run")
    return said


def _kept(text: str) -> object:
    """Of as many series as evidence keeps, of a day; what comes out fits an incident."""
    labels = [{"pod": f"p-{n}", "mode": text, "torch": text, text: str(n)} for n in range(SERIES_LIMIT + 1)]
    answer = [Series(found, ((0.0, 1.0),)) for found in labels]
    kept = keep(Question("x", "x", 0.0, 60.0), answer, first=["p-1"])
    found = series_of(kept)
    if len(found) != SERIES_LIMIT:
        raise LookupError("a series was lost")
    if max(len(word) for series in found for pair in series.labels.items() for word in pair) > LABEL_CHARACTERS:
        raise ValueError("expected bounded labels: an incident holds them")
    (fewer,) = fitted([kept], len(kept.data))
    if series_of(fewer) != found[: fewer.series]:
        raise LookupError("thinned evidence has other series")
    return kept


def _steps(text: str) -> list[Series]:
    return [Series({"pod": text}, ((0.0, 1.0), (2.0, 3.0)))]


def _alert(text: str) -> object:
    labels = dict.fromkeys(("namespace", "precisionpolicy", "deployment", "job_name", "pod"), text)
    return parse_webhook({"version": "4", "alerts": [{"labels": labels, "annotations": labels}]})


def _refused(text: str) -> str:
    try:
        parse_webhook({"version": text, "alerts": []})
    except ValueError as error:
        return str(error)
    return ""
