"""The gate on the real API server: what a closed one does to new pods, and that nothing odd ever makes it refuse one."""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for

Json = dict[str, Any]
GATE = Path(__file__).parents[2] / "manifests" / "admission" / "gate.yaml"
PREFIX = "precision.genesis.ai/"
FLEET = {"app": "trainer"}

pytestmark = pytest.mark.usefixtures("strict_gate")


# ---- building blocks


def annotated(field: str) -> Json:
    return {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}{field}']"}}}


FROM_ANNOTATIONS = [
    {"name": "ENABLE_FP16_TRAINING", **annotated("enable-fp16")},
    {"name": "PRECISION_MODE", **annotated("mode")},
]
REQUEST_VOLUME = {
    "name": "precision",
    "downwardAPI": {
        "items": [{"path": "request", "fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}request']"}}]
    },
}
FROM_CONFIG_MAP = {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}


def literal(value: str, mode: str | None = None) -> list[Json]:
    return [
        {"name": "ENABLE_FP16_TRAINING", "value": value},
        *([{"name": "PRECISION_MODE", "value": mode}] if mode else []),
    ]


def container(name: str = "trainer", **fields: object) -> Json:
    return {"name": name, "image": "trainer", **fields}


def pod(*containers: Json, labels: Json | None = FLEET, annotations: Json | None = None, **spec: object) -> Json:
    metadata: Json = {"name": f"p-{uuid.uuid4().hex[:6]}"}
    if labels is not None:
        metadata["labels"] = labels
    if annotations is not None:
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def hot_pod(*, annotations: Json | None = None, labels: Json | None = FLEET) -> Json:
    mounts = [{"name": "precision", "mountPath": "/etc/precision"}]
    return pod(
        container(env=FROM_ANNOTATIONS, volumeMounts=mounts),
        annotations=annotations,
        labels=labels,
        volumes=[REQUEST_VOLUME],
    )


def request(generation: int, mode: str) -> str:
    return json.dumps({"generation": generation, "mode": mode}, separators=(",", ":"))


def mine(created: Json) -> Json:
    """Our annotations on a pod, without the prefix."""
    found = created["metadata"].get("annotations", {})
    return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}


def gated(generation: int, mode: str) -> Json:
    enabled = "false" if mode == "fp32" else "true"
    return {"request": request(generation, mode), "enable-fp16": enabled, "mode": mode}


def env(created: Json, index: int = 0, kind: str = "containers") -> list[Json]:
    found: list[Json] = created["spec"][kind][index].get("env", [])
    return found


