"""A report as a PrecisionIncident, and back."""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import cast

from precision_operator.incidents.report import Report
from precision_operator.kube.port import INCIDENTS, JsonObject
from precision_operator.replay.codec import Json, RecordingError, decode, encode

POLICY_LABEL = f"{INCIDENTS.group}/policy"
SEVERITY_LABEL = f"{INCIDENTS.group}/severity"
PHASE_LABEL = f"{INCIDENTS.group}/phase"


def name_of(incident_id: str, decided_at: str) -> str:
    """The object's name: of the incident's id and its time, so that writing it twice makes one object.

    Not of the policy's uid: a rollback goes on when its policy is deleted and made anew.
    """
    plain = re.sub(r"[^a-z0-9.-]+", "-", incident_id.lower()).strip("-.")
    return f"{plain[:230]}-{sha256(decided_at.encode()).hexdigest()[:8]}"


def name_for(report: Report) -> str:
    """The name of a report's object."""
    return name_of(report.id, report.stages.decided_at)


def label(text: str) -> str:
    """``text`` as a label's value: itself where it fits into 63 characters, else its start and a digest."""
    return text if len(text) <= 63 else f"{text[:54]}-{sha256(text.encode()).hexdigest()[:8]}"


def to_body(report: Report, *, namespace: str, resource_version: str = "") -> JsonObject:
    """The object: without owner, so that it outlives the policy."""
    metadata: JsonObject = {
        "name": name_for(report),
        "namespace": namespace,
        "labels": {
            POLICY_LABEL: label(report.policy),
            **({SEVERITY_LABEL: str(report.severity)} if report.severity is not None else {}),
            PHASE_LABEL: str(report.phase),
        },
    }
    if resource_version:
        metadata["resourceVersion"] = resource_version
    wire = cast(JsonObject, encode(report, Report))
    wire.setdefault("phase", str(report.phase))  # what people and columns read is there even where it is the default
    return {
        "apiVersion": INCIDENTS.api_version,
        "kind": "PrecisionIncident",
        "metadata": metadata,
        "report": wire,
    }


def from_body(body: Mapping[str, object]) -> Report:
    """The report of an object.

    Raises:
        RecordingError: it is none, or of a version with fields unknown here.
    """
    raw = body.get("report")
    if not isinstance(raw, dict):
        raise RecordingError("expected a PrecisionIncident with a report, found none; name one of `incident list`")
    return decode(cast(Json, raw), Report)
