"""What is read from Deployments and pods."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.modes import Mode
from precision_operator.contract import ENABLE, GENERATION, LATCH, MODE, ORIGINAL, REQUEST, SETTLE
from precision_operator.core.model import Request, SettleIntent
from precision_operator.kube.workloads.reading import parse_request, parse_settle, read_deployment, read_pod
from tests.unit.kube import bodies as b

REQUEST_17 = '{"generation":17,"mode":"bf16"}'


@pytest.mark.parametrize(
    ("spec", "hot", "literal"),
    [
        (b.hot_spec(), True, False),
        (b.pod_spec(b.container(mounts=True), volumes=[b.volume(projected=True)]), True, False),
        (b.pod_spec(b.container(), volumes=[b.volume()]), False, False),
        (
            b.pod_spec(
                b.container(volumeMounts=[{"name": "precision", "mountPath": "/r", "subPath": "request"}]),
                volumes=[b.volume()],
            ),
            False,
            False,
        ),
        (b.pod_spec(b.container(env=b.LITERAL)), False, True),
        (b.pod_spec(b.container(env=b.FROM_CONFIG)), False, True),
        (b.pod_spec(b.container(env=b.CONTRACT_ENV)), False, True),
        (b.pod_spec(b.container(), initContainers=[b.container(env=b.LITERAL)]), False, True),
        (b.pod_spec(b.container(envFrom=[{"configMapRef": {"name": "f"}}])), False, True),
        (b.pod_spec(initContainers=[b.container(envFrom=[{"configMapRef": {"name": "f"}}])]), False, False),
        (
            b.pod_spec(
                b.container(env=b.CONTRACT_ENV, mounts=True, envFrom=[{"secretRef": {"name": "s"}}]),
                volumes=[b.volume()],
            ),
            True,
            False,
        ),
        (b.pod_spec(b.container(env=b.LITERAL, mounts=True), volumes=[b.volume()]), True, True),
        ({}, False, False),
    ],
)
def test_hot_and_literal_are_seen_in_the_template(spec: dict[str, Any], hot: bool, literal: bool) -> None:
    view = read_deployment(b.deployment(spec)).view
    assert (view.hot, view.literal) == (hot, literal)


@pytest.mark.parametrize(
    ("env", "inner", "mode"),
    [
        ([], {}, Mode.FP32),
        ([{"name": "ENABLE_FP16_TRAINING", "value": "true"}], {}, Mode.FP16),
        ([{"name": "ENABLE_FP16_TRAINING", "value": " YES "}], {}, Mode.FP16),
        ([{"name": "ENABLE_FP16_TRAINING", "value": "0"}], {}, Mode.FP32),
        (
            [{"name": "ENABLE_FP16_TRAINING", "value": "on"}, {"name": "PRECISION_MODE", "value": "bf16"}],
            {},
            Mode.BF16,
        ),
        (
            [{"name": "ENABLE_FP16_TRAINING", "value": "true"}, {"name": "ENABLE_FP16_TRAINING", "value": "false"}],
            {},
            Mode.FP32,
        ),
        (b.CONTRACT_ENV, {ENABLE: "true", MODE: "bf16"}, Mode.BF16),
        (b.CONTRACT_ENV, {MODE: "bf16"}, Mode.FP32),
        (b.FROM_CONFIG, {ENABLE: "true"}, None),
        ([*b.FROM_CONFIG, {"name": "PRECISION_MODE", "value": "bf16"}], {}, None),
        ([*b.FROM_CONFIG, *b.LITERAL], {}, Mode.FP32),
    ],
)
def test_the_mode_of_new_pods_is_what_their_environment_says(
    env: list[Any], inner: dict[str, str], mode: Mode | None
) -> None:
    assert read_deployment(b.deployment(b.pod_spec(b.container(env=env)), inner=inner)).view.template_mode is mode
    assert read_pod(b.pod(b.pod_spec(b.container(env=env)), annotations=inner)).view.started_mode is mode


def test_a_request_in_a_hot_template_beats_the_environment() -> None:
    spec = b.hot_spec()
    inner = {ENABLE: "true", REQUEST: '{"generation":3,"mode":"fp32"}'}
    view = read_deployment(b.deployment(spec, inner=inner)).view
    assert (view.template_mode, view.template_request) == (Mode.FP32, Request(3, Mode.FP32))


def test_the_least_safe_container_counts() -> None:
    fp16 = b.container("b", env=[{"name": "ENABLE_FP16_TRAINING", "value": "true"}])
    spec = b.pod_spec(b.container("a", env=b.LITERAL), fp16)
    assert read_deployment(b.deployment(spec)).view.template_mode is Mode.FP16


ON = [{"name": "ENABLE_FP16_TRAINING", "value": "true"}]
ENV_FROM = [{"configMapRef": {"name": "flags"}}]


@pytest.mark.parametrize(
    ("containers", "mode"),
    [
        ([b.container("a", envFrom=ENV_FROM)], None),
        ([b.container("a", env=b.LITERAL), b.container("b", env=b.FROM_CONFIG)], None),
        ([b.container("a", env=ON), b.container("b", env=b.FROM_CONFIG)], Mode.FP16),
        ([b.container("a", env=b.LITERAL), b.container("sidecar", envFrom=ENV_FROM)], Mode.FP32),
        ([b.container("a", env=b.CONTRACT_ENV, envFrom=ENV_FROM)], Mode.FP32),
    ],
)
def test_what_a_reference_says_is_not_known_unless_another_container_is_the_least_safe_anyway(
    containers: list[dict[str, Any]], mode: Mode | None
) -> None:
    assert read_deployment(b.deployment(b.pod_spec(*containers))).view.template_mode is mode


def test_our_annotations_and_the_rollout_are_read() -> None:
    own = {
        GENERATION: "4",
        LATCH: "fp32",
        ORIGINAL: "{}",
        SETTLE: '{"generation":4,"mode":"fp32","wasPaused":true}',
    }
    body = b.deployment(b.hot_spec(), annotations=own, paused=True, replicas=2)
    view = read_deployment(body).view
    assert (view.generation_raw, view.latch, view.has_original, view.paused) == ("4", Mode.FP32, True, True)
    assert view.settle == SettleIntent(4, Mode.FP32, was_paused=True)
    assert (view.replicas, view.updated_replicas, view.observed) == (2, 1, True)
    body["metadata"]["generation"] = 2
    assert not read_deployment(body).view.observed


@pytest.mark.parametrize(
    "raw", [None, "", "{", "[]", "3", '{"mode":"fp32"}', '{"generation":"1","mode":"fp32"}', '{"generation":1}']
)
def test_a_malformed_request_is_none(raw: str | None) -> None:
    assert parse_request(raw) is None
    assert parse_settle(raw) is None


def status(**container: object) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "trainer", "ready": True, **container}]}


@pytest.mark.parametrize(
    ("found", "crashing"),
    [
        (status(state={"running": {}}), False),
        (status(state={"waiting": {"reason": "CrashLoopBackOff"}}), True),
        (status(state={"waiting": {"reason": "ContainerCreating"}}), False),
        (status(state={"terminated": {"exitCode": 17}}), True),
        (status(state={"terminated": {"exitCode": 0}}), False),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 1}}, ready=False), True),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 1}}), False),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 0}}, ready=False), False),
        ({"initContainerStatuses": [{"state": {"terminated": {"exitCode": 2}}}]}, True),
    ],
)
def test_a_crash_is_told_from_a_start(found: dict[str, Any], crashing: bool) -> None:
    assert read_pod(b.pod(b.hot_spec(), **found)).view.crashing is crashing


def test_a_pod_belongs_to_the_deployment_of_its_replicaset() -> None:
    body = b.pod(b.hot_spec(), annotations={REQUEST: REQUEST_17}, conditions=[{"type": "Ready", "status": "True"}])
    record = read_pod(body)
    assert (record.workload, record.finished) == ("train", False)
    view = record.view
    assert (view.node, view.ready, view.terminating) == ("node-1", True, False)
    assert (view.request_raw, view.effective_mode) == (REQUEST_17, Mode.BF16)
    for field, value in (("kind", "Job"), ("controller", False), ("name", "other-xyz")):
        stranger = json.loads(json.dumps(body))
        stranger["metadata"]["ownerReferences"][0][field] = value
        assert read_pod(stranger).workload == ""
    del body["metadata"]["labels"]
    assert read_pod(body).workload == ""


@pytest.mark.parametrize(("phase", "finished"), [("Failed", True), ("Succeeded", True), ("Pending", False)])
def test_an_evicted_pod_is_finished(phase: str, finished: bool) -> None:
    body = b.pod(b.hot_spec())
    body["status"]["phase"] = phase
    assert read_pod(body).finished is finished


KEYS = [
    "metadata",
    "spec",
    "template",
    "containers",
    "env",
    "name",
    "value",
    "valueFrom",
    "volumes",
    "status",
    "annotations",
    "ownerReferences",
    "containerStatuses",
    "state",
    "items",
    "downwardAPI",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYS, REQUEST]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_no_body_breaks_the_reading(body: dict[str, Any]) -> None:
    read_deployment(body)
    read_pod(body)