class Api:
    """The API server over one kept-alive connection: a pod is tried in milliseconds."""

    def __init__(self, kubeconfig: Path, directory: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.server = cluster["server"]
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = self._file(directory / "ca.crt", cluster["certificate-authority-data"])
        self._session.cert = (
            self._file(directory / "user.crt", user["client-certificate-data"]),
            self._file(directory / "user.key", user["client-key-data"]),
        )

    @staticmethod
    def _file(path: Path, encoded: str) -> str:
        path.touch(mode=0o600)
        path.write_bytes(base64.b64decode(encoded))
        return str(path)

    def __call__(self, method: str, path: str, body: object = None, *, patch: str = "merge-patch") -> requests.Response:
        kind = f"application/{patch}+json" if method == "PATCH" else "application/json"
        return self._session.request(
            method, self.server + path, data=json.dumps(body), headers={"Content-Type": kind}, timeout=30
        )

    def made(self, method: str, path: str, body: object = None) -> Json:
        """The object of an answer that must be a good one."""
        answer = self(method, path, body)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        found: Json = answer.json()
        return found

    def close(self) -> None:
        self._session.close()


class Fleet:
    """A namespace with policies in it, in which pods are tried."""

    def __init__(self, api: Api, namespace: str | None = None) -> None:
        self.api = api
        self.namespace = namespace or f"gate-{uuid.uuid4().hex[:8]}"
        self._policies = f"/apis/precision.genesis.ai/v1alpha1/namespaces/{self.namespace}/precisionpolicies"
        if namespace is None:
            api.made("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
            account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
            wait_for(lambda: api("GET", account).ok, what="the default ServiceAccount", seconds=30, every=0.02)

    def bare_policy(self, name: str, spec: Json) -> None:
        """A policy without any status."""
        body = {
            "apiVersion": "precision.genesis.ai/v1alpha1",
            "kind": "PrecisionPolicy",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.api.made("POST", self._policies, body)

    def policy(self, name: str = "p", *, selector: Json | None = None, **status: object) -> None:
        """A policy whose gate is closed, unless the status says otherwise."""
        self.bare_policy(name, {"selector": selector or {"matchLabels": FLEET}})
        self.status(name, **{"gate": "Closed", "generation": 17, "fallback": "fp32", **status})

    def status(self, name: str = "p", **status: object) -> None:
        self.api.made("PATCH", f"{self._policies}/{name}/status", {"status": status})

    def try_pod(self, body: Json) -> Json:
        """What the pod would become; fails where it is refused."""
        return self.api.made("POST", f"/api/v1/namespaces/{self.namespace}/pods?dryRun=All", body)

    def wait(self, body: Json, seen: Callable[[Json], bool], what: str) -> None:
        wait_for(lambda: seen(self.try_pod(body)), what=what, seconds=30, every=0.02)

    def wait_closed(self) -> None:
        """Until the API server's admission has seen the gate: its watch is behind by milliseconds."""
        self.wait(pod(), lambda created: bool(mine(created)), "the gate to close")

    def leave(self) -> None:
        self.api.made("DELETE", f"/api/v1/namespaces/{self.namespace}")


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    found = Api(control_plane.kubeconfig, tmp_path_factory.mktemp("api"))
    yield found
    found.close()


@pytest.fixture
def fleet(api: Api) -> Iterator[Fleet]:
    found = Fleet(api)
    yield found
    found.leave()


@pytest.fixture(scope="module")
def strict_gate(api: Api, kubectl: Kubectl) -> Iterator[None]:
    """The shipped gate with failurePolicy Fail: any error in its expressions refuses the pod, and so fails the test."""
    documents = list(yaml.safe_load_all(GATE.read_text()))
    strict = json.loads(json.dumps(documents))
    strict[0]["spec"]["failurePolicy"] = "Fail"
    # A fault of the strict one only, to see that it is the one in force: Ignore would let this pod pass.
    strict[0]["spec"]["matchConditions"].append(
        {"name": "in-force", "expression": "!('in-force' in object.metadata.?labels.orValue({})) || 1 / 0 > 0"}
    )
    kubectl.apply(*strict)
    fleet = Fleet(api)
    fleet.policy(selector={"matchExpressions": [expression("app", "Exists")]})
    probe = pod(labels={**FLEET, "in-force": "yes"})
    path = f"/api/v1/namespaces/{fleet.namespace}/pods?dryRun=All"
    wait_for(
        lambda: api("POST", path, probe).status_code >= 400,
        what="the strict gate to be in force",
        seconds=30,
        every=0.05,
    )
    yield
    fleet.leave()
    kubectl.apply(*documents)


# ---- open and closed


def test_a_closed_gate_starts_a_new_pod_in_the_fallback(fleet: Fleet) -> None:
    fleet.policy()
    fleet.wait_closed()
    created = fleet.try_pod(
        hot_pod(annotations={f"{PREFIX}enable-fp16": "true", f"{PREFIX}mode": "fp16", "mine": "kept"})
    )
    assert mine(created) == gated(17, "fp32")
    assert created["metadata"]["annotations"]["mine"] == "kept"
    assert env(created) == [
        {"name": e["name"], "valueFrom": {"fieldRef": {"apiVersion": "v1", **e["valueFrom"]["fieldRef"]}}}
        for e in FROM_ANNOTATIONS
    ]


@pytest.mark.parametrize(
    "status", [{"gate": "Open"}, {"gate": None}, {"phase": "Healthy", "gate": None, "generation": None}]
)
def test_an_open_gate_touches_no_pod(fleet: Fleet, status: Json) -> None:
    fleet.policy()
    fleet.wait_closed()
    fleet.status(**status)
    asking = hot_pod(annotations={f"{PREFIX}enable-fp16": "true"})
    fleet.wait(asking, lambda created: mine(created) == {"enable-fp16": "true"}, "the gate to open")
    untouched = fleet.try_pod(pod(container(env=literal("true"))))
    assert env(untouched) == literal("true")
    assert mine(untouched) == {}


def test_a_policy_without_any_status_touches_no_pod(fleet: Fleet) -> None:
    fleet.bare_policy("new", {"selector": {"matchLabels": FLEET}})
    fleet.policy("closed", selector={"matchLabels": {"app": "other"}})
    fleet.wait(pod(labels={"app": "other"}), lambda created: bool(mine(created)), "the other gate to close")
    assert mine(fleet.try_pod(pod())) == {}


def test_pods_of_another_namespace_are_untouched(fleet: Fleet) -> None:
    fleet.policy()
    fleet.wait_closed()
    other = Fleet(fleet.api, "default")
    assert mine(other.try_pod(pod())) == {}


def test_a_deployment_made_while_closed_gets_pods_in_the_fallback(fleet: Fleet, kubectl: Kubectl) -> None:
    fleet.policy()
    fleet.wait_closed()
    template = pod(container(env=literal("true")), annotations={f"{PREFIX}enable-fp16": "true"})
    template = {"metadata": {k: v for k, v in template["metadata"].items() if k != "name"}, "spec": template["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "trainer", "namespace": fleet.namespace},
        "spec": {"replicas": 1, "selector": {"matchLabels": FLEET}, "template": template},
    }
    kubectl("create", "-f", "-", input=json.dumps(deployment))
    listing = ("get", "pods", "-n", fleet.namespace, "-l", "app=trainer")
    made = wait_for(lambda: kubectl.json(*listing)["items"], what="the Deployment's pod", seconds=30, every=0.1)[0]
    assert mine(made) == gated(17, "fp32")
    assert env(made) == literal("false")


# ---- the switch

COUNTED = {"name": "A", "value": "b"}
LIMIT = {"name": "Z", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(literal("true"), literal("false"), id="a literal that is on is switched off"),
        pytest.param(literal(" TRUE "), literal("false"), id="however it is spelled"),
        pytest.param(literal("1", "bf16"), literal("false", "fp32"), id="with its mode"),
        pytest.param(literal("false", "fp16"), literal("false", "fp32"), id="one that is off stays off"),
        pytest.param(literal("maybe"), literal("maybe"), id="one that is no switch is FP32 to the trainer, and stays"),
        pytest.param(literal(""), [{"name": "ENABLE_FP16_TRAINING"}], id="an empty one stays"),
        pytest.param(
            [{"name": "ENABLE_FP16_TRAINING", **FROM_CONFIG_MAP}],
            literal("false"),
            id="one from a ConfigMap becomes a literal",
        ),
        pytest.param(
            [*literal("true"), *literal("true")], [*literal("false"), *literal("false")], id="one that is there twice"
        ),
        pytest.param(
            [COUNTED, *literal("on"), LIMIT], [COUNTED, *literal("false"), LIMIT], id="its neighbours stay as they are"
        ),
        pytest.param([COUNTED], [COUNTED], id="other variables are untouched"),
        pytest.param(
            [{"name": "PRECISION_MODE", "value": "fp16"}],
            [{"name": "PRECISION_MODE", "value": "fp32"}],
            id="a mode alone",
        ),
    ],
)
def test_a_closed_gate_sets_the_literal_switch(fleet: Fleet, before: list[Json], after: list[Json]) -> None:
    fleet.policy()
    fleet.wait_closed()
    created = fleet.try_pod(
        pod(container("sidecar"), container(env=before), initContainers=[container("init", env=before)])
    )
    assert env(created, 0) == []
    assert env(created, 1) == after
    assert env(created, 0, "initContainers") == after
    assert mine(created) == gated(17, "fp32")


def test_a_switch_that_may_come_from_a_config_map_as_a_whole_is_overridden(fleet: Fleet) -> None:
    fleet.policy()
    fleet.wait_closed()
    source = [{"configMapRef": {"name": "c"}}]
    created = fleet.try_pod(pod(container(envFrom=source), container("b", envFrom=source, env=literal("true"))))
    assert env(created, 0) == literal("false")
    assert env(created, 1) == literal("false")
    assert created["spec"]["containers"][0]["envFrom"] == source


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(literal("true"), literal("true", "bf16"), id="on without a mode means fp16: the mode is added"),
        pytest.param(literal("true", "fp16"), literal("true", "bf16"), id="fp16 becomes bf16"),
        pytest.param(literal("true", "bf16"), literal("true", "bf16"), id="bf16 stays"),
        pytest.param(
            [{"name": "ENABLE_FP16_TRAINING", **FROM_CONFIG_MAP}],
            literal("true", "bf16"),
            id="unreadable counts as fp16",
        ),
    ],
)
def test_a_gate_that_falls_back_to_bf16_sets_the_literal_switch(
    fleet: Fleet, before: list[Json], after: list[Json]
) -> None:
    fleet.policy(fallback="bf16")
    fleet.wait_closed()
    created = fleet.try_pod(pod(container(env=before)))
    assert env(created) == after
    assert mine(created) == gated(17, "bf16")


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(pod(container(env=literal("false"))), id="a literal false"),
        pytest.param(pod(), id="no switch at all"),
        pytest.param(hot_pod(), id="the contract, without annotations"),
        pytest.param(
            hot_pod(annotations={f"{PREFIX}enable-fp16": "false", f"{PREFIX}mode": "fp16"}), id="the annotation false"
        ),
        pytest.param(
            hot_pod(annotations={f"{PREFIX}enable-fp16": "true", f"{PREFIX}request": request(3, "fp32")}),
            id="a request for fp32, which beats the environment",
        ),
        pytest.param(pod(container(env=literal("true", "fp32"))), id="a mode of fp32"),
    ],
)
def test_a_pod_that_is_safer_than_the_fallback_stays_so(fleet: Fleet, asking: Json) -> None:
    fleet.policy(fallback="bf16")
    fleet.wait_closed()
    created = fleet.try_pod(asking)
    assert mine(created) == gated(17, "fp32")
    assert not any(e.get("value") == "true" for e in env(created))


