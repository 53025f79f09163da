"""The CRD's status is what the operator writes: no field more, none less."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from precision_operator.api.summary import Summary, parse_summary, summary_to_wire
from precision_operator.api.wire import mapping
from precision_operator.cli.lint import crd_schema
from precision_operator.cli.schema import faults
from tests.support.summaries import FULL, LONGEST


def schema() -> dict[str, object]:
    return dict(mapping(mapping(crd_schema()["properties"])["status"]))


def test_the_example_sets_every_field() -> None:
    bare = Summary()
    assert [f.name for f in fields(Summary) if getattr(FULL, f.name) == getattr(bare, f.name)] == []


@pytest.mark.parametrize("summary", [FULL, LONGEST, Summary()])
def test_whatever_is_written_fits_the_schema(summary: Summary) -> None:
    assert faults(schema(), json.loads(json.dumps(summary_to_wire(summary))), "status") == ()


def test_the_schema_has_no_field_that_is_never_written() -> None:
    written = json.loads(json.dumps(summary_to_wire(FULL)))
    known = mapping(schema()["properties"])
    assert set(known) == set(written)
    assert set(mapping(mapping(known["incident"])["properties"])) == set(written["incident"])


@pytest.mark.parametrize("summary", [FULL, LONGEST])
def test_a_status_survives_the_wire_and_stays_small(summary: Summary) -> None:
    text = json.dumps(summary_to_wire(summary))
    assert parse_summary(json.loads(text)) == summary
    assert len(text) < 20 * 1024
