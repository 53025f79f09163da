"""Metrics for pods that no kubelet runs: a scraped exporter that answers each pod's annotations as a trainer would.

It stands where the trainer's process would be; the API server, the controllers and Prometheus around it are real.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from lab.cluster.kubectl import Kubectl

STEPS_PER_SECOND = 50.0


@dataclass
class _Pod:
    workload: str
    mode: str = "fp32"
    generation: int = 0
    steps: float = 0.0
    reduced_steps: float = 0.0
    overflows: float = 0.0
    since: float = field(default_factory=time.time)


class ShadowTrainers:
    """Follows the pods of a namespace and exports what their trainers would."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self._pods: dict[str, _Pod] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.overflow: dict[str, float] = {}
        """Workload → share of its reduced-precision steps that overflow."""
        self.silent = False
        """The exporter answers 503: the trainers' metrics are gone."""
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
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join(timeout=10)

    def modes(self) -> dict[str, set[str]]:
        """Workload → the modes that its pods train in."""
        found: dict[str, set[str]] = {}
        with self._lock:
            for pod in self._pods.values():
                found.setdefault(pod.workload, set()).add(pod.mode)
        return found

    def exposition(self) -> str:
        """All series, with the pods' own labels."""
        lines = []
        with self._lock:
            for name, pod in self._pods.items():
                where = f'namespace="{self._namespace}",pod="{name}"'
                mode = f'mode="{pod.mode}",generation="{pod.generation}"'
                lines += [
                    f"genesis_precision_info{{{where},{mode}}} 1",
                    f"genesis_training_steps_total{{{where}}} {pod.steps}",
                    f"genesis_training_samples_total{{{where}}} {pod.steps * 8}",
                    f"genesis_fp16_training_steps_total{{{where}}} {pod.reduced_steps}",
                    f"genesis_fp16_overflow_steps_total{{{where}}} {pod.overflows}",
                    f"genesis_nonfinite_loss_steps_total{{{where}}} 0",
                    f"genesis_training_loss{{{where}}} 2.0",
                    f"genesis_fp32_baseline_loss{{{where}}} 2.0",
                    f"genesis_fp32_baseline_samples_per_second{{{where}}} {STEPS_PER_SECOND * 8}",
                    f"genesis_training_total{{{where}}} {int(pod.steps / 20)}",
                    f"genesis_training_success_total{{{where}}} {int(pod.steps / 20)}",
                ]
        return "\n".join(lines) + "\n"

    def _follow(self) -> None:
        last = time.time()
        while not self._stop.wait(0.2):
            found = self._kubectl("get", "pods", "-n", self._namespace, "-o", "json", check=False)
            now = time.time()
            if found.returncode == 0:  # else: the API server is being restarted by the test
                self._update(json.loads(found.stdout)["items"])
            with self._lock:
                for pod in self._pods.values():
                    done = (now - last) * STEPS_PER_SECOND
                    pod.steps += done
                    if pod.mode != "fp32":
                        pod.reduced_steps += done
                        pod.overflows += done * self.overflow.get(pod.workload, 0.0)
            last = now

    def _update(self, items: list[dict[str, Any]]) -> None:
        with self._lock:
            alive = {item["metadata"]["name"]: item for item in items}
            self._pods = {name: pod for name, pod in self._pods.items() if name in alive}
            for name, item in alive.items():
                pod = self._pods.setdefault(name, _Pod(name.rsplit("-", 2)[0]))
                pod.mode, pod.generation = _mode(item, pod)


def _mode(item: dict[str, Any], pod: _Pod) -> tuple[str, int]:
    """What a trainer would train in: the request where it can read one, else its environment."""
    annotations = item["metadata"].get("annotations", {})
    hot = any("downwardAPI" in volume for volume in item["spec"].get("volumes", []))
    if hot and "precision.genesis.ai/request" in annotations:
        request = json.loads(annotations["precision.genesis.ai/request"])
        return request["mode"], request["generation"]
    for entry in item["spec"]["containers"][0].get("env", []):
        if entry["name"] == "ENABLE_FP16_TRAINING" and "value" in entry:
            return ("fp16" if entry["value"] == "true" else "fp32"), pod.generation
    enabled = annotations.get("precision.genesis.ai/enable-fp16") == "true"
    return (annotations.get("precision.genesis.ai/mode", "fp16") if enabled else "fp32"), pod.generation
