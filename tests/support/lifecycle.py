"""What happens to policies, assignments and operators while a rollback holds workloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.state import Phase, State
from tests.support.cluster_fleet import Json
from tests.support.cluster_scene import PATIENCE_SECONDS, Scene

_NUMBERS = count(1)


def until(scene: Scene, phase: Phase, *, deletable: bool = False) -> State:
    """Wait for what the assignment records; the policy may be gone."""

    def probe() -> State | None:
        state = scene.state()
        return state if (state.phase, state.deletable) == (phase, deletable) else None

    return wait_for(
        probe,
        what=f"{phase} in the assignment",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.assignment()}\n{scene.operators.logs()}",
    )


def remade(scene: Scene, workload: str) -> str:
    """Delete a workload's pod; the mode of the one that its controller makes instead."""
    before = scene.pods()[workload]["metadata"]["uid"]
    scene.kubectl("delete", "pod", "-n", scene.namespace, "-l", f"app={workload}", "--timeout=60s")

    def there() -> str | None:
        pod = scene.pods().get(workload)
        return scene.shadow.mode(pod["metadata"]["name"]) if pod and pod["metadata"]["uid"] != before else None

    return wait_for(there, what=f"another pod of {workload}", seconds=PATIENCE_SECONDS)


def delete_assignment(scene: Scene, kubectl: Kubectl | None = None) -> str:
    """Try to; what the API server answers. ``kubectl``: as whom, if not as an administrator."""
    done = (kubectl or scene.kubectl)(
        "delete", "precisionassignment", "fleet", "-n", scene.namespace, "--timeout=60s", check=False
    )
    return done.stdout + done.stderr


def delete_policy(scene: Scene) -> None:
    """And wait until it is gone."""
    scene.kubectl("delete", "ppol", "fleet", "-n", scene.namespace, "--timeout=30s")


@contextmanager
def operator_away(scene: Scene) -> Iterator[None]:
    """Nobody but admission is there; afterwards an operator is started again."""
    for process in scene.operators.running.values():
        process.kill()
        process.wait(timeout=10)
    scene.operators.running.clear()
    try:
        yield
    finally:
        scene.operators.start(f"again-{next(_NUMBERS)}")


def restorable(scene: Scene, kind: str) -> Json:
    """An object as a backup creates it again: without what the API server gives, status included."""
    body = scene.kubectl.json("get", kind, "fleet", "-n", scene.namespace)
    body.pop("status", None)
    for field in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        body["metadata"].pop(field, None)
    return body


def restore(scene: Scene, *bodies: Json) -> None:
    """Create them as a backup does, one after another."""
    for body in bodies:
        scene.kubectl("create", "-f", "-", input=json.dumps(body))
