"""The node's own promise: pods run, learn of their annotations, and reach Services by address and by name."""

from __future__ import annotations

import json
import urllib.request

from lab.cluster import Kubectl
from lab.cluster.kubectl import Json
from lab.waiting import wait_for

PROGRAM = """
import pathlib, sys, time, urllib.request
for url in sys.argv[1:]:
    print(url, urllib.request.urlopen(url, timeout=20).status, flush=True)
file, seen = pathlib.Path("/etc/precision/request"), None
while True:
    text = file.read_text()
    if text != seen:
        print("request", text, flush=True)
        seen = text
    time.sleep(0.2)
"""


def pod(name: str, image: str, **container: object) -> Json:
    """Describe a pod of one container, with the contract's downward-API file."""
    item = {"path": "request", "fieldRef": {"fieldPath": "metadata.annotations['precision.genesis.ai/request']"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "Never",
                    "volumeMounts": [{"name": "precision", "mountPath": "/etc/precision"}],
                    **container,
                }
            ],
            "volumes": [{"name": "precision", "downwardAPI": {"items": [item]}}],
        },
    }


def test_a_pod_runs(kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(pod("still", "localhost/pause:1")))
    kubectl.wait_until("condition=Ready", "pod/still", "-n", namespace, seconds=60)


def test_a_pod_reaches_services_and_sees_its_annotation_change(
    kubectl: Kubectl, namespace: str, prometheus_url: str
) -> None:
    by_name = "http://prometheus.monitoring.svc:9090"
    command = ["python3", "-c", PROGRAM, f"{prometheus_url}/-/ready", f"{by_name}/-/ready"]
    watcher = pod("watcher", "localhost/precision-operator:dev", command=command)
    kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(watcher))
    kubectl.wait_until("condition=Ready", "pod/watcher", "-n", namespace, seconds=60)

    def logs() -> str:
        return kubectl("logs", "watcher", "-n", namespace).stdout

    wait_for(lambda: "request \n" in logs(), what="the pod to read an empty request", seconds=60, found=logs)
    assert f"{prometheus_url}/-/ready 200" in logs()
    assert f"{by_name}/-/ready 200" in logs()

    request = '{"generation":17,"mode":"fp32"}'
    kubectl("annotate", "pod", "watcher", "-n", namespace, f"precision.genesis.ai/request={request}")
    wait_for(lambda: f"request {request}" in logs(), what="the pod to read the request", seconds=30, found=logs)


def test_prometheus_scrapes_what_asks_for_it_and_names_the_pod(
    kubectl: Kubectl, namespace: str, prometheus_url: str
) -> None:
    exporter = pod("exporter", "localhost/prometheus:dev")
    exporter["metadata"]["annotations"] = {"prometheus.io/scrape": "true", "prometheus.io/port": "9090"}
    exporter["spec"]["containers"][0]["args"] = ["--config.file=/dev/null", "--storage.tsdb.path=/tmp/data"]
    kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(exporter))

    def series() -> list[dict[str, str]]:
        query = f"{prometheus_url}/api/v1/query?query=up%7Bnamespace%3D%22{namespace}%22%7D%3D%3D1"
        with urllib.request.urlopen(query, timeout=10) as answer:
            return [result["metric"] for result in json.load(answer)["data"]["result"]]

    found = wait_for(series, what="a scraped series of the pod", seconds=60)
    assert [(metric["namespace"], metric["pod"]) for metric in found] == [(namespace, "exporter")]
