"""What the recorder writes down of a real API server: every revision, in order, also over a restart of it."""

from __future__ import annotations

from pathlib import Path

from lab.cluster import ControlPlane
from lab.faults.recorder import RESOURCES, Recorder
from lab.faults.trace import Header, Note, Trace, read_trace, write_trace


def test_every_revision_is_recorded_in_order_over_a_restart_of_the_api_server(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "plane") as plane:
        kubectl = plane.kubectl
        metadata = {"name": "x", "namespace": "default"}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
        kubectl.wait_for_namespace("default")
        resources = [r for r in RESOURCES if r.kind in ("Lease", "Namespace")]
        with Recorder(plane.kubeconfig, ["default"], resources=resources) as recorder:
            kubectl.apply({**lease, "spec": {"holderIdentity": "one"}})
            recorder.note(Note.KILL, {"process": "kube-apiserver"})
            plane.stop_apiserver()
            plane.start_apiserver()
            recorder.settle()
            kubectl.apply({**lease, "spec": {"holderIdentity": "two"}})
            kubectl("delete", "lease", "x", "-n", "default")
            recorder.settle()
            trace = recorder.trace(Header("restart", seed=7))
    path = write_trace(trace, tmp_path / "trace.jsonl")
    assert read_trace(path) == Trace.of(trace.header, list(read_trace(path).entries))
    steps = [(e.body.get("spec"), e.deleted) for e in trace.entries if e.kind == "Lease" and e.name == "x"]
    one, two = {"holderIdentity": "one"}, {"holderIdentity": "two"}
    assert steps == [(one, False), (two, False), (two, True)]
    assert [e.body["changed"] for e in trace.gaps if e.body["changed"]] == []
    assert [e.revision for e in trace.entries] == sorted(e.revision for e in trace.entries)
