"""What a workload and its pods show of themselves: names, modes, generations."""

import pytest

from precision_operator.api.modes import Mode
from precision_operator.core.model import Request, WorkloadView
from tests.support.fleets import change, condition, fleet
from tests.support.views import pod


@pytest.mark.parametrize(
    ("hot", "request_", "mode"),
    [
        (True, Request(7, Mode.FP32), Mode.FP32),
        (True, None, Mode.FP16),
        (False, Request(7, Mode.FP32), Mode.FP16),
        (False, None, Mode.FP16),
    ],
)
def test_a_request_counts_only_where_the_pod_can_read_it(hot: bool, request_: Request | None, mode: Mode) -> None:
    assert pod(hot=hot, request=request_, started_mode=Mode.FP16).effective_mode is mode


@pytest.mark.parametrize(
    ("request_", "admitted", "generation"),
    [
        (None, (), 0),
        (Request(7, Mode.FP32), (), 7),
        (None, (("fleet", 3), ("other", 5)), 5),
        (Request(4, Mode.FP32), (("fleet", 5),), 5),
        (Request(9, Mode.FP32), (("fleet", 5),), 9),
    ],
)
def test_a_pod_carries_the_newest_generation_of_its_request_and_of_its_admission(
    request_: Request | None, admitted: tuple[tuple[str, int], ...], generation: int
) -> None:
    assert pod(request=request_, admitted=admitted).generation == generation


@pytest.mark.parametrize(
    ("key", "kind", "name"),
    [("apps/Deployment/vit-a", "Deployment", "vit-a"), ("/Pod/x", "Pod", "x"), ("label/y", "label", "y")],
)
def test_a_key_names_kind_and_name(key: str, kind: str, name: str) -> None:
    found = WorkloadView("ns", key, "uid")
    assert (found.kind, found.name) == (kind, name)


@pytest.mark.parametrize(
    ("modes", "status", "reason"),
    [
        ((Mode.FP32, Mode.FP32), "True", "TemplatesStartInFP32"),
        ((Mode.FP16, None), "False", "TemplateStartsMixed"),
        ((Mode.BF16, Mode.FP32), "False", "TemplateStartsMixed"),
        ((Mode.FP32, None), "Unknown", "TemplateReadsReference"),
    ],
)
def test_whether_templates_are_safe_without_admission_is_shown(
    modes: tuple[Mode | None, Mode | None], status: str, reason: str
) -> None:
    world = fleet()
    for name, mode in zip(("hot-1", "literal"), modes, strict=True):
        change(world, name, template_mode=mode)
    world.step(1.0)
    found = condition(world, "FailSafe")
    assert (found.status, found.reason) == (status, reason)
    assert "hot-0" not in found.message
