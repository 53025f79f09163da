"""Deployments whose templates ask for the contract by a label: one gets it and moves hot, one does not and is named."""

from __future__ import annotations

import json

from lab.waiting import wait_for
from precision_operator.contract import INJECT, INJECTED, REQUEST
from tests.support.cluster_fleet import Json, deployment
from tests.support.cluster_scene import PATIENCE_SECONDS, Scene, promoted

LABELLED, REFUSED = "labelled", "refused"


def asking(body: Json) -> Json:
    """The Deployment with the label."""
    body["spec"]["template"]["metadata"]["labels"][INJECT] = "trainer"
    return body


def bare(name: str) -> Json:
    """A Deployment that has never heard of precision."""
    body = deployment(name, hot=False)
    del body["spec"]["template"]["spec"]["containers"][0]["env"]
    return body


def on_the_host(name: str) -> Json:
    """One that can be moved by restart alone."""
    body = deployment(name, hot=False)
    body["spec"]["template"]["spec"]["hostNetwork"] = True
    return body


def test_the_label_makes_a_workload_hot_and_a_refusal_is_named_in_a_condition(scene: Scene) -> None:
    scene.apply(asking(bare(LABELLED)), asking(on_the_host(REFUSED)))
    wait_for(lambda: len(scene.shadow.modes()) == 7, what="pods of all seven", seconds=PATIENCE_SECONDS)
    before = scene.pods()
    assert before[LABELLED]["metadata"]["annotations"][INJECTED] == "trainer"
    promoted(scene)
    after = scene.pods()
    assert after[LABELLED]["metadata"]["uid"] == before[LABELLED]["metadata"]["uid"], "hot: it was not restarted"
    assert json.loads(after[LABELLED]["metadata"]["annotations"][REQUEST])["mode"] == "fp16"
    assert after[REFUSED]["metadata"]["uid"] != before[REFUSED]["metadata"]["uid"]
    assert scene.in_mode("fp16") >= {LABELLED, REFUSED}
    shown = scene.condition("InjectionRefused", "HostNetwork")
    assert shown["status"] == "True"
    assert shown["message"].endswith(f"HostNetwork: {REFUSED}")
