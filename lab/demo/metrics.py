"""Prometheus as the demo asks it. Every answer is kept."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Vector = list[tuple[dict[str, str], float]]

OPERATOR_QUERIES = "precision_operator_prometheus_queries_total{"

SERVICE = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy"
"""Prometheus through the API server, for clusters whose Service addresses we cannot reach."""

PAUSE_SECONDS = 0.05
"""Between two polls; with the query itself they are well below a quarter of a second apart."""


class Metrics:
    """Instant queries against the cluster's Prometheus; each answer is appended to ``record``."""

    def __init__(self, *, api_server: str, prometheus: str, record: Path) -> None:
        self._api_server = api_server
        self._prometheus = prometheus
        self._record = record
        self._lock = threading.Lock()

    def vector(self, query: str, *, what: str = "") -> Vector | None:
        """The instant vector, or None where Prometheus did not answer."""
        url = f"{self._prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        asked = time.time()
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                answer: dict[str, Any] = json.load(response)
        except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
            answer = {"status": "error", "error": str(error)}
        with self._lock, self._record.open("a", encoding="utf-8") as file:
            entry = {"asked_at": asked, "answered_at": time.time(), "what": what, "query": query, "answer": answer}
            file.write(json.dumps(entry) + "\n")
        if answer.get("status") != "success":
            return None
        return [(r["metric"], float(r["value"][1])) for r in answer["data"]["result"]]

    def by_pod(self, query: str, *, what: str = "") -> dict[str, float]:
        """The values of a vector by its pod label; empty where there is none."""
        return {labels["pod"]: value for labels, value in self.vector(query, what=what) or [] if "pod" in labels}

    def modes(self, namespace: str) -> dict[str, tuple[str, int]]:
        """Pod → (mode, generation) by its process' own word."""
        found = self.vector(f'genesis_precision_info{{namespace="{namespace}"}}', what="modes") or []
        return {m["pod"]: (m["mode"], int(m["generation"])) for m, _ in found if "pod" in m}

    def operator_queries(self, namespace: str, pods: list[str]) -> int | None:
        """How many queries the operator's pods have sent to Prometheus since they started, by their own counters."""
        total = 0.0
        for pod in pods:
            url = f"{self._api_server}/api/v1/namespaces/{namespace}/pods/{pod}:8080/proxy/metrics"
            try:
                with urllib.request.urlopen(url, timeout=10) as response:
                    text = response.read().decode()
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                return None
            lines = [line for line in text.splitlines() if line.startswith(OPERATOR_QUERIES)]
            total += sum(float(line.rsplit(" ", 1)[1]) for line in lines)
        return int(total)


class BreachPoll:
    """Asks the operator's own query four times a second and more, and keeps when the breach was first visible."""

    def __init__(
        self, metrics: Metrics, query: str, *, level: float, needed: int, workload: Callable[[str], str]
    ) -> None:
        self._metrics = metrics
        self._query = query
        self._level = level
        self._needed = needed
        self._workload = workload
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="breach poll", daemon=True)
        self._seen: set[str] = set()
        self.first_at: float | None = None
        """When the first workload was in breach."""
        self.visible_at: float | None = None
        """When as many workloads had been in breach as make it a fleet emergency. One that was rolled back by itself
        meanwhile still counts, as it does for the operator."""
        self.gap_seconds: float | None = None
        """From the poll before to the one that first returned the breach: how exact ``visible_at`` is."""

    def start(self) -> None:
        """Begin to poll."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the last answer."""
        self._stop.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        last = time.time()
        while not self._stop.is_set():
            values: Mapping[str, float] = self._metrics.by_pod(self._query, what="breach poll")
            now = time.time()
            gap, last = now - last, now
            self._seen |= {self._workload(pod) for pod, value in values.items() if value > self._level}
            if self._seen and self.first_at is None:
                self.first_at = now
            if len(self._seen) >= self._needed and self.visible_at is None:
                self.visible_at, self.gap_seconds = now, gap
            self._stop.wait(PAUSE_SECONDS)
