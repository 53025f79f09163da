"""docs/onboarding.md: each way gives the pod that the page shows, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from precision_operator.admission.injection import inject
from precision_operator.api.injection import Refusal
from precision_operator.contract import INJECT, INJECTED
from precision_operator.workloads.kinds.deployment import read_deployment
from precision_operator.workloads.reading import is_hot
from tests.support.asking import asking
from tests.support.bodies import Json
from tests.support.onboarding import block, parsed

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "admission.md").read_text()


def template(name: str) -> Json:
    found: Json = parsed(name)["spec"]["template"]
    return found


def injected(body: Json) -> Json:
    return dict(inject(body))


def test_the_page_shows_what_the_label_brings_byte_for_byte() -> None:
    assert block("the pod") == yaml.safe_dump(injected(template("by label")), sort_keys=False, width=1_000)


def test_what_is_written_by_hand_is_what_the_label_brings() -> None:
    by_label, by_hand = injected(template("by label")), template("by hand")
    assert by_label["spec"] == by_hand["spec"]
    annotations = by_label["metadata"]["annotations"]
    assert {key: value for key, value in annotations.items() if key != INJECTED} == by_hand["metadata"]["annotations"]


def test_the_label_adds_nothing_to_what_is_written_by_hand() -> None:
    by_hand = template("by hand")
    labels = {**by_hand["metadata"]["labels"], INJECT: "trainer"}
    made = injected({**by_hand, "metadata": {**by_hand["metadata"], "labels": labels}})
    assert made["spec"] == by_hand["spec"]
    assert made["metadata"]["annotations"] == {**by_hand["metadata"]["annotations"], INJECTED: "trainer"}


def test_either_way_the_pods_are_hot() -> None:
    assert is_hot(injected(template("by label"))["spec"])
    assert read_deployment(parsed("by hand")).view.hot


def test_every_pod_that_is_injected_gets_just_this() -> None:
    """The page's pod is no special one."""
    shown, made = parsed("the pod"), injected(asking())
    (here,), (there,) = shown["spec"]["containers"], made["spec"]["containers"]
    for field in ("env", "ports", "volumeMounts"):
        assert here[field] == there[field]
    assert shown["spec"]["volumes"] == made["spec"]["volumes"]
    assert shown["metadata"]["annotations"] == made["metadata"]["annotations"]


def test_the_reference_has_every_reason_with_its_meaning_and_the_next_step() -> None:
    for reason in (refusal.reason for refusal in Refusal):
        (step,) = reason.steps
        assert f"| `{reason}` | {reason.meaning} | {step} |" in REFERENCE


def test_the_reference_has_every_part_byte_for_byte() -> None:
    made = injected(asking())
    (trainer,) = made["spec"]["containers"]
    parts = [*trainer["env"], *trainer["ports"], *trainer["volumeMounts"], *made["spec"]["volumes"]]
    for part in parts:
        assert f"`{json.dumps(part, separators=(',', ':'))}`" in REFERENCE
    for key, value in made["metadata"]["annotations"].items():
        assert f'{key}: "{value}"' in REFERENCE or key == INJECTED
