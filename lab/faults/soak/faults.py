"""Kills one thing, and brings it back as a supervisor would; what runs in a pod is the kubelet's to bring back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack

from lab.cluster.kubectl import Json
from lab.cluster.monitoring import NAMESPACE as MONITORING
from lab.cluster.network import pod_namespaces
from lab.demo.stage import SYSTEM
from lab.errors import LabError
from lab.faults.recorder import Recorder
from lab.faults.soak.plan import Kind, Planned
from lab.faults.soak.scene import Scene
from lab.faults.trace import Note
from lab.process import run
from lab.waiting import wait_for

WHOLE_SECONDS = 240.0
"""Bound of a recovery. A container that was killed before waits for up to 80 s: the kubelet's back-off."""
_TABLE = "soak"
_CUT = f"""\
table inet {_TABLE} {{
  chain input {{
    type filter hook input priority 0
    iifname != "lo" drop
  }}
  chain output {{
    type filter hook output priority 0
    oifname != "lo" drop
  }}
}}
"""


class Faults:
    """Strikes one after the other. Left by an exception, it brings the network back."""

    def __init__(self, scene: Scene, recorder: Recorder) -> None:
        self._scene = scene
        self._recorder = recorder

    def strike(self, planned: Planned) -> float:
        """Kill, bring back, and wait until all is whole; returns how long that took once it was brought back.

        Raises:
            DeadlineExceeded: it did not become whole.
            LabError: what was to be killed is not there.
        """
        match planned.kind:
            case Kind.OPERATOR:
                gone = self._kill_container(planned.kind, self._operator(leader=planned.leader))
            case Kind.PROMETHEUS:
                gone = self._kill_container(planned.kind, _first(self._scene.pods(MONITORING)))
            case Kind.NETWORK:
                gone = self._cut(self._networks(leader=planned.leader), planned.outage_seconds)
            case _:
                gone = self._kill_program(planned)
        return self._until_whole(planned, gone)

    def _operator(self, *, leader: bool) -> Json:
        leads = self._scene.leader()
        pods = self._scene.pods(SYSTEM)
        return _first([pod for pod in pods if (pod["metadata"]["name"] == leads) == leader] or pods)

    def _kill_container(self, kind: Kind, pod: Json) -> str:
        container: str = pod["status"]["containerStatuses"][0]["containerID"]
        pid = self._scene.cluster.runtime.process(container.rpartition("/")[2])
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError as error:  # then it crashed, and was not killed
            raise LabError(f"{kind} to run", f"process {pid} ended just now", "look at its pod's log") from error
        self._note(Note.KILL, kind, pod=pod["metadata"]["name"], container=container)
        return container

    def _kill_program(self, planned: Planned) -> str:
        plane, kubelet = self._scene.cluster.control_plane, self._scene.cluster.node.kubelet
        programs: dict[Kind, tuple[Callable[[], None], Callable[[], None]]] = {
            Kind.APISERVER: (plane.kill_apiserver, plane.start_apiserver),
            Kind.ETCD: (plane.kill_etcd, plane.start_etcd),
            Kind.KUBELET: (kubelet.kill_running, kubelet.start),
        }
        kill, start = programs[planned.kind]
        kill()
        self._note(Note.KILL, planned.kind)
        time.sleep(planned.outage_seconds)
        start()
        self._note(Note.START, planned.kind)
        return ""

    def _networks(self, *, leader: bool) -> list[str]:
        found, whose = pod_namespaces(), "pods"
        if leader:
            address = self._operator(leader=True)["status"]["podIP"]
            found, whose = [name for name in found if _has(name, address)], f"the leader's pod, {address}"
        if not found:
            raise LabError(f"the network of {whose}", "no network namespace of it", "look at the pods' nodes: ip netns")
        return found

    def _cut(self, names: list[str], seconds: float) -> str:
        """Drop every packet, but for what stays within a pod."""
        with ExitStack() as healed:
            for name in names:
                run(["ip", "netns", "exec", name, "nft", "-f", "-"], input=_CUT)
                heal = ["ip", "netns", "exec", name, "nft", "delete", "table", "inet", _TABLE]
                healed.callback(run, heal, check=False)  # a pod may be gone
            self._note(Note.FAULT, Kind.NETWORK, namespaces=names, seconds=seconds)
            time.sleep(seconds)
        self._note(Note.START, Kind.NETWORK)
        return ""

    def _until_whole(self, planned: Planned, gone: str) -> float:
        began, since = time.monotonic(), time.time()
        missing: list[str] = ["nothing was looked at"]

        def whole() -> bool:
            missing[:] = self._scene.missing(since, gone=gone, kubelet=planned.kind is Kind.KUBELET)
            return not missing

        wait_for(
            whole,
            what=f"all to be whole after {planned.kind}",
            seconds=WHOLE_SECONDS,
            every=0.5,
            found=lambda: "; ".join(missing),
        )
        return time.monotonic() - began

    def _note(self, note: Note, kind: Kind, **more: object) -> None:
        self._recorder.note(note, {"process": str(kind), **more})


def _has(namespace: str, address: str) -> bool:
    return f"inet {address}/" in run(["ip", "-n", namespace, "address"], check=False).stdout


def _first(pods: list[Json]) -> Json:
    if not pods:
        raise LabError("a pod to kill", "none", "look at its Deployment")
    return pods[0]
