"""Metrics, labels and their values in rules are those of the code: one that is renamed would silence its alert."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import yaml

from precision_operator.api.modes import Mode
from precision_operator.api.state import Phase
from precision_operator.api.summary import Summary
from precision_operator.controller.reports import workload_counts
from precision_operator.controller.worker import SUCCESS
from precision_operator.incidents.notifier import MessageResult
from precision_operator.observability.metrics import Metrics, PolicyTime
from precision_operator.reasons import Reason
from precision_operator.webhook.server import ReviewResult
from precision_trainer.values.request import REASONS

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "manifests" / "monitoring" / "alerts.yaml").read_text())["groups"]
TEXT = "\n".join(rule["expr"] for group in RULES for rule in group["rules"])
CONDITIONS = set(re.findall(r"\w+", str(Summary.__annotations__["conditions"])))
VALUES: dict[tuple[str, str], set[str]] = {
    ("genesis_cuda_memory_allocated_bytes", "mode"): set(Mode),
    ("genesis_precision_info", "mode"): set(Mode),
    ("genesis_request_errors_total", "reason"): set(REASONS),
    ("genesis_run_info", "device"): {"cpu", "cuda"},
    ("namespace_policy:precision_policy_condition:leader", "type"): CONDITIONS,
    ("namespace_policy:precision_policy_info:leader", "phase"): set(Phase),
    ("namespace_policy:precision_policy_timestamp_seconds:leader", "of"): set(get_args(PolicyTime)),
    ("namespace_policy:precision_policy_workloads:leader", "state"): set(workload_counts(Summary())),
    ("precision_notifications_total", "result"): set(MessageResult),
    ("precision_operator_admission_reviews_total", "result"): set(ReviewResult),
    ("reconcile_total", "result"): {SUCCESS, *Reason},
}
"""What the code writes into a label of a metric."""


def chosen() -> Iterator[tuple[str, str, str]]:
    """Each value that a rule chooses by: metric, label, value."""
    for metric, matchers in re.findall(r"([\w:]+)\{([^}]+)\}", TEXT):
        for label, _, value in re.findall(r"(\w+)(!?=~?)\"([^\"]*)\"", matchers):
            yield from ((metric, label, one) for one in value.split("|"))


@pytest.mark.parametrize(("metric", "label", "value"), sorted(set(chosen())))
def test_a_value_by_which_a_rule_chooses_is_one_that_the_code_writes(metric: str, label: str, value: str) -> None:
    assert value in VALUES[metric, label]


def test_each_label_whose_values_are_known_is_chosen_by() -> None:
    assert {(metric, label) for metric, label, _ in chosen()} == set(VALUES)


def test_each_series_is_one_that_trainers_or_the_operator_export() -> None:
    named = set(re.findall(r"(?<![:\w])(?:genesis|precision|workqueue|reconcile)_\w+(?![\w:])", TEXT))
    families = Metrics().registry.collect()
    operator = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    contract = set(re.findall(r"genesis_\w+", (ROOT / "docs" / "contract.md").read_text()))
    assert named
    assert named - operator - contract == set()