def test_a_stale_request_that_the_pod_cannot_read_does_not_count(fleet: Fleet) -> None:
    fleet.policy(fallback="bf16")
    fleet.wait_closed()
    stale = {f"{PREFIX}request": request(3, "fp32")}
    created = fleet.try_pod(pod(container(env=literal("true")), annotations=stale))
    assert mine(created) == gated(17, "bf16")
    assert env(created) == literal("true", "bf16")


@pytest.mark.parametrize(
    ("carried", "generation"),
    [
        pytest.param(request(3, "fp16"), 17, id="an older request"),
        pytest.param(request(99, "fp16"), 99, id="a newer request"),
        pytest.param('{ "mode" : "fp16", "generation" : 99 }', 99, id="written otherwise"),
        pytest.param('{"generation":99,"mode":"fp16","checkpoint":true}', 99, id="with more in it"),
        pytest.param('{"generation":99999999999999999999,"mode":"fp16"}', 17, id="a number beyond 64 bits"),
        pytest.param('{"generation":-4,"mode":"fp16"}', 17, id="a negative number"),
        pytest.param('{"generation":"99"}', 17, id="a string"),
        pytest.param("not JSON", 17, id="not JSON"),
        pytest.param("", 17, id="empty"),
        pytest.param("9" * 200_000, 17, id="a very long one"),
    ],
)
def test_a_request_of_the_gate_is_never_older_than_the_one_the_pod_carries(
    fleet: Fleet, carried: str, generation: int
) -> None:
    fleet.policy()
    fleet.wait_closed()
    assert mine(fleet.try_pod(hot_pod(annotations={f"{PREFIX}request": carried}))) == gated(generation, "fp32")


