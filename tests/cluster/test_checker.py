"""The checker on a real run: a rollout and a rollback, recorded from the API server, violate nothing."""

from __future__ import annotations

from lab.faults.checker import check
from lab.faults.recorder import Recorder
from lab.faults.trace import Header, Trace
from precision_operator.api.state import Phase
from tests.support.cluster_scene import Scene, assert_all_in_fallback, break_two, promoted


def test_a_rollout_and_its_rollback_on_a_real_api_server_violate_nothing(scene: Scene) -> None:
    with Recorder(scene.kubectl.kubeconfig, [scene.namespace]) as recorder:
        promoted(scene)
        break_two(scene)
        scene.wait_phase("Held")
        assert_all_in_fallback(scene)
        recorder.settle()
        phases = {f"{scene.namespace}/fleet": ["Held"]}
        trace = recorder.trace(Header("rollback", expectations={"phases": phases, "unreported": True}))
    assert [str(violation) for violation in check(trace)] == []
    assert _phases(trace) >= {Phase.PROGRESSING, Phase.HEALTHY, Phase.HELD}


def _phases(trace: Trace) -> set[str]:
    states = [entry.body["state"] for entry in trace.entries if entry.kind == "PrecisionAssignment"]
    return {str(state["phase"]) for state in states if isinstance(state, dict)}
