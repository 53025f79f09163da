"""What is read from Deployments and pods."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.injection import Refusal
from precision_operator.api.modes import Mode
from precision_operator.contract import ADMITTED, ENABLE, INJECT, INJECTED, MODE, REQUEST, TRUE_SPELLINGS
from precision_operator.core.model import Request
from precision_operator.workloads.kinds.deployment import read_deployment
from precision_operator.workloads.reading import (
    ADMITTED_CHARACTERS,
    REQUEST_CHARACTERS,
    parse_admitted,
    parse_request,
    read_pod,
)
from tests.support import objects as b

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
        ([{"name": "ENABLE_FP16_TRAINING", "value": "$(FLAG)"}], {}, None),
        ([{"name": "ENABLE_FP16_TRAINING", "value": "tr$(UE)"}, {"name": "PRECISION_MODE", "value": "bf16"}], {}, None),
        (
            [{"name": "ENABLE_FP16_TRAINING", "value": "true"}, {"name": "PRECISION_MODE", "value": "$(M)"}],
            {},
            Mode.FP16,
        ),
        (
            [{"name": "ENABLE_FP16_TRAINING", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x']"}}}],
            {ENABLE: "true", "x": "false"},
            None,
        ),
    ],
)
def test_the_mode_of_a_pod_and_of_a_template_is_what_its_environment_says(
    env: list[Any], inner: dict[str, str], mode: Mode | None
) -> None:
    spec = b.pod_spec(b.container(env=env))
    assert read_pod(b.pod(spec, annotations=inner)).view.started_mode is mode
    body = b.deployment(spec)
    body["spec"]["template"]["metadata"]["annotations"] = inner
    assert read_deployment(body).view.template_mode is mode


def test_a_hot_template_copied_from_a_pod_starts_in_what_that_was_asked_for() -> None:
    body = b.deployment(b.hot_spec())
    body["spec"]["template"]["metadata"]["annotations"] = {REQUEST: REQUEST_17, ENABLE: "false"}
    assert read_deployment(body).view.template_mode is Mode.BF16
    body["spec"]["template"]["spec"] = b.pod_spec(b.container())  # which reads no request
    assert read_deployment(body).view.template_mode is Mode.FP32


def test_what_a_hot_pod_was_asked_for_beats_its_environment() -> None:
    asked = {ENABLE: "true", REQUEST: '{"generation":3,"mode":"fp32"}'}
    view = read_pod(b.pod(annotations=asked)).view
    assert (view.started_mode, view.effective_mode, view.generation) == (Mode.FP16, Mode.FP32, 3)
    cold = read_pod(b.pod(b.pod_spec(b.container(env=b.CONTRACT_ENV)), annotations=asked)).view
    assert cold.effective_mode is Mode.FP16


def test_the_least_safe_container_counts() -> None:
    fp16 = b.container("b", env=[{"name": "ENABLE_FP16_TRAINING", "value": "true"}])
    spec = b.pod_spec(b.container("a", env=b.LITERAL), fp16)
    assert read_pod(b.pod(spec)).view.started_mode is Mode.FP16


@pytest.mark.parametrize("spelling", sorted(TRUE_SPELLINGS))
def test_every_spelling_that_turns_the_switch_on_is_known(spelling: str) -> None:
    for value in (spelling, f" {spelling.upper()}\t"):
        spec = b.pod_spec(b.container(env=[{"name": "ENABLE_FP16_TRAINING", "value": value}]))
        assert read_pod(b.pod(spec)).view.started_mode is Mode.FP16


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
    assert read_pod(b.pod(b.pod_spec(*containers))).view.started_mode is mode


def test_a_deployment_is_known_by_the_key_that_admission_gives_its_pods() -> None:
    record = read_deployment(b.deployment(b.hot_spec(), labels={"team": "a"}, replicas=2))
    view = record.view
    assert (view.key, view.name, view.kind, view.uid, view.replicas) == (
        "apps/Deployment/train",
        "train",
        "Deployment",
        "d-1",
        2,
    )
    assert record.labels == {"app": "train"}
    assert record.template_labels == {"app": "train", "team": "a"}
    named = b.deployment(b.hot_spec(), labels={"precision.genesis.ai/workload": "vit"})
    assert read_deployment(named).view.key == "label/vit"


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        "{",
        "[]",
        "3",
        '{"mode":"fp32"}',
        '{"generation":"1","mode":"fp32"}',
        '{"generation":1}',
        '{"generation":true,"mode":"fp32"}',
        '{"generation":-1,"mode":"fp32"}',
        '{"generation":1e3,"mode":"fp32"}',
        '{"generation":562949953421313,"mode":"fp32"}',
        "[" * REQUEST_CHARACTERS,
        '{"a":' * 200,
    ],
)
def test_a_malformed_request_is_none(raw: str | None) -> None:
    assert parse_request(raw) is None


@pytest.mark.parametrize("filler", ["x" * 250_000, "[" * 250_000])
def test_a_request_that_nobody_can_have_written_is_neither_parsed_nor_kept(filler: str) -> None:
    view = read_pod(b.pod(annotations={REQUEST: f'{{"generation":1,"mode":"fp32","x":"{filler}"}}'})).view
    assert view.request is None
    assert view.request_raw is not None
    assert len(view.request_raw) == REQUEST_CHARACTERS + 1


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (None, ()),
        ("", ()),
        ("fleet/17/fp16", (("fleet", 17),)),
        ("fleet/17/fp16 other/3/fp32", (("fleet", 17), ("other", 3))),
        ("fleet/17", (("fleet", 17),)),
        ("fleet//fp16 /17/fp16 fleet/x/fp16 fleet/-1/fp16 fleet/1\u0663/fp16", ()),
        (f"fleet/{2**49 + 1}/fp16", ()),
        ("fleet/1/fp16 " + "x" * ADMITTED_CHARACTERS, ()),
        ("x" * 250_000, ()),
    ],
)
def test_the_record_of_admission_is_read_and_nonsense_in_it_passed_over(
    raw: str | None, found: tuple[tuple[str, int], ...]
) -> None:
    assert parse_admitted(raw) == found
    annotations = {ADMITTED: raw} if raw is not None else None
    assert read_pod(b.pod(annotations=annotations)).view.admitted == found


@pytest.mark.parametrize(
    ("record", "asks", "refusal"),
    [
        (None, True, None),
        ("trainer", True, None),
        ("refused: HostNetwork", True, Refusal.HOST_NETWORK),
        ("refused: Weather", True, None),
        ("refused: HostNetwork", False, None),
    ],
)
def test_why_a_pod_that_asks_has_no_contract_is_read_from_its_record(
    record: str | None, asks: bool, refusal: Refusal | None
) -> None:
    body = b.pod(b.pod_spec(b.container()), annotations={INJECTED: record} if record is not None else None)
    if asks:
        body["metadata"]["labels"][INJECT] = "trainer"
    assert read_pod(body).view.refusal is refusal


def test_a_pod_that_has_the_contract_by_hand_lacks_nothing() -> None:
    body = b.pod(b.hot_spec(), annotations={INJECTED: "refused: HostNetwork"})
    body["metadata"]["labels"][INJECT] = "trainer"
    assert read_pod(body).view.refusal is None


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff"}}


def status(**container: object) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "trainer", "ready": True, **container}]}


@pytest.mark.parametrize(
    ("found", "crashing"),
    [
        (status(state={"running": {}}), False),
        (status(state=BACK_OFF, lastState={"terminated": {"exitCode": 1}}, ready=False), True),
        (status(state=BACK_OFF, lastState={"terminated": {"exitCode": 143}}, ready=False), False),
        (status(state=BACK_OFF, lastState={"terminated": {"exitCode": 75}}, ready=False), False),
        (status(state={"terminated": {"exitCode": 75}}), False),
        (status(state={"waiting": {"reason": "ContainerCreating"}}), False),
        (status(state={"terminated": {"exitCode": 17}}), True),
        (status(state={"terminated": {"exitCode": 0}}), False),
        (status(state={"terminated": {"exitCode": 143}}), False),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 143}}, ready=False), False),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 1}}, ready=False), True),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 1}}), False),
        (status(state={"running": {}}, lastState={"terminated": {"exitCode": 0}}, ready=False), False),
        ({"initContainerStatuses": [{"state": {"terminated": {"exitCode": 2}}}]}, True),
    ],
)
def test_a_crash_is_told_from_a_start(found: dict[str, Any], crashing: bool) -> None:
    assert read_pod(b.pod(**found)).view.crashing is crashing


@pytest.mark.parametrize("code", [0, 1, 75, 143])
def test_a_container_that_waits_in_back_off_is_told_from_one_that_is_made(code: int) -> None:
    waits = status(state=BACK_OFF, lastState={"terminated": {"exitCode": code}}, ready=False)
    assert read_pod(b.pod(**waits)).view.backing_off
    assert not read_pod(b.pod(**status(state={"waiting": {"reason": "ContainerCreating"}}))).view.backing_off
    assert not read_pod(b.pod(**status(state={"running": {}}))).view.backing_off


KILLED = {"terminated": {"exitCode": 137, "reason": "Error"}}
DISRUPTION = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


@pytest.mark.parametrize(
    ("found", "crashing"),
    [
        (status(state=KILLED), True),
        ({**status(state=KILLED), "conditions": [DISRUPTION]}, False),
        ({**status(state=KILLED), "conditions": [{**DISRUPTION, "status": "False"}]}, True),
        *(
            ({**status(state=KILLED), "reason": reason}, False)
            for reason in ("Evicted", "Preempting", "NodeLost", "NodeShutdown", "Terminated")
        ),
        ({**status(state=KILLED), "reason": "DeadlineExceeded"}, True),
        (status(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}), True),
        (status(state={"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}), False),
        (
            status(
                state={"running": {}}, lastState={"terminated": {"exitCode": 255, "reason": "Unknown"}}, ready=False
            ),
            False,
        ),
        (status(state={"running": {}}, lastState=KILLED, ready=False), True),
    ],
)
def test_a_pod_that_was_preempted_evicted_or_lost_with_its_node_has_not_crashed(
    found: dict[str, Any], crashing: bool
) -> None:
    assert read_pod(b.pod(**found)).view.crashing is crashing


def test_a_pod_is_read_with_what_controls_it() -> None:
    body = b.pod(annotations={REQUEST: REQUEST_17}, conditions=[{"type": "Ready", "status": "True"}])
    record = read_pod(body)
    assert (record.controller, record.finished, record.counts) == ("r-1", False, True)
    view = record.view
    assert (view.node, view.ready, view.terminating, view.pending) == ("node-1", True, False, False)
    assert (view.request_raw, view.request, view.effective_mode) == (REQUEST_17, Request(17, Mode.BF16), Mode.BF16)
    assert view.created_at == 1795341600.0
    body["metadata"]["ownerReferences"][0]["controller"] = False
    bare = read_pod(body)
    assert (bare.controller, bare.counts) == ("p-1", True)
    body["metadata"]["ownerReferences"][0] |= {"controller": True, "uid": ""}
    assert not read_pod(body).counts


@pytest.mark.parametrize(
    ("phase", "finished", "pending"),
    [("Failed", True, False), ("Succeeded", True, False), ("Pending", False, True), ("Running", False, False)],
)
def test_a_pod_that_has_not_started_is_told_from_one_that_has_ended(phase: str, finished: bool, pending: bool) -> None:
    body = b.pod(phase=phase)
    record = read_pod(body)
    assert (record.finished, record.view.pending) == (finished, pending)
    del body["status"]["phase"]
    assert read_pod(body).view.pending
    body["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:30Z"
    assert read_pod(body).view.terminating


@pytest.mark.parametrize("stamp", [None, "", "yesterday", 3, "0001-01-01T00:00:00", "9999-12-31T23:59:59Z"])
def test_an_odd_time_of_creation_breaks_nothing(stamp: object) -> None:
    body = b.pod()
    body["metadata"]["creationTimestamp"] = stamp
    assert isinstance(read_pod(body).view.created_at, float)


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
    "labels",
    "controller",
    "uid",
    "creationTimestamp",
    "phase",
    "envFrom",
    "nodeSelector",
    "conditions",
]
TEXTS = st.text(max_size=5) | st.sampled_from(["ENABLE_FP16_TRAINING", "PRECISION_MODE", "true", "$(A)", "0001-01-01"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYS, REQUEST, ADMITTED, ENABLE, MODE]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), JSON))
def test_no_body_breaks_the_reading(body: dict[str, Any]) -> None:
    read_deployment(body)
    read_pod(body)


@pytest.mark.parametrize(("seconds", "graceless"), [(None, False), (30, False), (0, True)])
def test_a_pod_whose_own_grace_is_zero_is_known(seconds: int | None, graceless: bool) -> None:
    body = {"metadata": {"name": "p"}, "spec": {"terminationGracePeriodSeconds": seconds}}
    assert read_pod(body).view.graceless is graceless
    assert read_pod(body).view.own_grace_seconds == (30.0 if seconds is None else seconds)