# ---- two policies, one pod

TWO = [
    pytest.param({"a": ("fp32", 3), "b": ("bf16", 8)}, gated(8, "fp32"), id="safer-first"),
    pytest.param({"a": ("bf16", 8), "b": ("fp32", 3)}, gated(8, "fp32"), id="safer-last"),
    pytest.param({"a": ("fp32", 8), "b": ("bf16", 3)}, gated(8, "fp32"), id="safer-and-newer-first"),
    pytest.param({"a": ("bf16", 3), "b": ("fp32", 8)}, gated(8, "fp32"), id="safer-and-newer-last"),
    pytest.param({"a": ("bf16", 3), "b": ("bf16", 8)}, gated(8, "bf16"), id="both-bf16"),
]


@pytest.mark.parametrize(("policies", "expected"), TWO)
@pytest.mark.parametrize("kind", ["hot", "literal", "config map", "envFrom", "annotation only"])
def test_of_two_closed_gates_the_safest_mode_and_the_highest_generation_win(
    fleet: Fleet, policies: dict[str, tuple[str, int]], expected: Json, kind: str
) -> None:
    on = {f"{PREFIX}enable-fp16": "true", f"{PREFIX}mode": "fp16"}
    asking = {
        "hot": hot_pod(annotations=on),
        "literal": pod(container(env=literal("true", "fp16"))),
        "config map": pod(container(env=[{"name": "ENABLE_FP16_TRAINING", **FROM_CONFIG_MAP}])),
        "envFrom": pod(
            container(env=FROM_ANNOTATIONS), container("b", envFrom=[{"configMapRef": {"name": "c"}}]), annotations=on
        ),
        "annotation only": pod(container(env=FROM_ANNOTATIONS), annotations=on),
    }[kind]
    for name, (fallback, generation) in policies.items():
        # each has a label of its own as well, so that we can see it being closed
        selector = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["trainer", name]}]}
        fleet.policy(name, selector=selector, fallback=fallback, generation=generation)
    for name in policies:
        fleet.wait(pod(labels={"app": name}), lambda created: bool(mine(created)), f"gate {name} to close")
    created = fleet.try_pod(asking)
    assert mine(created) == expected
    if kind in ("literal", "config map"):
        value = {e["name"]: e.get("value") for e in env(created)}
        assert value["ENABLE_FP16_TRAINING"] == expected["enable-fp16"]
        assert expected["mode"] == "fp32" or value["PRECISION_MODE"] == expected["mode"]


