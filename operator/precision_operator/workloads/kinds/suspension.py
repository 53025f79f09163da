"""Who says whether a Job is suspended: read from the API server's own record of who set which field."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.kube.port import FIELD_MANAGER
from precision_operator.workloads.kinds.kind import Body

MANIFEST = "its manifest"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
LAST_APPLIED_CHARACTERS = 65_536
"""A longer one that may state ``suspend`` is taken for one that does: it is not parsed."""
MANAGER_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class _Setter:
    """A manager that has set ``spec.suspend``."""

    name: str
    applies: bool
    """By server-side apply: it states the field, and will again. Any other writer also owns what was defaulted for it."""
    made_it: bool
    """It has set the pod template too, which never changes: it created the Job."""


def stated_by(body: Body) -> str:
    """Why a suspension of ours would be undone: a manager states ``suspend`` in its manifest. Empty: none does."""
    for setter in _setters(body):
        if setter.applies and setter.name != FIELD_MANAGER:
            return f"{bounded(setter.name, MANAGER_CHARACTERS)} applies spec.suspend, and would undo a suspension"
    if _last_applied_states(body):
        return f"{MANIFEST} states spec.suspend, so that applying it again would undo a suspension"
    return ""


def suspended_by(body: Body) -> str:
    """Who suspended a Job that is suspended; empty where that was the operator, or is not recorded."""
    setters = list(_setters(body))
    if any(setter.applies and setter.name != FIELD_MANAGER for setter in setters):
        return MANIFEST
    if any(setter.name == FIELD_MANAGER for setter in setters):
        return ""
    if not setters:
        return ""
    if setters[0].made_it:
        return MANIFEST
    return bounded(setters[0].name, MANAGER_CHARACTERS) or "a manager without a name"


def _setters(body: Body) -> Iterator[_Setter]:
    for entry in map(mapping, sequence(mapping(body.get("metadata")).get("managedFields"))):
        spec = mapping(mapping(entry.get("fieldsV1")).get("f:spec"))
        if "f:suspend" in spec:
            yield _Setter(text(entry.get("manager")), entry.get("operation") == "Apply", "f:template" in spec)


def _last_applied_states(body: Body) -> bool:
    annotations = mapping(mapping(body.get("metadata")).get("annotations"))
    raw = text(annotations.get(LAST_APPLIED))
    if len(raw) > LAST_APPLIED_CHARACTERS:
        return '"suspend"' in raw
    if '"suspend"' not in raw and "\\u" not in raw:
        return False
    try:
        applied = json.loads(raw)
    except RecursionError:
        return True
    except ValueError:
        return False
    return "suspend" in mapping(mapping(applied).get("spec"))
