"""Metrics for pods that no kubelet runs: a scraped exporter that follows each pod's annotations as a trainer would.

It stands where the kubelet and the trainer's process would be: it also reports pods as running, as many as there is room
for. The API server, the controllers and Prometheus around it are real.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.rest import RESTResponse

from lab.bench.trainers import BASELINE_LOSS, STEADY, STEPS_PER_SECOND
from lab.cluster.kubectl import Kubectl
from precision_operator.contract import MODE, REQUEST
from precision_operator.kube.port import PODS, Resource

STEPS_PER_RUN = 20.0
SAMPLES_PER_STEP = 8
FP32_PEAK_BYTES, ALLOCATED_BYTES = 10e9, 6e9


@dataclass(frozen=True)
class Fault:
    """What is wrong with a workload in reduced precision, or in any; shares are of its steps or runs, 0 to 1."""

    overflow: float = 0.0
    non_finite: float = 0.0
    failures: float = 0.0
    divergence: float = 0.0
    """How far its loss lies above the FP32 baseline, relative."""
    speed: float = 1.0
    """Its throughput against the FP32 baseline."""
    everywhere: bool = False
    """Precision is not to blame: FP32 does not mend it."""


@dataclass
class _Pod:
    workload: str
    mode: str = "fp32"
    generation: int = 0
    steps: float = 0.0
    reduced_steps: float = 0.0
    overflows: float = 0.0
    non_finite: float = 0.0
    runs: float = 0.0
    successes: float = 0.0
    loss: float = BASELINE_LOSS

    def train(self, seconds: float, fault: Fault) -> None:
        """Count what a trainer would have in that time."""
        fault = fault if self.mode != "fp32" or fault.everywhere else Fault()
        done = seconds * STEPS_PER_SECOND * fault.speed
        self.steps += done
        self.reduced_steps += done if self.mode != "fp32" else 0.0
        self.overflows += done * fault.overflow
        self.non_finite += done * fault.non_finite
        self.runs += done / STEPS_PER_RUN
        self.successes += done / STEPS_PER_RUN * (1.0 - fault.failures)
        self.loss = BASELINE_LOSS * (1.0 + fault.divergence)

    def series(self) -> dict[str, float]:
        """What it reports, without the labels."""
        return STEADY | {
            "genesis_training_steps_total": self.steps,
            "genesis_training_samples_total": self.steps * SAMPLES_PER_STEP,
            "genesis_fp32_baseline_samples_per_second": STEPS_PER_SECOND * SAMPLES_PER_STEP,
            "genesis_fp16_training_steps_total": self.reduced_steps,
            "genesis_fp16_overflow_steps_total": self.overflows,
            "genesis_nonfinite_loss_steps_total": self.non_finite,
            "genesis_training_loss": self.loss,
            "genesis_training_total": int(self.runs),
            "genesis_training_success_total": int(self.successes),
        }


class ShadowTrainers:
    """Follows the pods of a namespace and exports what their trainers would."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._api = client.CoreV1Api(config.new_client_from_config(str(kubectl.kubeconfig), context=kubectl.context))
        self.namespace = namespace
        self._pods: dict[str, _Pod] = {}
        self._trained_until = time.monotonic()
        self._lock = threading.Lock()
        self._stop, self._changed = threading.Event(), threading.Event()
        self._seen: dict[str, dict[str, Any]] = {}
        """The pods, as the watch has them."""
        self._stream: urllib3.BaseHTTPResponse | None = None
        self.overflow: dict[str, float] = {}
        """Workload → share of its reduced-precision steps that overflow."""
        self.flag = "false"
        """What every ConfigMap says."""
        self.faults: dict[str, Fault] = {}
        """Workload → all that is wrong with it, where that is more than overflow."""
        self.silent = False
        """The exporter answers 503: the trainers' metrics are gone."""
        self.capacity: dict[str, int] = {}
        """Workload → how many of its pods find a node; the others stay Pending and have no metrics. Default: all."""
        self.unresponsive: set[str] = set()
        """Workloads whose pods go on in the mode that they have, whatever they are asked for."""
        self.world_size: int | None = None
        """Ranks of each pod's process group, where its trainer says so."""
        self.headroom_bytes: dict[str, float] = {}
        """Workload → what its device has left, of which it took ``FP32_PEAK_BYTES`` in FP32. Default: no device."""
        self.ready = False
        """Pods that run are reported as ready too: a StatefulSet that is OrderedReady makes no further one before."""
        shadow = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = shadow.exposition().encode()
                self.send_response(503 if shadow.silent else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(b"" if shadow.silent else body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._threads = [
            threading.Thread(target=self._server.serve_forever, daemon=True),
            threading.Thread(target=self._watch, daemon=True),
            threading.Thread(target=self._follow, daemon=True),
        ]

    @property
    def target(self) -> str:
        """What Prometheus scrapes."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "ShadowTrainers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._changed.set()
        self._server.shutdown()
        self._server.server_close()
        until = time.monotonic() + 10
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() < until:
                if (stream := self._stream) is not None:
                    with contextlib.suppress(OSError, RuntimeError, ValueError):  # it has just ended
                        stream.shutdown()
                thread.join(timeout=0.05)
        self._api.api_client.close()

    def get(self, resource: Resource, name: str = "") -> dict[str, Any] | None:
        """An object of the namespace, or the list of all; None: there is none. A process of kubectl for each look would
        cost more than what is tested.

        Raises:
            client.ApiException, urllib3.exceptions.HTTPError: it refuses, or cannot be reached.
        """
        answer = self._ask(f"{resource.base}/namespaces/{self.namespace}/{resource.plural}{'/' if name else ''}{name}")
        body = answer.read()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise client.ApiException(http_resp=answer)
        found: dict[str, Any] = json.loads(body)
        return found

    def _ask(self, path: str, *parameters: tuple[str, str]) -> RESTResponse:
        api = self._api.api_client
        request = api.param_serialize("GET", path, query_params=parameters, auth_settings=["BearerToken"])
        answer: RESTResponse = api.call_api(*request, _request_timeout=30)
        return answer

    def pods(self) -> list[dict[str, Any]]:
        """Those of the namespace, as the API server has them."""
        found: list[dict[str, Any]] = (self.get(PODS) or {}).get("items", [])
        return found

    def modes(self) -> dict[str, set[str]]:
        """Workload → the modes that its pods train in."""
        found: dict[str, set[str]] = {}
        with self._lock:
            for pod in self._pods.values():
                found.setdefault(pod.workload, set()).add(pod.mode)
        return found

    def mode(self, pod: str) -> str | None:
        """The mode that a pod trains in; None: it does not, or is not known yet."""
        with self._lock:
            return self._pods[pod].mode if pod in self._pods else None

    def exposition(self) -> str:
        """All series, with the pods' own labels."""
        lines = []
        ranks = f',world_size="{self.world_size}"' if self.world_size is not None else ""
        with self._lock:
            self._train()
            for name, pod in self._pods.items():
                where = f'namespace="{self.namespace}",pod="{name}"'
                mode = f'mode="{pod.mode}",generation="{pod.generation}"'
                lines += [
                    f"genesis_precision_info{{{where},{mode}}} 1",
                    f'genesis_run_info{{{where},device="cpu"{ranks}}} 1',
                    *(f"{series}{{{where}}} {value}" for series, value in pod.series().items()),
                ]
                if (headroom_bytes := self.headroom_bytes.get(pod.workload)) is not None:
                    lines += [
                        f"genesis_fp32_baseline_peak_bytes{{{where}}} {FP32_PEAK_BYTES}",
                        f'genesis_cuda_memory_allocated_bytes{{{where},mode="{pod.mode}"}} {ALLOCATED_BYTES}',
                        f"genesis_memory_headroom_bytes{{{where}}} {headroom_bytes}",
                    ]
        return "\n".join(lines) + "\n"

    def _watch(self) -> None:
        """Keep what was seen up to date. To list them five times a second would cost more than what is tested."""
        while not self._stop.is_set():
            # The API server is being restarted by the test, or etcd restored, or this ends; trainers go on meanwhile.
            with contextlib.suppress(client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError):
                found = self.get(PODS)
                assert found is not None, "a list is there where its kind is"
                self._see({item["metadata"]["name"]: item for item in found["items"]})
                for event in self._events(found["metadata"]["resourceVersion"]):
                    if event["type"] == "ERROR":
                        break
                    pod = event["object"]
                    name = pod["metadata"]["name"]
                    left = {key: item for key, item in self._seen.items() if key != name}
                    self._see(left if event["type"] == "DELETED" else {**left, name: pod})
            self._stop.wait(0.2)

    def _events(self, version: str) -> Iterator[dict[str, Any]]:
        path = f"{PODS.base}/namespaces/{self.namespace}/{PODS.plural}"
        answer = self._ask(path, ("watch", "1"), ("resourceVersion", version), ("timeoutSeconds", "25"))
        if answer.status != 200:
            return
        self._stream, rest = answer.response, b""
        try:
            for part in answer.response.stream(None):
                *lines, rest = (rest + part).split(b"\n")
                yield from map(json.loads, lines)
        finally:
            self._stream = None
            answer.response.release_conn()

    def _see(self, pods: dict[str, dict[str, Any]]) -> None:
        self._seen = pods
        self._changed.set()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._changed.clear()
            started = self._started(list(self._seen.values()))
            self._update(started)
            with contextlib.suppress(client.ApiException, urllib3.exceptions.HTTPError):
                self._report(started)
            self._changed.wait(0.2)  # capacity, and who is unresponsive, are set without an event

    def _started(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the pods that find no node. Who runs goes on running, whatever the capacity becomes."""
        running: dict[str, int] = {}
        found = []
        for item in sorted(items, key=lambda item: item["metadata"]["name"] not in self._pods):
            name, workload = item["metadata"]["name"], workload_of(item["metadata"]["name"])
            room = running.get(workload, 0) < self.capacity.get(workload, len(items))
            if name in self._pods or room:
                running[workload] = running.get(workload, 0) + 1
                found.append(item)
        return found

    def _report(self, items: list[dict[str, Any]]) -> None:
        """Say that they run, as the kubelet does; and that they are ready, where that is wanted."""
        conditions = [{"type": "Ready", "status": "True"}] * self.ready
        for item in items:
            if item.get("status", {}).get("phase") != "Running" and "deletionTimestamp" not in item["metadata"]:
                status = {"status": {"phase": "Running", "conditions": conditions}}
                name = item["metadata"]["name"]
                with contextlib.suppress(client.ApiException):  # it was deleted meanwhile
                    self._api.patch_namespaced_pod_status(name, self.namespace, status, _request_timeout=30)

    def _train(self) -> None:
        """All of them, up to now; under the lock. Whenever somebody looks: a busy machine makes no trainer slower."""
        now = time.monotonic()
        for pod in self._pods.values():
            overflow = self.overflow.get(pod.workload, 0.0)
            pod.train(now - self._trained_until, self.faults.get(pod.workload, Fault(overflow=overflow)))
        self._trained_until = now

    def _update(self, items: list[dict[str, Any]]) -> None:
        with self._lock:
            self._train()
            alive = {item["metadata"]["name"]: item for item in items}
            self._pods = {name: pod for name, pod in self._pods.items() if name in alive}
            for name, item in alive.items():
                is_new = name not in self._pods
                pod = self._pods.setdefault(name, _Pod(workload_of(name)))
                if is_new or pod.workload not in self.unresponsive:
                    pod.mode, pod.generation = _mode(item, pod, self.flag)


def workload_of(pod: str) -> str:
    """The Deployment of a pod, by its name."""
    return pod.rsplit("-", 2)[0]


def _mode(item: dict[str, Any], pod: _Pod, flag: str) -> tuple[str, int]:
    """What a trainer would train in: the request where it can read one, else its environment."""
    annotations = item["metadata"].get("annotations", {})
    hot = any("downwardAPI" in volume for volume in item["spec"].get("volumes", []))
    if hot and REQUEST in annotations:
        request = json.loads(annotations[REQUEST])
        return request["mode"], request["generation"]
    container = item["spec"]["containers"][0]
    environment = {entry["name"]: _value(entry, annotations, flag) for entry in container.get("env", [])}
    if environment.get("ENABLE_FP16_TRAINING") != "true":
        return "fp32", pod.generation
    return environment.get("PRECISION_MODE") or annotations.get(MODE, "fp16"), pod.generation


def _value(entry: dict[str, Any], annotations: dict[str, str], flag: str) -> str:
    """As the kubelet sets the variable when a container starts."""
    origin = entry.get("valueFrom", {})
    if "configMapKeyRef" in origin:
        return flag
    if "fieldRef" in origin:
        name = origin["fieldRef"]["fieldPath"].removeprefix("metadata.annotations['").removesuffix("']")
        return annotations.get(name, "")
    return str(entry.get("value", ""))
