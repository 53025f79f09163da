"""Odd policies on a real API server: refused, or taken without harm to the operator, and a good one works afterwards."""

from __future__ import annotations

import json

from lab.faults.odd import odd_policies
from precision_operator.api.wire import mapping
from tests.support.cluster_fleet import policy
from tests.support.cluster_scene import NO_SPEED, Scene

GOOD = policy(criteria=NO_SPEED)


def test_odd_policies_in_its_place_do_not_keep_a_good_one_from_its_end(scene: Scene) -> None:
    operator = scene.operators.start("one")
    templates = scene.templates()
    taken = []
    for odd in odd_policies(mapping(GOOD["spec"]), seed=7, count=40):
        body = json.dumps({**GOOD, "spec": odd.spec})
        for verb in (("replace",), ("create",)):
            answer = scene.kubectl(*verb, "-n", scene.namespace, "-f", "-", input=body, check=False)
            if answer.returncode == 0:
                taken.append(odd.path)
                break
        assert operator.poll() is None, f"{odd.path}\n{scene.operators.logs()}"
    assert taken, "the API server refused all of them"
    scene.apply(GOOD)
    scene.wait_phase("Healthy")
    assert operator.poll() is None
    assert scene.templates() == templates
