"""The contract in an injected pod, and what stands against it."""

from __future__ import annotations

import json

import pytest

from precision_operator.admission.injection import inject
from precision_operator.admission.pod import admit
from precision_operator.api.injection import Refusal, parse_refusal
from precision_operator.workloads.reading import is_hot
from tests.support.annotated import LIMIT
from tests.support.asking import INJECT, METRICS, MOUNT, UID, asking
from tests.support.bodies import FLEET, REQUEST_VOLUME, Json, assignment, container, found, literal, ours, pod
from tests.support.environments import FROM_MAP
from tests.support.injections import MOST_ANNOTATION_BYTES, injections
from tests.support.refusals import refused

SWITCH = ["ENABLE_FP16_TRAINING", "PRECISION_MODE"]


def injected(body: Json) -> Json:
    return dict(inject(body))


def env(body: Json) -> list[str]:
    return [entry["name"] for entry in body["spec"]["containers"][0].get("env", [])]


def test_a_bare_pod_gets_the_whole_contract() -> None:
    made = injected(asking())
    (trainer,) = made["spec"]["containers"]
    sources = {entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"] for entry in trainer["env"]}
    assert sources == {
        "ENABLE_FP16_TRAINING": "metadata.annotations['precision.genesis.ai/enable-fp16']",
        "PRECISION_MODE": "metadata.annotations['precision.genesis.ai/mode']",
        "PRECISION_POD_UID": "metadata.uid",
    }
    assert trainer["ports"] == [{**METRICS, "protocol": "TCP"}]
    assert trainer["volumeMounts"] == [MOUNT]
    assert made["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": "9400",
        "precision.genesis.ai/injected": "trainer",
    }
    assert is_hot(made["spec"])


def test_an_assignment_finds_an_injected_pod_as_if_it_were_declared_by_hand() -> None:
    made = dict(admit(asking(), [assignment(default="bf16")]))
    assert found(made)["mode"] == "bf16"
    assert made["spec"] == injected(asking())["spec"]


@pytest.mark.parametrize("body", [pod(), pod(annotations=ours(injected="trainer")), pod(labels={}), {}])
def test_a_pod_without_the_label_stays_as_it_is(body: Json) -> None:
    assert inject(body) is body


def test_the_pod_that_is_given_is_not_changed() -> None:
    body = asking(container(env=literal("true")), volumes=[REQUEST_VOLUME])
    before = json.dumps(body)
    inject(body)
    assert json.dumps(body) == before


def test_only_the_named_container_is_changed() -> None:
    made = injected(asking(container("a"), container(), container("c")))
    assert [item.get("volumeMounts") for item in made["spec"]["containers"]] == [None, [MOUNT], None]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, [*SWITCH, "PRECISION_POD_UID"]),
        ({"env": [{"name": "A"}]}, [*SWITCH, "PRECISION_POD_UID", "A"]),
        ({"env": [UID]}, [*SWITCH, "PRECISION_POD_UID"]),
        ({"env": literal("true")}, ["PRECISION_POD_UID", "ENABLE_FP16_TRAINING"]),
        ({"env": literal("", "bf16")[1:]}, ["ENABLE_FP16_TRAINING", "PRECISION_POD_UID", "PRECISION_MODE"]),
        ({"envFrom": FROM_MAP}, ["PRECISION_POD_UID"]),
    ],
)
def test_a_mode_that_the_template_says_itself_stays_the_templates(fields: Json, names: list[str]) -> None:
    assert env(injected(asking(container(**fields)))) == names


def test_what_is_declared_by_hand_is_not_declared_twice() -> None:
    trainer = container(env=[*literal("true", "bf16"), UID], ports=[METRICS], volumeMounts=[MOUNT])
    body = asking(trainer, volumes=[REQUEST_VOLUME], annotations={"prometheus.io/scrape": "false"})
    made = injected(body)
    assert made["spec"] == body["spec"]
    assert found(made) == {"injected": "trainer"}


@pytest.mark.parametrize("annotation", ["scrape", "port", "path", "scheme"])
def test_whoever_says_how_a_pod_is_scraped_is_believed(annotation: str) -> None:
    said = {f"prometheus.io/{annotation}": "x"}
    made = injected(asking(annotations=said))
    assert {key: value for key, value in made["metadata"]["annotations"].items() if "prometheus" in key} == said


@pytest.mark.parametrize("name", refused())
def test_a_conflict_injects_nothing_and_is_recorded(name: str) -> None:
    body, why = refused()[name]
    made = injected(body)
    assert made["spec"] == body["spec"]
    assert found(made)["injected"] == f"refused: {why}"
    assert parse_refusal(f"refused: {why}") is Refusal(why)


def test_every_refusal_is_in_the_corpus() -> None:
    records = (found(injected(body)).get("injected") for body in injections().values())
    assert {found for found in map(parse_refusal, records) if found is not None} == set(Refusal)


@pytest.mark.parametrize("record", [None, "", "trainer", "refused:", "refused: Weather", "refused: hostnetwork", 5])
def test_what_is_no_refusal_of_ours_is_none(record: object) -> None:
    assert parse_refusal(record) is None


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("as many variables as are read", "trainer"),
        ("one variable more than is read", "refused: TooLarge"),
        ("as many variables as are read, and ours", "trainer"),
        ("as many variables as are read, in others", "trainer"),
        ("one more than is read, in others", "refused: TooLarge"),
        ("our switch a thousand times", "trainer"),
        ("our switch a thousand times and once more", "refused: TooLarge"),
        ("as many parts as are read", "trainer"),
        ("a thousand parts and one", "refused: TooLarge"),
        ("a hundred containers", "trainer"),
        ("a hundred containers and one", "refused: TooLarge"),
        ("annotations that leave room", "trainer"),
        ("annotations that leave no room", None),
        ("annotations that leave no room, and a record", None),
        ("ours beside annotations that leave room", "trainer"),
        ("as many annotations as are read", "trainer"),
        ("one annotation more than is read", None),
        ("as many annotations as are read, and ours", "trainer"),
        ("a long scrape annotation", None),
    ],
)
def test_a_pod_is_read_to_a_limit(name: str, record: str | None) -> None:
    assert found(injected(injections()[f"injection: {name}"])).get("injected") == record


@pytest.mark.parametrize("own", [2_048, 2_049])
def test_without_room_for_the_record_nothing_is_done(own: int) -> None:
    """What an assignment writes counts where it is longer than that would be."""
    body = asking(annotations={"fill": "x" * (MOST_ANNOTATION_BYTES - 4), **ours(request="r" * own)})
    made = injected(body)
    assert ("injected" in found(made)) == (own == 2_048)
    annotations = made["metadata"]["annotations"]
    assert sum(len(key) + len(value) for key, value in annotations.items()) <= LIMIT


def test_the_label_of_a_template_is_enough() -> None:
    template: Json = {"metadata": {"labels": {**FLEET, INJECT: "trainer"}}, "spec": {"containers": [container()]}}
    assert is_hot(injected(template)["spec"])
