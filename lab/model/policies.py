"""Policies as the API server would store them."""

from collections.abc import Mapping
from typing import Any

from precision_operator.api.policy import Policy, parse_policy


def policy(*, annotations: dict[str, str] | None = None, uid: str = "policy-uid", **spec: object) -> Policy:
    """A policy over everything, with the CRD's defaults unless ``spec`` says otherwise."""
    body: dict[str, object] = {
        "metadata": {
            "name": "fleet",
            "namespace": "ns",
            "uid": uid,
            "generation": 1,
            "resourceVersion": "1",
            "annotations": annotations or {},
        },
        "spec": {"selector": {"matchLabels": {"fleet": "demo"}}, **spec},
    }
    return parse_policy(body)


def written(spec: Mapping[str, object], *, uid: str) -> Policy:
    """The policy of a person who wrote this spec, and gave no command yet."""
    return policy(annotations={}, uid=uid, **spec)


FAST: dict[str, Any] = {
    "evaluation": {"interval": "15s", "failureLimit": 0, "minSamples": 1},
    "reenable": {"prerequisites": [], "backoff": "0s", "dwell": "0s"},
    "strategy": {
        "steps": [
            {"setWeight": 20},
            {"pause": {"duration": "30s"}},
            {"setWeight": 60},
            {"pause": {"duration": "30s"}},
            {"setWeight": 100},
        ]
    },
}
