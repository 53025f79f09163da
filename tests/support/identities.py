"""Pods with the key of their workload, which is written down here by hand for each."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.bodies import FLEET, Json, owner, pod
from tests.support.recorded_kinds import RECORDED as RECORDED_KINDS
from tests.support.recorded_kinds import recorded

RECORDED = Path(__file__).parent / "pods"
"""Pods that real controllers made, as the API server stored them."""

_RECORDED_KEYS = {
    "jobset": ["jobset.x-k8s.io/JobSet/train"] * 3,
    "trainjob": ["jobset.x-k8s.io/JobSet/train"],
    "kueue-job": ["batch/Job/j"],
    "lws": ["leaderworkerset.x-k8s.io/LeaderWorkerSet/serve"] * 2,
    "pytorchjob": ["kubeflow.org/PyTorchJob/train"] * 2,
    "ray": ["ray.io/RayCluster/rc", "ray.io/RayCluster/rc", "ray.io/RayCluster/rj-raycluster-djs4f"],
}

LABEL = "precision.genesis.ai/workload"
JOBSET = "jobset.sigs.k8s.io/jobset-name"
JOB = "training.kubeflow.org/job-name"
CONTROLLER = "training.kubeflow.org/operator-name"
LWS = "leaderworkerset.sigs.k8s.io/name"
RAY = "ray.io/cluster"
ROLLOUT = "rollouts-pod-template-hash"
HASH = "pod-template-hash"
PYTORCH = {JOB: "pt", CONTROLLER: "pytorchjob-controller"}

_253 = "n" * 63 + "." + "m" * 63 + "." + "o" * 63 + "." + "p" * 61
_63 = "v" * 63


def _replica_set(name: str, api: str = "apps/v1") -> list[Json]:
    return [owner(api, "ReplicaSet", name)]


def _case(labels: dict[str, str], owners: list[Json] | None = None, **metadata: object) -> Json:
    return pod(labels={**FLEET, **labels}, owners=owners, metadata=dict(metadata))


def _labelled() -> dict[str, tuple[Json, str]]:
    everything = {LABEL: "own", JOBSET: "js", **PYTORCH, LWS: "lw", RAY: "rc", ROLLOUT: "r", HASH: "h"}
    return {
        "the workload label beats all others": (_case(everything, _replica_set("x-h")), "label/own"),
        "JobSet beats the rest": (_case({**everything, LABEL: ""}), "jobset.x-k8s.io/JobSet/js"),
        "PyTorchJob beats the rest": (_case({**everything, LABEL: "", JOBSET: ""}), "kubeflow.org/PyTorchJob/pt"),
        "LWS beats the rest": (
            _case({LWS: "lw", RAY: "rc", HASH: "h"}, [owner("apps/v1", "StatefulSet", "lw-0")]),
            "leaderworkerset.x-k8s.io/LeaderWorkerSet/lw",
        ),
        "Ray beats the hashes": (_case({RAY: "rc", HASH: "h"}, _replica_set("x-h")), "ray.io/RayCluster/rc"),
        "the workload label on a Job's pod": (_case({LABEL: _63}, [owner("batch/v1", "Job", "j")]), f"label/{_63}"),
        "an empty workload label": (_case({LABEL: ""}, [owner("batch/v1", "Job", "j")]), "batch/Job/j"),
        "a job name of another training controller": (
            _case({JOB: "tf", CONTROLLER: "tfjob-controller"}, [owner("kubeflow.org/v1", "TFJob", "tf")]),
            "kubeflow.org/TFJob/tf",
        ),
        "a job name without a controller": (_case({JOB: "tf"}, [owner("batch/v1", "Job", "j")]), "batch/Job/j"),
        "a training controller without a job name": (
            _case({CONTROLLER: "pytorchjob-controller"}, [owner("batch/v1", "Job", "j")]),
            "batch/Job/j",
        ),
        "an empty JobSet label": (_case({JOBSET: ""}, [owner("batch/v1", "Job", "j")]), "batch/Job/j"),
        "a bare pod with the label of a JobSet": (_case({JOBSET: "js"}), "jobset.x-k8s.io/JobSet/js"),
    }


def _hashed() -> dict[str, tuple[Json, str]]:
    both = {ROLLOUT: "abc", HASH: "abc"}
    long = _253[:240]
    return {
        "a Deployment": (_case({HASH: "5d4f"}, _replica_set("vit-5d4f")), "apps/Deployment/vit"),
        "a Rollout": (_case({ROLLOUT: "5d4f"}, _replica_set("vit-5d4f")), "argoproj.io/Rollout/vit"),
        "a Rollout beats a Deployment": (_case(both, _replica_set("vit-abc")), "argoproj.io/Rollout/vit"),
        "the rollout hash fits no name": (
            _case({ROLLOUT: "zzz", HASH: "abc"}, _replica_set("vit-abc")),
            "apps/Deployment/vit",
        ),
        "a hash inside the name too": (_case({HASH: "a"}, _replica_set("a-a-a")), "apps/Deployment/a-a"),
        "a bare ReplicaSet": (_case({}, _replica_set("vit")), "apps/ReplicaSet/vit"),
        "a hash that fits no name": (_case({HASH: "zzz"}, _replica_set("vit-abc")), "apps/ReplicaSet/vit-abc"),
        "a hash that is the whole name": (_case({HASH: "abc"}, _replica_set("abc")), "apps/ReplicaSet/abc"),
        "nothing before the hash": (_case({HASH: "abc"}, _replica_set("-abc")), "apps/ReplicaSet/-abc"),
        "an empty hash": (_case({HASH: ""}, _replica_set("vit-")), "apps/ReplicaSet/vit-"),
        "a hash on a Job's pod": (_case({HASH: "abc"}, [owner("batch/v1", "Job", "j-abc")]), "batch/Job/j-abc"),
        "a hash on a bare pod": (_case({HASH: "abc"}, name="x-abc"), "/Pod/x-abc"),
        "a ReplicaSet of another group": (
            _case({HASH: "abc"}, _replica_set("x-abc", "example.com/v1")),
            "example.com/ReplicaSet/x-abc",
        ),
        "a ReplicaSet that is no controller": (
            _case({HASH: "abc"}, [owner("apps/v1", "ReplicaSet", "x-abc", controller=False)]),
            "/Pod/p",
        ),
        "a long Deployment": (
            _case({HASH: "6bcd8b5f4c"}, _replica_set(f"{long}-6bcd8b5f4c")),
            f"apps/Deployment/{long}",
        ),
        "a hash as long as a label": (_case({HASH: _63}, _replica_set(f"v-{_63}")), "apps/Deployment/v"),
    }


def _owned() -> dict[str, tuple[Json, str]]:
    job = owner("batch/v1", "Job", "j")
    return {
        "a Job": (_case({}, [job]), "batch/Job/j"),
        "a StatefulSet": (_case({}, [owner("apps/v1", "StatefulSet", "s")], name="s-0"), "apps/StatefulSet/s"),
        "a controller of the core group": (
            _case({}, [owner("v1", "ReplicationController", "rc")]),
            "/ReplicationController/rc",
        ),
        "an unknown kind": (_case({}, [owner("a.b.example.com/v1beta2", "Thing", "t.u")]), "a.b.example.com/Thing/t.u"),
        "the second owner controls": (
            _case({}, [owner("v1", "ConfigMap", "c", controller=None), job]),
            "batch/Job/j",
        ),
        "many owners, the last controls": (
            _case({}, [*(owner("v1", "ConfigMap", f"c{i}", controller=False) for i in range(50)), job]),
            "batch/Job/j",
        ),
        "no owner controls": (_case({}, [owner("batch/v1", "Job", "j", controller=None)]), "/Pod/p"),
        "an owner with a long name": (_case({}, [owner("batch/v1", "Job", _253)]), f"batch/Job/{_253}"),
        "an owner with a hostile kind": (_case({}, [owner("batch/v1", "Job/x y", "j")]), "batch/Job/x y/j"),
        "a bare pod": (_case({}, name="probe"), "/Pod/probe"),
        "a bare pod with a long name": (_case({}, name=_253), f"/Pod/{_253}"),
        "a pod without labels": (pod(labels={}, metadata={"name": "plain"}), "/Pod/plain"),
        "a bare pod whose name the server makes": (_unnamed(_case({})), "/Pod/"),
        "a Job's pod whose name the server makes": (_unnamed(_case({}, [job])), "batch/Job/j"),
    }


def _unnamed(body: Json) -> Json:
    rest = {key: value for key, value in body["metadata"].items() if key != "name"}
    return {**body, "metadata": {**rest, "generateName": "made-"}}


def _recorded() -> dict[str, tuple[Json, str]]:
    cases = {}
    for kind, keys in _RECORDED_KEYS.items():
        items = json.loads((RECORDED / f"{kind}.json").read_text())["items"]
        for body, key in zip(items, keys, strict=True):
            body["metadata"] = {k: v for k, v in body["metadata"].items() if k not in ("namespace", "uid")}
            cases[f"recorded {kind} {body['metadata']['name']}"] = body, key
    for row in filter(lambda row: row.pod, RECORDED_KINDS.values()):
        body = recorded(row.pod)
        body["metadata"] = {k: v for k, v in body["metadata"].items() if k in ("name", "labels", "ownerReferences")}
        cases[f"recorded {row.pod}"] = {k: v for k, v in body.items() if k != "status"}, row.key
    return cases


def identities() -> dict[str, tuple[Json, str]]:
    """All of them, by what they show."""
    return {**_labelled(), **_hashed(), **_owned(), **_recorded()}
