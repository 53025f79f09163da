"""What holds of every pod that asks for the contract, whatever it and the assignments say."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from precision_operator.admission.injection import asks, inject
from precision_operator.admission.pod import admit
from precision_operator.api.injection import parse_refusal
from precision_operator.contract import INJECT, INJECTED
from precision_operator.workloads.identity import workload_key
from precision_operator.workloads.reading import is_hot
from tests.support.annotated import LIMIT
from tests.support.bodies import ALL_PODS, PREFIX, Json, assignment, found
from tests.support.injections import injections

CORPUS = {name: body for name, body in injections().items() if asks(body)}
PODS = st.sampled_from(sorted(CORPUS)).map(CORPUS.__getitem__)
MODES = st.sampled_from(["fp32", "bf16", "fp16"])
SETS = st.lists(st.tuples(MODES, st.integers(0, 2**49)), max_size=2).map(
    lambda drawn: [
        assignment(name, selector=ALL_PODS, default=mode, generation=generation)
        for name, (mode, generation) in zip(("fleet", "n" * 253), drawn, strict=False)
    ]
)


def assigned(pod: Mapping[str, object], assignments: list[Json]) -> Json:
    """What the assignments alone make of it, as if another policy did the injection."""
    body: Json = dict(pod)
    labels = body["metadata"]["labels"]
    bare = {**body["metadata"], "labels": {key: value for key, value in labels.items() if key != INJECT}}
    made: Json = dict(admit({**body, "metadata": bare}, assignments))
    return {**made, "metadata": {**made["metadata"], "labels": labels}}


def comparable(pod: Mapping[str, object]) -> Json:
    """A pod with its record sorted."""
    body: Json = dict(pod)
    annotations = dict(body["metadata"].get("annotations") or {})
    if f"{PREFIX}admitted" in annotations:
        annotations[f"{PREFIX}admitted"] = " ".join(sorted(annotations[f"{PREFIX}admitted"].split(" ")))
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


@given(PODS, SETS)
def test_injection_and_assignment_may_run_in_any_order(body: Json, given_: list[Json]) -> None:
    """Each runs again after the other has changed something, as the API server has it."""
    whole = comparable(admit(body, given_))
    first = assigned(inject(assigned(body, given_)), given_)
    assert comparable(first) == whole
    assert comparable(inject(first)) == whole
    assert comparable(inject(assigned(inject(body), given_))) == whole


@given(PODS, SETS)
def test_admitting_twice_changes_nothing_more(body: Json, given_: list[Json]) -> None:
    once = admit(body, given_)
    assert comparable(admit(once, given_)) == comparable(once)


@given(PODS)
def test_a_pod_gets_everything_or_nothing_but_the_reason(body: Json) -> None:
    made: Json = dict(inject(body))
    record = found(made).get("injected", "")
    if record == body["metadata"]["labels"][INJECT]:
        assert is_hot(made["spec"])
        return
    assert made["spec"] == body["spec"]
    before, after = (dict(pod["metadata"].get("annotations") or {}) for pod in (body, made))
    assert (parse_refusal(after.pop(INJECTED, None)) is None) == (record == "")
    before.pop(INJECTED, None)
    assert before == after


@given(PODS, SETS)
def test_no_pod_becomes_too_large_for_the_api_server(body: Json, given_: list[Json]) -> None:
    def size(pod: Json) -> int:
        annotations = pod["metadata"].get("annotations") or {}
        return sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())

    assert size(dict(inject(body))) <= max(LIMIT, size(body))
    assert size(dict(admit(body, given_))) <= max(LIMIT, size(body))


@given(PODS)
def test_nothing_that_stands_there_is_changed(body: Json) -> None:
    made: Json = dict(inject(body))
    for now, then in zip(made["spec"]["containers"], body["spec"]["containers"], strict=True):
        for field in {*now, *then} - {"env", "ports", "volumeMounts"}:
            assert now[field] == then[field]
        kept, entries = then.get("env", []), now.get("env", [])
        assert entries[len(entries) - len(kept) :] == kept
        for field in ("ports", "volumeMounts"):
            assert now.get(field, [])[: len(then.get(field, []))] == then.get(field, [])
        names = [entry["name"] for entry in entries[: len(entries) - len(kept)]]
        assert not {*names} & {entry["name"] for entry in kept}
    volumes = body["spec"].get("volumes", [])
    assert made["spec"].get("volumes", [])[: len(volumes)] == volumes
    before, after = (pod["metadata"].get("annotations") or {} for pod in (body, made))
    assert {key: value for key, value in after.items() if key in before and key != INJECTED}.items() <= before.items()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
SPECS = st.fixed_dictionaries(
    {},
    optional={
        "containers": st.lists(
            st.fixed_dictionaries(
                {"name": st.just("trainer")},
                optional=dict.fromkeys(("env", "ports", "volumeMounts", "volumeDevices", "envFrom"), JSON),
            ),
            max_size=2,
        )
        | JSON,
        "initContainers": JSON,
        "volumes": JSON,
        "os": JSON,
        "hostNetwork": JSON,
    },
)


@given(SPECS, JSON, JSON)
def test_no_body_is_too_odd(spec: Json, label: object, annotations: object) -> None:
    body = {"metadata": {"labels": {INJECT: label}, "annotations": annotations}, "spec": spec}
    inject(body)
    named = {"metadata": {"labels": {INJECT: "trainer"}, "annotations": annotations}, "spec": spec}
    made = inject(named)
    assert "/" in workload_key(made)
    assert inject(made) == made
