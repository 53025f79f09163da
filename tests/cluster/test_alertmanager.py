"""A real Alertmanager, configured as the docs say, wakes a real operator: a policy that looks every five minutes answers a
breach within seconds.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import yaml

from lab.alertmanager import Alertmanager
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from tests.support.alerting import posting_to
from tests.support.cluster_fleet import Json
from tests.support.cluster_scene import Scene, break_two, promoted, scraping

RULES = Path(__file__).parents[2] / "manifests" / "monitoring" / "alerts.yaml"


def impatient() -> Json:
    """The alerts that we ship, none of which waits."""
    rules: Json = yaml.safe_load(RULES.read_text())
    for rule in rules["groups"][0]["rules"]:
        rule.pop("for", None)
    return rules


def test_an_alert_brings_the_rollback_forward(scene: Scene, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(f"{secrets.token_hex(32)}\n")
    scene.operators.settings["receiver"] = {"port": 0, "tokenFile": str(token)}
    promoted(scene)
    before = scene.status()["observedGeneration"]
    rarely = {"interval": "5m", "window": "5m", "maxSampleAge": "60s"}
    scene.kubectl(
        "patch",
        "ppol",
        "fleet",
        "-n",
        scene.namespace,
        "--type",
        "merge",
        "-p",
        json.dumps({"spec": {"evaluation": rarely}}),
    )
    # Seen with a reading of its own: the next one is five minutes away.
    wait_for(lambda: scene.status()["observedGeneration"] > before, what="the new interval to be in force", seconds=30)
    break_two(scene)
    overflow = (
        "sum by (pod) (increase(genesis_fp16_overflow_steps_total[5m])) > "
        "0.35 * sum by (pod) (increase(genesis_fp16_training_steps_total[5m]))"
    )
    wait_for(lambda: len(scene.prometheus.query(overflow)) >= 2, what="the breach to be in Prometheus", seconds=50)
    assert scene.status()["phase"] == "Healthy"
    with Alertmanager(tmp_path / "alertmanager", posting_to(scene.port("receiverPort"), token)) as alertmanager:
        config = scraping(scene.shadow.target)
        config["global"]["evaluation_interval"] = "500ms"
        target = alertmanager.url.removeprefix("http://")
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [target]}]}]}
        with Prometheus(tmp_path / "alerting", config, rules={"alerts": impatient()}):
            # Long before the policy itself would have looked again.
            scene.wait_phase("Held", seconds=60)
