"""The request as it goes over the wire, and what it is guarded by."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.modes import Mode
from precision_operator.contract import ADMITTED, ENABLE, MODE, REQUEST
from precision_operator.core.actions import RequestPod, ResumeJob, SuspendJob, Tuning
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.errors import PreconditionFailed
from precision_operator.kube.port import JOBS, PODS, JsonObject, Operation
from precision_operator.workloads.reading import REQUEST_CHARACTERS, read_pod
from precision_operator.workloads.requests import request_pod, suspend_job
from tests.support import objects as b
from tests.support.fake_kube import FakeKube

OWN = "/metadata/annotations/precision.genesis.ai~1"
WORKLOAD = WorkloadView("default", "apps/Deployment/train", "d-1")
FP16_8 = '{"generation":8,"mode":"fp16"}'


def seen(annotations: dict[str, str] | None = None) -> PodView:
    return read_pod(b.pod(annotations=annotations)).view


def asked(pod: PodView, mode: Mode = Mode.FP32, generation: int = 9, /, **more: object) -> list[Operation]:
    return request_pod(replace(RequestPod(WORKLOAD, pod, mode, generation), **more))  # type: ignore[arg-type]


def wire(operations: list[Operation]) -> list[tuple[object, ...]]:
    return [(o.op, o.path, o.value) for o in operations]


def written(operations: list[Operation]) -> object:
    (value,) = [o.value for o in operations if o.op == "add" and o.path == f"{OWN}request"]
    return value


def test_a_request_tests_the_pod_and_the_request_that_it_replaces() -> None:
    assert wire(asked(seen({REQUEST: FP16_8}))) == [
        ("test", "/metadata/uid", "p-1"),
        ("test", f"{OWN}request", FP16_8),
        ("add", f"{OWN}request", '{"generation":9,"mode":"fp32"}'),
        ("add", f"{OWN}enable-fp16", "false"),
        ("add", f"{OWN}mode", "fp32"),
    ]


def test_a_request_to_a_pod_without_annotations_makes_the_map_and_tests_that_there_was_none() -> None:
    assert wire(asked(seen(), Mode.BF16, 1)) == [
        ("test", "/metadata/uid", "p-1"),
        ("test", "/metadata/annotations", None),
        ("add", "/metadata/annotations", {}),
        ("add", f"{OWN}request", '{"generation":1,"mode":"bf16"}'),
        ("add", f"{OWN}enable-fp16", "true"),
        ("add", f"{OWN}mode", "bf16"),
    ]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, '{"generation":9,"mode":"fp32"}'),
        ({"rewind": True}, '{"generation":9,"mode":"fp32","rewind":true}'),
        ({"checkpoint": True}, '{"generation":9,"mode":"fp32","checkpoint":true}'),
        ({"tuning": Tuning(loss_scale_factor=0.5)}, '{"generation":9,"mode":"fp32","lossScaleFactor":0.5}'),
        ({"tuning": Tuning(growth_interval=4000)}, '{"generation":9,"mode":"fp32","growthInterval":4000}'),
    ],
)
def test_what_a_request_asks_for_beside_the_mode(more: dict[str, object], expected: str) -> None:
    assert written(asked(seen(), **more)) == expected


def test_a_pod_that_carries_the_very_request_needs_no_write() -> None:
    assert asked(seen({REQUEST: '{"generation":9,"mode":"fp32"}'})) == []
    assert asked(seen({REQUEST: '{"generation":9,"mode":"fp32"}'}), rewind=True) != []


def test_a_later_request_is_not_overwritten() -> None:
    with pytest.raises(PreconditionFailed):
        asked(seen({REQUEST: '{"generation":10,"mode":"fp16"}'}))
    assert asked(seen({REQUEST: '{"generation":9,"mode":"fp16"}'}))


@pytest.mark.parametrize(
    "garbage",
    ["{", '{"generation":-1,"mode":"fp32"}', '{"generation":1e99,"mode":"fp16"}', "[" * REQUEST_CHARACTERS],
)
def test_what_is_no_request_is_overwritten(garbage: str) -> None:
    operations = asked(seen({REQUEST: garbage}))
    assert wire(operations)[1] == ("test", f"{OWN}request", garbage)
    assert written(operations) == '{"generation":9,"mode":"fp32"}'


async def test_a_request_of_any_length_is_overwritten() -> None:
    api = FakeKube()
    huge = "[" * (REQUEST_CHARACTERS + 1)
    api.put(PODS, b.pod(annotations={REQUEST: huge, "team": "a"}))
    await api.json_patch(PODS, "default", "train-abc-1", asked(seen({REQUEST: huge})))
    (body,) = await api.list(PODS, "default")
    assert read_pod(body).view.request_raw == '{"generation":9,"mode":"fp32"}'


REQUESTS = st.builds(
    lambda generation, mode: json.dumps({"generation": generation, "mode": mode}),
    st.integers(0, 8),
    st.sampled_from(["fp32", "bf16", "fp16"]),
)
ANNOTATIONS = st.none() | st.dictionaries(
    st.sampled_from([ENABLE, MODE, REQUEST, ADMITTED, "team", "a/b~c"]), REQUESTS | st.text(max_size=4), min_size=1
)


@given(ANNOTATIONS, ANNOTATIONS, st.sampled_from(Mode))
async def test_a_request_arrives_whole_and_only_on_the_pod_that_was_decided_on(
    before: dict[str, str] | None, meanwhile: dict[str, str] | None, mode: Mode
) -> None:
    api = FakeKube()
    api.put(PODS, b.pod(annotations=meanwhile))
    there = copy.deepcopy(api.objects)
    try:
        await api.json_patch(PODS, "default", "train-abc-1", asked(seen(before), mode))
    except PreconditionFailed:
        assert api.objects == there
        assert before != meanwhile
        return
    (body,) = await api.list(PODS, "default")
    pod = read_pod(body).view
    assert (pod.effective_mode, pod.started_mode, pod.generation) == (mode, mode, 9)
    own = (REQUEST, ENABLE, MODE)
    kept = {name: value for name, value in annotations_of(body).items() if name not in own}
    assert kept == {name: value for name, value in (meanwhile or {}).items() if name not in own}
    with pytest.raises(PreconditionFailed):
        await api.json_patch(PODS, "default", "train-abc-1", asked(seen(before), Mode.FP16, 10))


def annotations_of(body: object) -> dict[str, str]:
    assert isinstance(body, dict)
    found: dict[str, str] = body["metadata"]["annotations"]
    return found


# ---- Jobs

JOB = WorkloadView("default", "batch/Job/train", "job-1", object_name="train")


def test_a_job_is_suspended_and_resumed_as_it_was_seen() -> None:
    suspended = replace(JOB, suspended=True)
    assert wire(suspend_job(SuspendJob(JOB, 9, 3))) == [
        ("test", "/metadata/uid", "job-1"),
        ("test", "/metadata/generation", 3),
        ("test", "/spec/suspend", False),
        ("replace", "/spec/suspend", True),
    ]
    assert wire(suspend_job(ResumeJob(suspended, 9, 4))) == [
        ("test", "/metadata/uid", "job-1"),
        ("test", "/metadata/generation", 4),
        ("test", "/spec/suspend", True),
        ("replace", "/spec/suspend", False),
    ]
    assert suspend_job(SuspendJob(suspended, 9, 3)) == suspend_job(ResumeJob(JOB, 9, 4)) == []


async def test_a_job_of_another_uid_and_one_that_changed_meanwhile_stay() -> None:
    for uid, generation, suspend in (("job-2", 3, False), ("job-1", 3, True), ("job-1", 4, False)):
        kube = FakeKube()
        metadata: JsonObject = {"name": "train", "namespace": "default", "uid": uid, "generation": generation}
        before = kube.put(JOBS, {"metadata": metadata, "spec": {"suspend": suspend}})
        with pytest.raises(PreconditionFailed):
            await kube.json_patch(JOBS, "default", "train", suspend_job(SuspendJob(JOB, 9, 3)))
        assert await kube.get(JOBS, "default", "train") == before
