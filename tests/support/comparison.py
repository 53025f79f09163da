"""What an enforcer of admission makes of pods, compared with what the pure function says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from precision_operator.admission.pod import admit
from precision_operator.contract import ADMITTED, INJECT
from tests.support.api import Place
from tests.support.bodies import Json, assignment, found, pod

MARKER = {"marker": "yes"}
MARKING = assignment("marker", selector={"matchLabels": MARKER}, default="bf16")
_MADE_ANEW = {"uid", "creationTimestamp", "namespace", "managedFields"}


def wait_for_marker(place: Place) -> None:
    """The marker is written last: admission that knows it knows the other assignments."""
    place.wait(pod(labels=MARKER), lambda made: "marker/" in found(made).get("admitted", ""), "the marker")


def lasting(answer: str, *, named: bool) -> Json:
    """A pod without what the API server makes anew each time; its name too, unless the client gave it one."""
    body: Json = json.loads(re.sub(r"kube-api-access-\w{5}", "kube-api-access", answer))
    made_anew = _MADE_ANEW if named else {*_MADE_ANEW, "name"}
    metadata = {key: value for key, value in body["metadata"].items() if key not in made_anew}
    return {"metadata": metadata, "spec": body["spec"]}  # the status holds the time


def plainly(place: Place, pods: Mapping[str, Json]) -> dict[str, Json]:
    """Every pod as the API server stores it where no assignment stands, and nothing is injected: it is sent without the
    label that asks for that, and has it afterwards.
    """
    stored = {}
    for name, sent in pods.items():
        labels = sent["metadata"].get("labels") or {}
        bare = {**sent["metadata"], "labels": {key: value for key, value in labels.items() if key != INJECT}}
        answer = place.post({**sent, "metadata": bare})
        assert answer.ok, f"{name}: {answer.text[:2_000]}"
        stored[name] = lasting(answer.text, named="name" in sent["metadata"])
        if INJECT in labels:
            stored[name]["metadata"]["labels"] = labels
    return stored


def differences(
    place: Place, pods: Mapping[str, Json], plain: Mapping[str, Json], assignments: Sequence[Json]
) -> dict[str, object]:
    """The pods that were refused, or that became something else than the function says."""
    wrong: dict[str, object] = {}
    for name, sent in pods.items():
        answer = place.post(sent)
        if not answer.ok:
            wrong[name] = answer.text[:400]
            continue
        became = _unordered(lasting(answer.text, named="name" in sent["metadata"]))
        expected = _unordered(dict(admit(plain[name], assignments)))
        if became != expected:
            wrong[name] = {key: (became[key], expected[key]) for key in expected if became[key] != expected[key]}
    return wrong


def measured(record: Callable[[str, object], None], enforcer: str, pods: int, wrong: Mapping[str, object]) -> None:
    """Leave what a comparison found in the test's report, for ``python -m lab.admission``."""
    denied = sum(isinstance(found, str) for found in wrong.values())
    for name, value in {"enforcer": enforcer, "pods": pods, "differences": len(wrong), "denied": denied}.items():
        record(name, value)


def _unordered(body: Json) -> Json:
    """A pod with its record sorted: assignments take their turns in no order to rely on."""
    annotations = body["metadata"].get("annotations", {})
    if ADMITTED not in annotations:
        return body
    record = " ".join(sorted(annotations[ADMITTED].split(" ")))
    return {**body, "metadata": {**body["metadata"], "annotations": {**annotations, ADMITTED: record}}}
