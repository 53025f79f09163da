"""What holds of every admitted pod, whatever it and the assignments say."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from precision_operator.admission.injection import asks
from precision_operator.admission.pod import admit
from precision_operator.api.modes import Mode, at_least_as_safe
from precision_operator.workloads.identity import workload_key
from tests.support.bodies import ALL_PODS, FLEET, PREFIX, Json, assignment, found
from tests.support.corpus import SELECTORS, corpus

CORPUS = {name: body for name, body in corpus().items() if not asks(body)}
"""What is injected into the others: test_injection.py."""
OURS = {f"{PREFIX}{field}" for field in ("request", "enable-fp16", "mode", "admitted")}
NAMES = ("ENABLE_FP16_TRAINING", "PRECISION_MODE")
MODES = st.sampled_from(["fp32", "bf16", "fp16"])
PODS = st.sampled_from(sorted(CORPUS)).map(CORPUS.__getitem__)


@st.composite
def assignments(draw: st.DrawFn, name: str) -> Json:
    """An assignment that often concerns the pod."""
    selectors: list[Json] = [ALL_PODS, ALL_PODS, {"matchLabels": FLEET}, *SELECTORS.values()]
    key = workload_key(draw(PODS))
    return assignment(
        name,
        selector=draw(st.sampled_from(selectors)),
        generation=draw(st.integers(0, 2**49)),
        default=draw(st.none() | MODES),
        modes=draw(st.none() | st.fixed_dictionaries({key: MODES})),
        indexes=draw(st.none() | st.fixed_dictionaries({key: st.integers(0, 4)})),
        indexMode=draw(st.none() | MODES),
        enforce=draw(st.sampled_from([True, True, True, False, None])),
    )


SETS = st.lists(st.sampled_from(["a", "b", "fleet", "n" * 253]), unique=True, max_size=4).flatmap(
    lambda names: st.tuples(*(assignments(name) for name in names))
)


def comparable(pod: Mapping[str, object]) -> Json:
    """A pod with its record sorted."""
    body: Json = dict(pod)
    annotations = dict(body["metadata"].get("annotations") or {})
    if f"{PREFIX}admitted" in annotations:
        annotations[f"{PREFIX}admitted"] = sorted(annotations[f"{PREFIX}admitted"].split(" "))
    return {**body, "metadata": {**body["metadata"], "annotations": annotations}}


def started_in(container: Json, annotations: Json) -> tuple[str | None, str | None]:
    """Both variables as the kubelet would resolve them without what comes from elsewhere: the last entry counts."""
    values: dict[str, str | None] = dict.fromkeys(NAMES)
    for entry in container.get("env", []):
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if path.startswith("metadata.annotations['"):
            values[entry["name"]] = annotations.get(path.removeprefix("metadata.annotations['").removesuffix("']"), "")
        else:
            values[entry["name"]] = entry.get("value")
    return values[NAMES[0]], values[NAMES[1]]


def metadata_of(pod: Mapping[str, object]) -> Json:
    body: Json = dict(pod)
    return dict(body["metadata"])


def containers(pod: Mapping[str, object]) -> list[Json]:
    body: Json = dict(pod)
    return [*body["spec"]["containers"], *body["spec"].get("initContainers", [])]


@given(PODS, SETS, st.randoms())
def test_the_order_of_assignments_does_not_matter(body: Json, given_: tuple[Json, ...], random: Random) -> None:
    shuffled = list(given_)
    random.shuffle(shuffled)
    first, second = admit(body, given_), admit(body, shuffled)
    for field in ("mode", "enable-fp16", "request"):
        assert found(dict(first)).get(field) == found(dict(second)).get(field)
    assert first["spec"] == second["spec"]


@given(PODS, SETS)
def test_admitting_twice_changes_nothing_more(body: Json, given_: tuple[Json, ...]) -> None:
    once = admit(body, given_)
    assert comparable(admit(once, given_)) == comparable(once)


@given(PODS, SETS)
def test_a_pod_is_never_less_safe_than_any_assignment_says(body: Json, given_: tuple[Json, ...]) -> None:
    became = admit(body, given_)
    annotations = metadata_of(became).get("annotations") or {}
    for one in given_:
        alone = admit(body, [one])
        if alone is body:
            continue
        asked = found(dict(admit({**body, "metadata": {**body["metadata"], "annotations": {}}}, [one])))["mode"]
        mode = found(dict(became)).get("mode", "fp32")
        assert at_least_as_safe(Mode(mode), as_=Mode(asked))
        for container, sent in zip(containers(became), containers(body), strict=True):
            if any(entry["name"] == NAMES[0] for entry in sent.get("env", [])) or sent.get("envFrom"):
                assert started_in(container, annotations) == ("false" if mode == "fp32" else "true", mode)


@given(PODS, SETS)
def test_nothing_else_of_a_pod_is_touched(body: Json, given_: tuple[Json, ...]) -> None:
    if all(admit(body, [one]) is body for one in given_):
        assert admit(body, given_) is body
    became: Json = dict(admit(body, given_))
    for field in set(body) | set(became):
        if field not in ("metadata", "spec"):
            assert became[field] == body[field]
    assert foreign(became["metadata"], "annotations", OURS) == foreign(body["metadata"], "annotations", OURS)
    before = body["spec"]
    assert {k: v for k, v in became["spec"].items() if k not in ("containers", "initContainers")} == {
        k: v for k, v in before.items() if k not in ("containers", "initContainers")
    }
    for now, then in zip(containers(became), containers(body), strict=True):
        assert {k: v for k, v in now.items() if k != "env"} == {k: v for k, v in then.items() if k != "env"}
        assert others(now) == others(then)
        assert [e["name"] for e in now.get("env", [])][: len(then.get("env", []))] == [
            e["name"] for e in then.get("env", [])
        ]


def foreign(metadata: Json, field: str, own: set[str]) -> Json:
    return {key: value for key, value in (metadata.get(field) or {}).items() if key not in own}


def others(container: Json) -> list[Json]:
    """The entries that are not of the contract, in their order."""
    return [entry for entry in container.get("env", []) if entry["name"] not in NAMES]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
FIELDS = ("labels", "annotations", "ownerReferences", "name")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), JSON, JSON)
def test_no_body_is_too_odd(metadata: Json, spec: object, modes: object) -> None:
    body = {"metadata": metadata, "spec": spec}
    assert "/" in workload_key(body)
    admit(body, [assignment(selector=ALL_PODS, default="fp16", modes=modes)])
