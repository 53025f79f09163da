"""What a new pod becomes under assignments."""

from __future__ import annotations

import json

import pytest

from precision_operator.admission.pod import admit
from tests.support.annotated import LIMIT, ROOM
from tests.support.bodies import (
    FLEET,
    SWITCH,
    Json,
    assignment,
    container,
    found,
    literal,
    needs,
    ours,
    owner,
    pod,
    request,
)
from tests.support.corpus import POD_INDEX

ASKING = pod(
    container(env=literal("true", "fp16")),
    annotations={**ours(mode="fp16", request=request(5, "fp16")), "mine": "kept"},
)
"""A pod whose template wants FP16 in every way."""


def admitted(body: Json, *assignments: Json) -> Json:
    return dict(admit(body, assignments))


def recorded(mode: str, **more: str) -> Json:
    """A pod that another assignment was admitted under before."""
    return pod(annotations=ours(**{"mode": mode, "admitted": f"other/3/{mode}", **more}))


# ---- whom an assignment concerns


@pytest.mark.parametrize(
    "idle",
    [
        assignment(default="fp32", enforce=False),
        assignment(default="fp32", enforce=None),
        assignment(default="fp32", enforce="true"),
        assignment(default="fp32", selector={}),
        assignment(default="fp32", selector={"matchLabels": {}, "matchExpressions": []}),
        assignment(default="fp32", selector={"matchLabels": {"app": "web"}}),
        assignment(default="fp32", selector={"matchExpressions": [needs("team", "Exists")]}),
        assignment(default="fp32", selector={"matchExpressions": [needs("app", "Gt", "1")]}),
        assignment(),
        assignment(default=""),
        assignment(modes={"/Pod/another": "fp32"}),
    ],
)
def test_a_pod_stays_as_its_template_has_it(idle: Json) -> None:
    assert admit(ASKING, [idle]) is ASKING


def test_a_listed_workload_gets_its_mode_and_others_the_default() -> None:
    listing = assignment(default="fp32", modes={"/Pod/p": "bf16"})
    assert found(admitted(ASKING, listing))["mode"] == "bf16"
    assert found(admitted(pod(metadata={"name": "q"}), listing))["mode"] == "fp32"


NUMBERED = "apps/StatefulSet/vit"


def numbered(index: str) -> Json:
    return pod(labels={**FLEET, POD_INDEX: index}, owners=[owner("apps/v1", "StatefulSet", "vit")])


@pytest.mark.parametrize(("index", "mode"), [("0", "fp16"), ("2", "fp16"), ("3", "fp32"), ("10", "fp32"), ("", "fp32")])
def test_below_the_index_of_its_workload_a_pod_gets_the_mode_of_those_that_have_moved(index: str, mode: str) -> None:
    by_index = assignment(default="fp32", indexes={NUMBERED: 3}, indexMode="fp16")
    assert found(admitted(numbered(index), by_index))["mode"] == mode


def test_a_mode_of_its_workload_goes_before_an_index() -> None:
    both = assignment(default="fp32", modes={NUMBERED: "bf16"}, indexes={NUMBERED: 3}, indexMode="fp16")
    assert found(admitted(numbered("0"), both))["mode"] == "bf16"
    left_alone = assignment(default="fp32", modes={NUMBERED: ""}, indexes={NUMBERED: 3}, indexMode="fp16")
    assert admit(numbered("0"), [left_alone]) == numbered("0")


def test_of_two_assignments_by_index_the_safer_mode_wins() -> None:
    wide = assignment(default="fp32", indexes={NUMBERED: 5}, indexMode="fp16")
    narrow = assignment("other", default="bf16", indexes={NUMBERED: 2}, indexMode="fp16")
    modes = [
        found(admitted(numbered(index), *pair))["mode"] for index in "035" for pair in ((wide, narrow), (narrow, wide))
    ]
    assert modes == ["fp16", "fp16", "bf16", "bf16", "fp32", "fp32"]


