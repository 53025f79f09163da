"""A real Alertmanager, configured as the docs say, wakes a real operator: a policy that looks every five minutes answers a
breach within seconds.
"""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import yaml

from lab.alertmanager import Alertmanager
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.service import phase
from tests.support.alerting import posting_to
from tests.support.cluster_fleet import Json
from tests.support.cluster_scene import PATIENCE_SECONDS, Scene, break_two, promoted, scraping

RULES = Path(__file__).parents[2] / "manifests" / "monitoring" / "alerts.yaml"

SECONDS = 300.0
NAMES = [f"turn-{index}" for index in range(40)]
"""Of one Prometheus. By each of them the policy is read at another moment of five minutes."""


def impatient() -> Json:
    """The alerts that we ship, none of which waits."""
    rules: Json = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)
    return rules


def left_seconds(name: str, namespace: str) -> float:
    """Until the policy is read by itself, where this is the name of its Prometheus."""
    plan = EvaluationPlan(name, namespace, window_seconds=SECONDS, min_steps=0, interval_seconds=SECONDS)
    return SECONDS - (time.monotonic() - phase(plan)) % SECONDS


def test_an_alert_brings_the_rollback_forward(scene: Scene, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{secrets.token_hex(32)}\n")
    scene.operators.settings["receiver"] = {"port": 0, "tokenFile": str(token)}
    endpoints = {name: {"url": scene.prometheus.url} for name in ("default", *NAMES)}
    scene.operators.settings["prometheus"] = endpoints
    promoted(scene)
    before = scene.status()["observedGeneration"]
    rarely = {"interval": "5m", "window": "5m", "maxSampleAge": "60s"}
    name = max(NAMES, key=lambda name: left_seconds(name, scene.namespace))
    assert left_seconds(name, scene.namespace) > 200
    until = time.monotonic() + left_seconds(name, scene.namespace)
    scene.kubectl(
        "patch",
        "ppol",
        "fleet",
        "-n",
        scene.namespace,
        "--type",
        "merge",
        "-p",
        json.dumps({"spec": {"evaluation": rarely, "prometheusRef": {"name": name}}}),
    )
    # Seen with a reading of its own: the next one is almost five minutes away.
    wait_for(
        lambda: scene.status()["observedGeneration"] > before,
        what="the new interval to be in force",
        seconds=PATIENCE_SECONDS,
    )
    break_two(scene)
    overflow = (
        "sum by (pod) (increase(genesis_fp16_overflow_steps_total[5m])) > "
        "0.35 * sum by (pod) (increase(genesis_fp16_training_steps_total[5m]))"
    )
    wait_for(
        lambda: len(scene.prometheus.query(overflow)) >= 2,
        what="the breach to be in Prometheus",
        seconds=PATIENCE_SECONDS,
    )
    assert scene.status()["phase"] == "Healthy"
    with Alertmanager(tmp_path / "alertmanager", posting_to(scene.port("receiverPort"), token)) as alertmanager:
        config = scraping(scene.shadow.target)
        config["global"]["evaluation_interval"] = "500ms"
        target = alertmanager.url.removeprefix("http://")
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
        with Prometheus(tmp_path / "alerting", config, rules={"alerts": impatient()}):
            # Before the policy itself looks again.
            scene.wait_phase("Held", seconds=min(PATIENCE_SECONDS, until - time.monotonic()))
