"""The patches as they go over the wire, and a round trip through all of them."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.modes import Mode
from precision_operator.contract import ENABLE, GENERATION, LATCH, MODE, ORIGINAL, REQUEST, SETTLE
from precision_operator.core.actions import RequestPod, Restore, Settle, SettleStage, Tuning, WriteTemplate
from precision_operator.errors import Conflict, PolicyError, PreconditionFailed
from precision_operator.kube.fake import FakeKube
from precision_operator.kube.port import DEPLOYMENTS, PODS, REPLICASETS, JsonObject, Operation
from precision_operator.kube.workloads import patches
from precision_operator.kube.workloads.deployment import DeploymentAdapter
from precision_operator.kube.workloads.port import DeploymentView
from precision_operator.kube.workloads.reading import read_deployment, read_pod
from tests.unit.kube import bodies as b

ADAPTER = DeploymentAdapter()
OWN = "/metadata/annotations/precision.genesis.ai~1"
INNER = "/spec/template/metadata/annotations/precision.genesis.ai~1"
FP32_9 = '{"generation":9,"mode":"fp32"}'


def view_of(body: dict[str, Any]) -> DeploymentView:
    view = read_deployment(body).view
    assert isinstance(view, DeploymentView)
    return view


def wire(operations: list[Operation]) -> list[tuple[object, ...]]:
    return [(o.op, o.path) if o.op == "remove" else (o.op, o.path, o.value) for o in operations]


def test_request_of_a_pod() -> None:
    workload = view_of(b.deployment(b.hot_spec()))
    pod = read_pod(b.pod(b.hot_spec(), annotations={REQUEST: '{"generation":8,"mode":"fp16"}'})).view
    assert wire(patches.request_pod(RequestPod(workload, pod, Mode.FP32, 9))) == [
        ("test", "/metadata/uid", "p-1"),
        ("test", f"{OWN}request", '{"generation":8,"mode":"fp16"}'),
        ("add", f"{OWN}request", FP32_9),
        ("add", f"{OWN}enable-fp16", "false"),
        ("add", f"{OWN}mode", "fp32"),
    ]


def test_request_of_a_pod_without_annotations() -> None:
    pod = read_pod(b.pod(b.hot_spec())).view
    operations = patches.request_pod(RequestPod(view_of(b.deployment(b.hot_spec())), pod, Mode.BF16, 1))
    assert wire(operations) == [
        ("test", "/metadata/uid", "p-1"),
        ("test", "/metadata/annotations", None),
        ("add", "/metadata/annotations", {}),
        ("add", f"{OWN}request", '{"generation":1,"mode":"bf16"}'),
        ("add", f"{OWN}enable-fp16", "true"),
        ("add", f"{OWN}mode", "bf16"),
    ]


def test_request_that_takes_poisoned_weights_back() -> None:
    pod = read_pod(b.pod(b.hot_spec())).view
    view = view_of(b.deployment(b.hot_spec()))
    (request,) = [
        o.value
        for o in patches.request_pod(RequestPod(view, pod, Mode.FP32, 1, rewind=True))
        if "request" in o.path and o.op == "add"
    ]
    assert request == '{"generation":1,"mode":"fp32","rewind":true}'


def test_request_that_tunes_the_loss_scaler() -> None:
    pod = read_pod(b.pod(b.hot_spec())).view
    view = view_of(b.deployment(b.hot_spec()))
    asked = {
        Tuning(loss_scale_factor=0.5): '{"generation":4,"mode":"fp16","lossScaleFactor":0.5}',
        Tuning(growth_interval=4000): '{"generation":4,"mode":"fp16","growthInterval":4000}',
    }
    for tuning, expected in asked.items():
        operations = patches.request_pod(RequestPod(view, pod, Mode.FP16, 4, tuning=tuning))
        assert [o.value for o in operations if "request" in o.path and o.op == "add"] == [expected]


def test_a_literal_is_written_in_place() -> None:
    env = [{"name": "A", "value": "1"}, *b.LITERAL]
    view = view_of(b.deployment(b.pod_spec(b.container(env=env)), annotations={GENERATION: "8", LATCH: "fp32"}))
    path = "/spec/template/spec/containers/0"
    original = (
        '{"annotations":{"precision.genesis.ai/request":null,"precision.genesis.ai/enable-fp16":null,'
        '"precision.genesis.ai/mode":null},"containers":[{"field":"containers","name":"trainer","hasEnv":true,'
        '"env":[{"name":"ENABLE_FP16_TRAINING","value":"false"}]}]}'
    )
    assert wire(patches.write_template(view, WriteTemplate(view, Mode.FP16, 9, None))) == [
        ("test", "/metadata/uid", "u-1"),
        ("test", f"{OWN}generation", "8"),
        ("test", f"{path}/name", "trainer"),
        ("test", f"{path}/env/1/name", "ENABLE_FP16_TRAINING"),
        ("add", f"{path}/env/1/value", "true"),
        ("add", f"{path}/env/-", {"name": "PRECISION_MODE", "value": "fp16"}),
        ("add", f"{OWN}original", original),
        ("add", f"{OWN}generation", "9"),
        ("remove", f"{OWN}latch"),
    ]


def test_a_config_map_reference_is_overridden() -> None:
    view = view_of(b.deployment(b.pod_spec(b.container(env=b.FROM_CONFIG)), annotations={ORIGINAL: "{}"}))
    operations = patches.write_template(view, WriteTemplate(view, Mode.FP32, 1, Mode.FP32))
    path = "/spec/template/spec/containers/0"
    assert wire(operations)[2:] == [
        ("test", f"{path}/name", "trainer"),
        ("test", f"{path}/env/0/name", "ENABLE_FP16_TRAINING"),
        ("replace", f"{path}/env/0", {"name": "ENABLE_FP16_TRAINING", "value": "false"}),
        ("add", f"{OWN}generation", "1"),
        ("add", f"{OWN}latch", "fp32"),
    ]


def test_a_hot_template_gets_annotations_and_nothing_else() -> None:
    inner = {REQUEST: '{"generation":8,"mode":"fp16"}', ENABLE: "true", MODE: "fp16"}
    view = view_of(b.deployment(b.hot_spec(), annotations={GENERATION: "8", ORIGINAL: "{}"}, inner=inner))
    assert wire(patches.write_template(view, WriteTemplate(view, Mode.FP32, 9, Mode.FP32))) == [
        ("test", "/metadata/uid", "u-1"),
        ("test", f"{OWN}generation", "8"),
        ("add", f"{INNER}request", FP32_9),
        ("add", f"{INNER}enable-fp16", "false"),
        ("add", f"{INNER}mode", "fp32"),
        ("add", f"{OWN}generation", "9"),
        ("add", f"{OWN}latch", "fp32"),
    ]


def test_the_three_writes_of_a_settle() -> None:
    inner = {ENABLE: "true"}
    body = b.deployment(b.hot_spec(), annotations={GENERATION: "8", ORIGINAL: "{}"}, inner=inner)
    view = view_of(body)
    settle = '{"generation":9,"mode":"fp32","wasPaused":false}'
    assert wire(patches.pause(view, Settle(view, SettleStage.PAUSE, Mode.FP32, 9, None))) == [
        ("test", "/metadata/uid", "u-1"),
        ("test", f"{OWN}generation", "8"),
        ("test", "/spec/paused", None),
        ("add", "/spec/paused", True),
        ("add", f"{OWN}generation", "9"),
        ("add", f"{OWN}settle", settle),
    ]
    replicaset: JsonObject = {
        "metadata": {"uid": "r-1", "name": "train-abc"},
        "spec": {"template": {"metadata": {"annotations": {ENABLE: "true"}}}},
    }
    assert wire(patches.replicaset(replicaset, Mode.FP32, 9)) == [
        ("test", "/metadata/uid", "r-1"),
        ("test", f"{INNER}request", None),
        ("add", f"{INNER}request", FP32_9),
        ("add", f"{INNER}enable-fp16", "false"),
        ("add", f"{INNER}mode", "fp32"),
    ]
    body["metadata"]["annotations"] |= {SETTLE: settle, GENERATION: "9"}
    body["spec"]["paused"] = True
    paused = view_of(body)
    assert wire(patches.resume(paused, Settle(paused, SettleStage.RESUME, Mode.FP32, 9, Mode.FP32))) == [
        ("test", "/metadata/uid", "u-1"),
        ("test", f"{OWN}generation", "9"),
        ("add", f"{INNER}request", FP32_9),
        ("add", f"{INNER}enable-fp16", "false"),
        ("add", f"{INNER}mode", "fp32"),
        ("add", "/spec/paused", False),
        ("add", f"{OWN}latch", "fp32"),
        ("remove", f"{OWN}settle"),
    ]


def test_a_template_write_ends_a_settle_of_ours() -> None:
    own = {GENERATION: "8", ORIGINAL: "{}", SETTLE: '{"generation":8,"mode":"fp32","wasPaused":false}'}
    view = view_of(b.deployment(b.hot_spec(), annotations=own, inner={ENABLE: "true"}, paused=True))
    operations = wire(patches.write_template(view, WriteTemplate(view, Mode.FP32, 9, None)))
    assert ("remove", f"{OWN}settle") in operations
    assert ("add", "/spec/paused", False) in operations


def test_an_older_generation_is_refused_before_it_is_sent() -> None:
    view = view_of(b.deployment(b.hot_spec(), annotations={GENERATION: "10"}))
    with pytest.raises(PreconditionFailed):
        patches.write_template(view, WriteTemplate(view, Mode.FP32, 9, None))


def test_a_template_without_the_contract_is_a_policy_error() -> None:
    view = view_of(b.deployment(b.pod_spec(b.container(env=[{"name": "A", "value": "1"}]))))
    with pytest.raises(PolicyError) as caught:
        patches.write_template(view, WriteTemplate(view, Mode.FP32, 9, None))
    assert caught.value.reason == "NoPrecisionContract"


async def test_writes_and_reads_are_within_their_budget() -> None:
    api = FakeKube()
    for name, spec in (("hot", b.hot_spec()), ("literal", b.pod_spec(b.container(env=b.LITERAL)))):
        api.put(DEPLOYMENTS, b.deployment(spec, name=name))
    api.put(PODS, b.pod(b.hot_spec(), name="hot-abc-1", owner="hot"))
    hot = view_of(await _body(api, "hot"))
    pod = read_pod(b.pod(b.hot_spec(), name="hot-abc-1", owner="hot")).view
    assert await ADAPTER.apply(api, RequestPod(hot, pod, Mode.FP32, 1))
    literal = view_of(await _body(api, "literal"))
    assert await ADAPTER.apply(api, WriteTemplate(literal, Mode.FP16, 1, None))
    assert (len(api.writes), api.reads) == (2, [])


async def _body(api: FakeKube, name: str) -> dict[str, Any]:
    return copy.deepcopy(api.objects[("deployments", "default", name)])


@pytest.mark.parametrize("revisions", [[], ["1", "1"], ["2"]])
async def test_a_settle_needs_exactly_one_current_replicaset(revisions: list[str]) -> None:
    api = FakeKube()
    key = "deployment.kubernetes.io/revision"
    own = {GENERATION: "1", key: "1", SETTLE: '{"generation":1,"mode":"fp32","wasPaused":false}'}
    api.put(DEPLOYMENTS, b.deployment(b.hot_spec(), annotations=own, paused=True))
    for index, revision in enumerate(revisions):
        metadata: JsonObject = {
            "name": f"train-{index}",
            "labels": {"app": "train"},
            "annotations": {key: revision},
            "ownerReferences": [{"uid": "u-1"}],
        }
        api.put(REPLICASETS, {"metadata": metadata, "spec": {"template": {"metadata": {}}}})
    view = view_of(await _body(api, "train"))
    with pytest.raises(Conflict):
        await ADAPTER.apply(api, Settle(view, SettleStage.REPLICASET, Mode.FP32, 1, None))
    assert api.writes == []


async def test_an_unreadable_original_is_told_and_nothing_is_written() -> None:
    api = FakeKube()
    api.put(DEPLOYMENTS, b.deployment(b.hot_spec(), annotations={ORIGINAL: "{"}))
    with pytest.raises(PolicyError):
        await ADAPTER.apply(api, Restore(view_of(await _body(api, "train"))))
    assert api.writes == []


ENTRIES = st.sampled_from(
    [
        *b.LITERAL,
        *b.FROM_CONFIG,
        *b.CONTRACT_ENV,
        {"name": "ENABLE_FP16_TRAINING", "value": "true"},
        {"name": "ENABLE_FP16_TRAINING"},
        {"name": "PRECISION_MODE", "value": "bf16"},
        {"name": "OTHER", "value": "1"},
    ]
)
CONTAINERS = st.lists(
    st.builds(
        lambda env, env_from, mounts: b.container(
            env=env or None, mounts=mounts, **({"envFrom": [{"configMapRef": {"name": "f"}}]} if env_from else {})
        ),
        st.lists(ENTRIES, max_size=4),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
).map(lambda found: [{**container, "name": f"c{index}"} for index, container in enumerate(found)])
INNERS = st.none() | st.dictionaries(
    st.sampled_from([ENABLE, MODE, REQUEST, "team"]), st.sampled_from(["true", "fp16", "x"]), min_size=1
)


@given(CONTAINERS, CONTAINERS, INNERS, st.lists(st.sampled_from(Mode), min_size=1, max_size=5))
async def test_any_writes_then_a_restore_give_the_template_back(
    containers: list[Any], init: list[Any], inner: dict[str, str] | None, modes: list[Mode]
) -> None:
    api = FakeKube()
    spec = b.pod_spec(*containers, initContainers=init, volumes=[b.volume()])
    before = api.put(DEPLOYMENTS, b.deployment(spec, inner=inner))
    for generation, mode in enumerate(modes, start=1):
        view = view_of(await _body(api, "train"))
        try:
            assert await ADAPTER.apply(api, WriteTemplate(view, mode, generation, Mode.FP32))
        except PolicyError:
            assert api.writes == []
            return
        after = view_of(await _body(api, "train"))
        assert not view.hot or after.template_mode is mode
        with pytest.raises(PreconditionFailed):
            await ADAPTER.apply(api, WriteTemplate(view, Mode.FP16, generation, None))
    written = view_of(await _body(api, "train"))
    assert await ADAPTER.apply(api, Restore(replace(written, pods=())))
    restored: Any = await _body(api, "train")
    assert restored["spec"] == before["spec"]
    assert restored["metadata"]["annotations"] == {GENERATION: str(len(modes))}