def test_a_workload_without_an_index_gets_the_default_also_for_its_first_pod() -> None:
    of_another = assignment(default="fp32", indexes={"apps/StatefulSet/other": 3}, indexMode="fp16")
    assert found(admitted(numbered("0"), of_another))["mode"] == "fp32"


def test_indexes_without_a_mode_give_the_default() -> None:
    assert found(admitted(numbered("0"), assignment(default="bf16", indexes={NUMBERED: 3})))["mode"] == "bf16"


def test_a_mode_of_a_later_version_counts_as_fp32() -> None:
    assert found(admitted(ASKING, assignment(modes={"/Pod/p": "fp8"})))["mode"] == "fp32"


# ---- annotations


@pytest.mark.parametrize(("mode", "enabled"), [("fp32", "false"), ("bf16", "true"), ("fp16", "true")])
def test_the_annotations_say_the_mode_in_every_way(mode: str, enabled: str) -> None:
    became = admitted(ASKING, assignment(default=mode))
    assert found(became) == {
        "request": f'{{"generation":17,"mode":"{mode}"}}',
        "enable-fp16": enabled,
        "mode": mode,
        "admitted": f"fleet/17/{mode}",
    }
    assert became["metadata"]["annotations"]["mine"] == "kept"


def test_what_a_template_says_does_not_count() -> None:
    safe = pod(annotations=ours(mode="fp32", enable_fp16="false", request=request(900, "fp32")))
    assert found(admitted(safe, assignment(default="fp16")))["request"] == request(17, "fp16")


def test_the_pod_that_is_given_is_not_changed() -> None:
    before = json.dumps(ASKING)
    admit(ASKING, [assignment(default="bf16")])
    assert json.dumps(ASKING) == before


@pytest.mark.parametrize(
    ("before", "assigned", "mode"),
    [
        ("fp32", "fp16", "fp32"),
        ("fp32", "bf16", "fp32"),
        ("bf16", "fp16", "bf16"),
        ("bf16", "fp32", "fp32"),
        ("fp16", "bf16", "bf16"),
        ("fp16", "fp16", "fp16"),
        ("int8", "fp16", "fp16"),
        ("FP32", "fp16", "fp16"),
        ("", "bf16", "bf16"),
    ],
)
def test_after_another_assignment_the_safer_mode_wins(before: str, assigned: str, mode: str) -> None:
    became = found(admitted(recorded(before), assignment(default=assigned)))
    assert became["mode"] == mode
    assert json.loads(became["request"])["mode"] == mode
    assert f"fleet/17/{assigned}" in became["admitted"].split(" ")


@pytest.mark.parametrize(
    ("said", "generation"),
    [
        (request(16, "fp16"), 17),
        (request(18, "fp16"), 18),
        ('{"generation":99,"mode":"fp16","checkpoint":true}', 99),
        (request(2**49, "fp16"), 2**49),
        (request(2**49 + 1, "fp16"), 17),
        (request(10**15, "fp16"), 17),
        ('{"generation":-99,"mode":"fp16"}', 17),
        ('{"generation":99.5}', 17),
        ('{"generation": 99}', 17),
        ('{"mode":"fp16","generation":99}', 17),
        ('{"generation":٩٩,"mode":"fp16"}', 17),
        ('{"generation":99,"x":"' + "x" * 4072 + '"}', 99),
        ('{"generation":99,"x":"' + "x" * 4073 + '"}', 17),
        ("[" * 100_000, 17),
        ("", 17),
    ],
)
def test_a_request_keeps_the_higher_generation_of_two_assignments(said: str, generation: int) -> None:
    became = found(admitted(recorded("fp16", request=said), assignment(default="bf16")))
    assert became["request"] == request(generation, "bf16")


