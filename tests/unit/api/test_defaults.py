"""The defaults in code are the CRD's: an object stored before a field existed must mean the same."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from precision_operator.api.signal_records import SIGNALS, SignalRecord
from precision_operator.api.spec import parse_spec

CRD = Path(__file__).parents[3] / "crds" / "precision.genesis.ai_precisionpolicies.yaml"


def materialised(schema: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON
    """What the API server's defaulting makes of an empty object."""
    default = schema.get("default")
    if schema.get("type") != "object":
        return default
    filled = dict(default) if isinstance(default, dict) else {}
    for name, inner in schema.get("properties", {}).items():
        value = materialised(inner)
        if name in filled and isinstance(filled[name], dict):
            value = {**(value or {}), **filled[name]}
        elif name in filled:
            value = filled[name]
        if value is not None and (inner.get("default") is not None or inner.get("type") != "object"):
            filled[name] = value
    return filled if default is not None or filled else None


def test_empty_spec_means_the_same_in_code_and_in_the_crd() -> None:
    schema = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = materialised(schema["properties"]["spec"])
    spec["selector"] = {"matchLabels": {"a": "b"}}
    assert parse_spec(spec) == parse_spec({"selector": {"matchLabels": {"a": "b"}}})


@pytest.mark.parametrize("record", SIGNALS.values(), ids=SIGNALS)
def test_what_test_fleets_report_is_good_and_bad_by_default(record: SignalRecord) -> None:
    worse = -1 if record.default.lower_is_worse else 1
    assert record.good * worse <= record.default.leave * worse
    assert record.bad * worse > record.default.enter * worse