# ---- selectors


def expression(key: str, operator: str, *values: str) -> Json:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


LABELS: dict[str, Json | None] = {
    "no labels": None,
    "empty labels": {},
    "another app": {"app": "web"},
    "the fleet": {"app": "trainer"},
    "the fleet with more": {"app": "trainer", "team": "vision", "example.com/gpu": "a100", "empty": ""},
}

SELECTORS: dict[str, Json] = {
    "one label": {"matchLabels": {"app": "trainer"}},
    "two labels": {"matchLabels": {"app": "trainer", "team": "vision"}},
    "a label with a prefix": {"matchLabels": {"example.com/gpu": "a100"}},
    "a label with an empty value": {"matchLabels": {"empty": ""}},
    "In": {"matchExpressions": [expression("app", "In", "trainer", "web")]},
    "In on a missing key": {"matchExpressions": [expression("missing", "In", "x")]},
    "In with an empty value": {"matchExpressions": [expression("empty", "In", "")]},
    "NotIn": {"matchExpressions": [expression("app", "NotIn", "web")]},
    "NotIn on a missing key": {"matchExpressions": [expression("missing", "NotIn", "x")]},
    "Exists": {"matchExpressions": [expression("team", "Exists")]},
    "Exists on a missing key": {"matchExpressions": [expression("missing", "Exists")]},
    "DoesNotExist": {"matchExpressions": [expression("team", "DoesNotExist")]},
    "DoesNotExist on a missing key": {"matchExpressions": [expression("missing", "DoesNotExist")]},
    "labels and expressions": {
        "matchLabels": {"app": "trainer"},
        "matchExpressions": [expression("team", "DoesNotExist")],
    },
    "a contradiction": {"matchLabels": {"app": "trainer"}, "matchExpressions": [expression("app", "NotIn", "trainer")]},
    "empty labels beside expressions": {"matchLabels": {}, "matchExpressions": [expression("app", "Exists")]},
    "empty expressions beside labels": {"matchLabels": {"app": "trainer"}, "matchExpressions": []},
    "empty values with Exists": {"matchExpressions": [{"key": "app", "operator": "Exists", "values": []}]},
}


