"""What is asked of pods and Jobs, as JSON patches. Pure: an action in, operations out.

A patch of a pod begins with ``test`` on the uid and on our own annotation as it was read, never on resourceVersion: the
kubelet's and controllers' status writes would turn an emergency into a storm of conflicts.
"""

import json

from precision_operator.api.modes import Mode
from precision_operator.contract import CHECKPOINT, ENABLE, GROWTH_INTERVAL, LOSS_SCALE_FACTOR, MODE, REQUEST, REWIND
from precision_operator.core.actions import RequestPod, ResumeJob, SuspendJob
from precision_operator.errors import PreconditionFailed
from precision_operator.kube.port import JsonObject, Operation
from precision_operator.workloads.reading import REQUEST_CHARACTERS

_ANNOTATIONS = "/metadata/annotations"
_SUSPEND = "/spec/suspend"


def request_pod(action: RequestPod) -> list[Operation]:
    """The request onto a running pod; environment annotations too, for when its containers start again.

    Empty where the pod carries this very request.

    Raises:
        PreconditionFailed: the pod carries a later request: an older leader must not overwrite it.
    """
    pod = action.pod
    if pod.request is not None and pod.request.generation > action.generation:
        raise PreconditionFailed(
            f"pod {pod.name} carries generation {pod.request.generation}, newer than {action.generation}; gather again"
        )
    values = {
        REQUEST: _request(action),
        ENABLE: "false" if action.mode is Mode.FP32 else "true",
        MODE: action.mode.value,
    }
    if pod.request_raw == values[REQUEST]:
        return []
    if pod.request_raw is not None and len(pod.request_raw) > REQUEST_CHARACTERS:
        guard = []  # none of ours, and only its beginning is known
    elif pod.has_annotations:
        guard = [Operation("test", _pointer(REQUEST), pod.request_raw)]
    else:  # make the map, and notice when somebody made it meanwhile
        guard = [Operation("test", _ANNOTATIONS), Operation("add", _ANNOTATIONS, {})]
    writes = [Operation("add", _pointer(key), value) for key, value in values.items()]
    return [Operation("test", "/metadata/uid", pod.uid), *guard, *writes]


def suspend_job(action: SuspendJob | ResumeJob) -> list[Operation]:
    """The Job's suspension, or its end; empty where it is seen to be as wanted.

    Guarded by the uid and by what is seen: whoever suspended or resumed it since is not overruled. The API server
    writes ``false`` where a Job's manifest says nothing.
    """
    wanted = isinstance(action, SuspendJob)
    if action.workload.suspended == wanted:
        return []
    return [
        Operation("test", "/metadata/uid", action.workload.uid),
        Operation("test", "/metadata/generation", action.job_generation),
        Operation("test", _SUSPEND, not wanted),
        Operation("replace", _SUSPEND, wanted),
    ]


def _request(action: RequestPod) -> str:
    request: JsonObject = {"generation": action.generation, "mode": action.mode.value}
    if action.checkpoint:
        request[CHECKPOINT] = True
    if action.rewind:
        request[REWIND] = True
    tuning = action.tuning
    if tuning is not None and tuning.loss_scale_factor is not None:
        request[LOSS_SCALE_FACTOR] = tuning.loss_scale_factor
    if tuning is not None and tuning.growth_interval is not None:
        request[GROWTH_INTERVAL] = tuning.growth_interval
    return json.dumps(request, separators=(",", ":"))


def _pointer(key: str) -> str:
    return f"{_ANNOTATIONS}/{key.replace('~', '~0').replace('/', '~1')}"
