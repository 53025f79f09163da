"""The operator's metrics: stable names, and no series of a policy that is gone."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from precision_operator.observability.metrics import Metrics

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def samples(metrics: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


@pytest.fixture
def metrics() -> Metrics:
    made = Metrics()
    made.watch_queue(lambda: 3.0, lambda: 1.5)
    made.watch_leadership(lambda: True)
    made.watch_heartbeat(lambda: 1234.5)
    made.reconciled("success", 0.01)
    made.api_write("patch", "pods", "Conflict")
    made.prometheus_query("ack", "success", 0.02)
    made.policy_state("ns", "p", phase="Progressing", precision="fp16")
    made.policy_workloads("ns", "p", {"moved": 2, "waiting": 4})
    made.policy_conditions("ns", "p", {"AdmissionEnforced": "True", "Reconciling": "Unknown", "Ready": "False"})
    made.policy_times("ns", "p", {"phase": 10.0, "evaluation": 20.0, "deadline": 30.0, "predicted": 40.0})
    made.rollback("ns", "p", severity="emergency", reason="OverflowBreach", scope="fleet")
    made.escalation("ns", "p", severity="P1", reason="RollbackEscalated")
    made.mitigation("ns", "p", signal="overflow", rung="HalveScale", reason="Mitigating")
    made.rollback_stage("detected_to_decided", 0.2)
    made.transition("ns", "p", before="Progressing", after="Degraded", reason="OverflowBreach")
    return made


def test_the_promised_names_are_there(metrics: Metrics) -> None:
    found = samples(metrics)
    assert found["workqueue_depth"] == [({}, 3.0)]
    assert found["workqueue_oldest_seconds"] == [({}, 1.5)]
    assert found["reconcile_total"] == [({"result": "success"}, 1.0)]
    assert found["reconcile_duration_seconds_count"] == [({}, 1.0)]
    assert found["precision_operator_api_writes_total"] == [
        ({"verb": "patch", "resource": "pods", "result": "Conflict"}, 1.0)
    ]
    assert found["precision_operator_prometheus_queries_total"] == [({"query": "ack", "result": "success"}, 1.0)]
    assert found["precision_operator_prometheus_query_duration_seconds_count"] == [({}, 1.0)]
    assert found["precision_operator_leader"] == [({}, 1.0)]
    assert found["precision_operator_heartbeat_timestamp_seconds"] == [({}, 1234.5)]
    assert found["precision_rollback_escalations_total"] == [
        ({"namespace": "ns", "policy": "p", "severity": "P1", "reason": "RollbackEscalated"}, 1.0)
    ]
    assert found["precision_mitigations_total"][0][0]["rung"] == "HalveScale"
    assert found["precision_rollback_stage_seconds_count"] == [({"stage": "detected_to_decided"}, 1.0)]
    assert found["precision_policy_transitions_total"][0][0] == {
        "namespace": "ns",
        "policy": "p",
        "from": "Progressing",
        "to": "Degraded",
        "reason": "OverflowBreach",
    }
    assert found["process_resident_memory_bytes"]


def test_a_policy_has_one_state_at_a_time(metrics: Metrics) -> None:
    metrics.policy_state("ns", "p", phase="Degraded", precision="fp32")
    metrics.policy_state("ns", "p", phase="Degraded", precision="fp32")
    assert samples(metrics)["precision_policy_info"] == [
        ({"namespace": "ns", "policy": "p", "phase": "Degraded", "precision": "fp32"}, 1.0)
    ]
    metrics.policy_workloads("ns", "p", {"moved": 1})
    counts = {labels["state"]: value for labels, value in samples(metrics)["precision_policy_workloads"]}
    assert counts == {"moved": 1.0, "waiting": 0.0}


def test_a_policy_is_paused_or_not(metrics: Metrics) -> None:
    for suspended in (True, False):
        metrics.policy_suspended("ns", "p", suspended)
        assert samples(metrics)["precision_policy_suspended"] == [({"namespace": "ns", "policy": "p"}, suspended)]


def test_a_condition_that_is_gone_has_no_series(metrics: Metrics) -> None:
    def values() -> dict[str, float]:
        return {labels["type"]: value for labels, value in samples(metrics)["precision_policy_condition"]}

    assert values() == {"AdmissionEnforced": 1.0, "Reconciling": -1.0, "Ready": 0.0}
    metrics.policy_conditions("ns", "p", {"Ready": "True", "AdmissionEnforced": "False"})
    assert values() == {"AdmissionEnforced": 0.0, "Ready": 1.0}


def test_a_time_ends_where_it_is_said_to_and_stays_where_nothing_is_said(metrics: Metrics) -> None:
    metrics.policy_times("ns", "p", {"phase": 11.0, "deadline": None, "predicted": None})
    metrics.policy_times("ns", "p", {"deadline": None})
    found = {labels["of"]: value for labels, value in samples(metrics)["precision_policy_timestamp_seconds"]}
    assert found == {"phase": 11.0, "evaluation": 20.0}


def test_a_deleted_policy_leaves_no_series(metrics: Metrics) -> None:
    metrics.policy_state("ns", "other", phase="Healthy", precision="fp16")
    metrics.forget_policy("ns", "p")
    metrics.forget_policy("ns", "p")
    of_p = [labels for series in samples(metrics).values() for labels, _ in series if labels.get("policy") == "p"]
    assert of_p == []
    assert samples(metrics)["precision_policy_info"][0][0]["policy"] == "other"
    metrics.policy_state("ns", "p", phase="Healthy", precision="fp16")
    assert len(samples(metrics)["precision_policy_info"]) == 2


def test_the_page_of_metrics_names_every_one(metrics: Metrics) -> None:
    page = PAGE.read_text()
    own = {family.name for family in metrics.registry.collect() if not family.name.startswith("process_")}
    assert [name for name in sorted(own) if f"`{name}" not in page] == []