def selects(selector: Json, labels: Json) -> bool:
    """Kubernetes' own meaning of a label selector."""

    def holds(e: Json) -> bool:
        return {
            "In": labels.get(e["key"]) in e.get("values", []),
            "NotIn": labels.get(e["key"]) not in e.get("values", []),
            "Exists": e["key"] in labels,
            "DoesNotExist": e["key"] not in labels,
        }[e["operator"]]

    return all(labels.get(k) == v for k, v in selector.get("matchLabels", {}).items()) and all(
        holds(e) for e in selector.get("matchExpressions", [])
    )


@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_means_what_it_means_everywhere_in_kubernetes_and_refuses_no_pod(fleet: Fleet, name: str) -> None:
    fleet.policy(selector=SELECTORS[name])
    # A marker closed after it shows that both are seen: they arrive in the order they were written.
    fleet.policy("marker", selector={"matchLabels": {"marker": "yes"}})
    fleet.wait(pod(labels={"marker": "yes"}), lambda created: bool(mine(created)), "the marker's gate to close")
    for labels in LABELS.values():
        created = fleet.try_pod(pod(labels=labels))
        assert bool(mine(created)) == selects(SELECTORS[name], labels or {}), f"pod with {labels}"


def test_a_selector_that_only_an_older_schema_let_in_refuses_no_pod(fleet: Fleet, kubectl: Kubectl) -> None:
    """The CRD refuses these today; a policy stored before it did is still there, and must neither match nor deny."""
    crd = kubectl.json("get", "crd", "precisionpolicies.precision.genesis.ai")
    loose = json.loads(json.dumps(crd))
    for field in ("resourceVersion", "uid", "managedFields", "creationTimestamp", "generation"):
        loose["metadata"].pop(field, None)
        crd["metadata"].pop(field, None)
    schema = loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema.pop("required", None)
    schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema["properties"]["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    odd: list[Json] = [
        {},
        {"selector": {}},
        {"selector": {"matchLabels": {}, "matchExpressions": []}},
        {"selector": {"matchExpressions": [{"key": "app"}]}},
        {"selector": {"matchExpressions": [{"key": "app", "operator": "In"}]}},
        {"selector": {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}},
    ]

    def tried() -> int:
        body = {"apiVersion": "precision.genesis.ai/v1alpha1", "kind": "PrecisionPolicy", "metadata": {"name": "probe"}}
        path = f"/apis/precision.genesis.ai/v1alpha1/namespaces/{fleet.namespace}/precisionpolicies?dryRun=All"
        return fleet.api("POST", path, body).status_code

    def loosened() -> bool:
        return tried() == 201

    def tightened() -> bool:
        """Refused for what it says, not because admission does not know the schema yet (503)."""
        return tried() == 422

    kubectl("replace", "-f", "-", input=json.dumps(loose))
    try:
        wait_for(loosened, what="the loose schema", seconds=30)
        for number, spec in enumerate(odd):
            fleet.bare_policy(f"odd-{number}", spec)
            fleet.status(
                f"odd-{number}", gate="Closed", **({} if number % 2 else {"generation": 4, "fallback": "int8"})
            )
        fleet.policy("marker", selector={"matchLabels": {"marker": "yes"}})
        fleet.wait(pod(labels={"marker": "yes"}), lambda created: bool(mine(created)), "the marker's gate to close")
        for labels in LABELS.values():
            assert mine(fleet.try_pod(pod(labels=labels))) == {}, f"pod with {labels}"
        # a closed gate that lacks its generation and names no known fallback still holds, in the safest mode
        bare = {"matchLabels": {"bare": "yes"}}
        fleet.policy("bare", selector=bare, generation=None, fallback="int8")
        fleet.wait(pod(labels={"bare": "yes"}), lambda created: mine(created) == gated(0, "fp32"), "the bare gate")
    finally:
        kubectl("delete", "pp", "--all", "-n", fleet.namespace)
        kubectl("replace", "-f", "-", input=json.dumps(crd))
        wait_for(tightened, what="the schema to be back", seconds=30)


