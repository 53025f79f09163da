"""The environment of an admitted pod's containers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from precision_operator.admission.environment import MAX_ENTRIES, with_environment
from precision_operator.api.modes import Mode
from tests.support.bodies import MEANING, SWITCH, Json, container, literal
from tests.support.environments import CONFIG_MAP, FROM_MAP, OTHER_ANNOTATION, OTHER_FIELD, RESOURCE, SECRET, SWAPPED

A = {"name": "A", "value": "1"}
REFERRING = {"name": "B", "value": "$(ENABLE_FP16_TRAINING)"}
BF16 = literal("true", "bf16")
ON, MODE = BF16


def became(
    *containers: Json, annotated: bool = True, mode: Mode = Mode.BF16, init: Sequence[Json] = ()
) -> list[list[Json] | None]:
    """The env of each container, init containers last."""
    spec = {"containers": list(containers), "initContainers": list(init)}
    changed: Json = dict(with_environment(spec, mode, annotated=annotated))
    return [item.get("env") for field in ("containers", "initContainers") for item in changed.get(field, [])]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([SWITCH, MEANING], [SWITCH, MEANING]),
        ([SWITCH], [SWITCH, MODE]),
        (literal("false"), BF16),
        (literal("true", "fp16"), BF16),
        (literal("nonsense", "$(X)"), BF16),
        ([CONFIG_MAP], BF16),
        ([SECRET, A], [ON, A, MODE]),
        ([OTHER_FIELD], BF16),
        ([OTHER_ANNOTATION], BF16),
        ([SWAPPED], BF16),
        ([SWITCH, RESOURCE], [SWITCH, MODE]),
        ([*literal("true"), MEANING], [ON, MEANING]),
        ([MEANING, SWITCH], [MEANING, SWITCH]),
        ([A, {"name": "ENABLE_FP16_TRAINING", "value": "$(A)"}, REFERRING], [A, ON, REFERRING, MODE]),
        ([CONFIG_MAP, SWITCH, *literal("false")], [ON, SWITCH, ON, MODE]),
        ([*literal("", "fp16")[1:], A, *literal("true", "fp32")], [MODE, A, ON, MODE]),
    ],
)
def test_an_entry_is_replaced_where_it_stands_unless_it_reads_its_annotation(
    before: list[Json], after: list[Json]
) -> None:
    assert became(container(env=before)) == [after]


@pytest.mark.parametrize(
    "fields", [{}, {"env": []}, {"env": [A]}, {"env": [MEANING]}, {"env": literal("", "fp16")[1:]}]
)
def test_a_container_without_the_switch_stays_as_it_is(fields: Json) -> None:
    assert became(container(**fields)) == [fields.get("env")]


@pytest.mark.parametrize(
    ("fields", "after"),
    [
        ({}, BF16),
        ({"env": [A]}, [A, *BF16]),
        ({"env": [MEANING]}, [MEANING, ON]),
        ({"env": [SWITCH]}, [SWITCH, MODE]),
        ({"env": literal("", "fp16")[1:]}, [MODE, ON]),
    ],
)
def test_what_may_come_from_elsewhere_is_overridden(fields: Json, after: list[Json]) -> None:
    assert became(container(envFrom=FROM_MAP, **fields)) == [after]


def test_each_container_is_judged_for_itself_and_init_containers_alike() -> None:
    init = [container("i", env=literal("true")), container("j")]
    assert became(container("a"), container("b", env=[CONFIG_MAP]), init=init) == [None, BF16, BF16, None]


def test_fp32_turns_the_switch_off() -> None:
    assert became(container(env=literal("true", "fp16")), mode=Mode.FP32) == [literal("false", "fp32")]


def test_without_annotations_nothing_may_read_them() -> None:
    assert became(container(env=[SWITCH, MEANING]), annotated=False) == [BF16]


def test_a_pod_with_more_entries_than_are_read_gets_both_at_the_end() -> None:
    many = [{"name": f"V{index}"} for index in range(MAX_ENTRIES)]
    assert became(container(env=[*many[1:], SWITCH])) == [[*many[1:], SWITCH, MODE]]
    once = [*many, SWITCH, *BF16]
    assert became(container(env=[*many, SWITCH]), container("b"), container("c", env=[A])) == [once, BF16, [A, *BF16]]
    assert became(container(env=once)) == [once]
    for end in ([ON, A], [A, MODE]):
        assert became(container(env=[*many, *end])) == [[*many, *end, *BF16]]
    assert became(container(env=once), mode=Mode.FP32) == [[*many, SWITCH, *literal("false", "fp32")]]


@pytest.mark.parametrize(
    "spec", [{}, {"containers": None}, {"containers": [None, {"env": {}}, {"env": [None, 5, {"name": 5}]}]}]
)
def test_an_odd_spec_is_no_fault(spec: Json) -> None:
    changed = with_environment(spec, Mode.FP16, annotated=True)
    assert set(changed) == set(spec)
