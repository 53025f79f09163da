"""Reads how training goes on from each trainer itself: neither API server nor Prometheus is needed for it."""

from __future__ import annotations

import http.client
import threading
import time
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from lab.demo.fleet import METRICS_PORT
from lab.faults.soak.accounts import Reading, Steps

_PAUSE_SECONDS = 1.0
_TIMEOUT_SECONDS = 1.5


class StepWatch:
    """Reads all trainers again and again while `with` lasts. One that does not answer has no reading: Unknown, not lost."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: dict[str, str] = {}
        self._readings: dict[str, list[Reading]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steps", daemon=True)

    def __enter__(self) -> StepWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Workload → the address of its pod, from now on."""
        with self._lock:
            self._addresses = dict(addresses)

    def counted(self) -> dict[str, Steps]:
        """Workload → how its training went on until now."""
        with self._lock:
            return {name: Steps.of(self._readings.get(name, [])) for name in self._addresses}

    def still_since(self, at: float) -> list[str]:
        """Workloads of which no step was seen since a time."""
        with self._lock:
            later = {name: [r.step for r in self._readings.get(name, []) if r.at > at] for name in self._addresses}
        return [name for name, steps in later.items() if not steps or steps[-1] <= steps[0]]

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            with self._lock:
                addresses = dict(self._addresses)
            for name, address in addresses.items():
                reading = _read(address)
                if reading is not None:
                    with self._lock:
                        self._readings.setdefault(name, []).append(reading)


def _read(address: str) -> Reading | None:
    try:
        with urllib.request.urlopen(f"http://{address}:{METRICS_PORT}/metrics", timeout=_TIMEOUT_SECONDS) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    values = {sample.name: sample.value for family in families for sample in family.samples}
    try:
        step, tried = values["genesis_training_step"], values["genesis_training_steps_total"]
    except KeyError:
        return None  # its first step is not done
    return Reading(time.time(), int(step), int(tried), int(values.get("genesis_rewinds_total", 0.0)))