# ---- odd pods

MANY = [{"name": f"V{i}", "value": "x"} for i in range(300)]
ODD_PODS: dict[str, Json] = {
    "no annotations": pod(),
    "empty annotations": pod(annotations={}),
    "empty values of ours": pod(annotations={f"{PREFIX}{key}": "" for key in ("request", "mode", "enable-fp16")}),
    "nonsense in ours": pod(
        annotations={f"{PREFIX}request": "{{{", f"{PREFIX}mode": "fp8", f"{PREFIX}enable-fp16": "\u202efalse"}
    ),
    "empty env": pod(container(env=[])),
    "env without a value": pod(container(env=[{"name": "ENABLE_FP16_TRAINING"}])),
    "a switch from a Secret": pod(
        container(env=[{"name": "ENABLE_FP16_TRAINING", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}])
    ),
    "names that need care": pod(container(env=[{"name": "a.b-c", "value": "~1/~0"}, *literal("true")])),
    "references between variables": pod(
        container(env=[*literal("true"), {"name": "B", "value": "$(ENABLE_FP16_TRAINING)"}])
    ),
    "volumes of every kind": pod(
        volumes=[
            {"name": "a", "emptyDir": {}},
            {"name": "b", "downwardAPI": {}},
            {
                "name": "c",
                "downwardAPI": {
                    "items": [{"path": "x", "resourceFieldRef": {"containerName": "trainer", "resource": "limits.cpu"}}]
                },
            },
            {"name": "d", "projected": {"sources": [{"configMap": {"name": "x"}}, {"downwardAPI": {}}]}},
            {"name": "e", "projected": {}},
        ]
    ),
    "a request mounted as part of a projected volume": pod(
        volumes=[{"name": "p", "projected": {"sources": [{"downwardAPI": REQUEST_VOLUME["downwardAPI"]}]}}]
    ),
    "a name made by the server": {**pod(), "metadata": {"generateName": "x-", "labels": FLEET}},
    "ports twice": pod(
        container(ports=[{"containerPort": 80}, {"containerPort": 80, "name": "b"}], env=literal("true"))
    ),
    "many containers": pod(*(container(f"c{i}", env=literal("true")) for i in range(40))),
    "many variables": pod(container(env=[*MANY, *literal("true"), *MANY])),
    "big annotations": pod(annotations={"big": "x" * 250_000}),
    "host network": pod(hostNetwork=True),
}


@pytest.mark.parametrize("name", ODD_PODS)
@pytest.mark.parametrize("fallback", ["fp32", "bf16"])
def test_no_odd_pod_is_refused_or_let_through(fleet: Fleet, name: str, fallback: str) -> None:
    fleet.policy(fallback=fallback)
    fleet.wait_closed()
    created = fleet.try_pod(ODD_PODS[name])
    found = mine(created)
    assert set(found) == {"request", "enable-fp16", "mode"}
    assert found["mode"] in {"fp32", fallback}
    assert re.fullmatch(r'\{"generation":17,"mode":"(fp32|bf16)"\}', found["request"])
    if fallback == "fp32":
        switches = [
            e for c in created["spec"]["containers"] for e in c.get("env", []) if e["name"] == "ENABLE_FP16_TRAINING"
        ]
        assert not [
            e for e in switches if "fieldRef" not in e.get("valueFrom", {}) and e.get("value", "") not in ("", "false")
        ]


def test_an_invalid_pod_is_refused_for_its_own_fault(fleet: Fleet) -> None:
    fleet.policy()
    fleet.wait_closed()
    twice = pod(container(env=literal("true")), container(env=literal("true")))
    answer = fleet.api("POST", f"/api/v1/namespaces/{fleet.namespace}/pods?dryRun=All", twice)
    assert "Duplicate value" in answer.json()["message"]


# ---- as it ships


def test_the_shipped_gate_never_refuses_a_pod_for_a_fault_of_its_own() -> None:
    policy = next(yaml.safe_load_all(GATE.read_text()))
    assert policy["spec"]["failurePolicy"] == "Ignore"