@pytest.mark.parametrize("body", [recorded("fp16"), recorded("fp16", request=request(2**49 + 1, "fp16")), ASKING])
@pytest.mark.parametrize("generation", [0, None])
def test_what_has_no_generation_counts_as_none(body: Json, generation: int | None) -> None:
    became = found(admitted(body, assignment(default="bf16", generation=generation)))
    assert became["request"] == request(0, "bf16")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("other/3/bf16", "fleet/17/fp16 other/3/bf16"),
        ("fleet/3/fp16", "fleet/17/fp16"),
        ("other/3/bf16 fleet/3/fp16", "fleet/17/fp16 other/3/bf16"),
        ("fleet-b/3/fp16", "fleet/17/fp16 fleet-b/3/fp16"),
        ("fleet/1/fp16 fleet/2/fp16", "fleet/17/fp16"),
        ("  a   b ", "fleet/17/fp16 a b"),
        ("x" * 274, "fleet/17/fp16 " + "x" * 274),
        ("x" * 275, "fleet/17/fp16"),
        ("a " * 1024, " ".join(["fleet/17/fp16", *["a"] * 19])),
        ("a " * 1024 + "a", "fleet/17/fp16"),
        (" ".join(["x" * 254] * 8), " ".join(["fleet/17/fp16", *["x" * 254] * 6])),
        (" ".join([*["x" * 254] * 7, "y" * 249]), " ".join(["fleet/17/fp16", *["x" * 254] * 7, "y" * 249])),
    ],
)
def test_the_record_names_every_assignment_once(before: str, after: str) -> None:
    assert found(admitted(recorded("fp16", admitted=before), assignment(default="fp16")))["admitted"] == after


# ---- pods with too much


def full(size: int, **more: str) -> Json:
    """A pod whose annotations, without ours, have exactly this size in bytes."""
    env = [SWITCH, *literal("true", "fp16")]
    return pod(container(env=env), annotations={"fill": "x" * (size - 4), **ours(**more)})


def test_annotations_that_leave_room_are_added_to() -> None:
    for body in (full(ROOM), full(ROOM, request=request(5, "fp16"))):
        assert found(admitted(body, assignment(default="fp16")))["mode"] == "fp16"


@pytest.mark.parametrize("size", [ROOM + 1, LIMIT])
def test_without_room_a_pod_is_fp32_by_its_environment_alone(size: int) -> None:
    became = admitted(full(size, mode="fp16", request=request(5, "fp16")), assignment(default="fp16"))
    assert list(became["metadata"]["annotations"]) == ["fill"]
    assert became["spec"]["containers"][0]["env"] == [*literal("false"), *literal("false", "fp32")]


@pytest.mark.parametrize("size", [ROOM - 100, ROOM])
def test_no_pod_becomes_too_large_for_the_api_server(size: int) -> None:
    longest = [assignment("n" * 252 + str(index), default="fp16", generation=2**49) for index in range(10)]
    annotations = admitted(full(size), *longest)["metadata"]["annotations"]
    assert sum(len(key) + len(value) for key, value in annotations.items()) <= LIMIT


@pytest.mark.parametrize(("count", "mode"), [(1_000, "fp16"), (1_001, None)])
def test_more_annotations_than_are_read_count_as_no_room(count: int, mode: str | None) -> None:
    body = pod(annotations={f"n{index}": "" for index in range(count)})
    once = admitted(body, assignment(default="fp16"))
    assert found(once).get("mode") == mode
    assert admitted(once, assignment(default="fp16")) == once


def test_odd_bodies_are_left_alone_or_made_whole() -> None:
    everything = assignment(selector={"matchExpressions": [needs("x", "DoesNotExist")]}, default="fp16")
    odd: Json
    for odd in ({}, {"metadata": None, "spec": []}, {"metadata": {"annotations": []}, "spec": {"containers": "x"}}):
        assert found(admitted(odd, everything))["mode"] == "fp16"
    for body in ({}, {"metadata": 5}, {"enforce": True, "selector": {"matchLabels": FLEET}, "modes": [], "default": 5}):
        assert admit(ASKING, [body]) is ASKING
