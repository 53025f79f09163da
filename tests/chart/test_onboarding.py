"""The kustomizations of docs/onboarding.md, built by kubectl over bases that do not know of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from lab.setup.kube import kube_binaries
from precision_operator.admission.injection import inject
from precision_operator.contract import INJECTED
from precision_operator.workloads.kinds.deployment import read_deployment
from tests.support.bodies import Json
from tests.support.onboarding import block, parsed

LITERAL = {"name": "ENABLE_FP16_TRAINING", "value": "true"}


def base(**trainer: object) -> Json:
    """The page's Deployment before anybody has heard of precision, with more in its trainer."""
    body = parsed("by hand")
    template = body["spec"]["template"]
    del template["metadata"]["annotations"], template["spec"]["volumes"]
    template["spec"]["containers"] = [{"name": "trainer", "image": "trainer:1", **trainer}, {"name": "b", "image": "b"}]
    return body


def built(kustomization: str, folder: Path, body: Json) -> Json:
    """The Deployment as kustomize gives it."""
    (folder / "kustomization.yaml").write_text(block(kustomization))
    (folder / "deployment.yaml").write_text(yaml.safe_dump(body))
    command: list[str | Path] = [kube_binaries() / "kubectl", "kustomize", folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    made: Json = yaml.safe_load(done.stdout)
    return made


def test_a_patch_of_one_label_asks_for_the_contract(tmp_path: Path) -> None:
    template = built("kustomization with the label", tmp_path, base())["spec"]["template"]
    made: Json = dict(inject(template))
    by_hand = parsed("by hand")["spec"]["template"]["spec"]
    assert made["spec"]["containers"][0] == by_hand["containers"][0]
    assert made["metadata"]["annotations"][INJECTED] == "trainer"


@pytest.mark.parametrize(
    "trainer",
    [{}, {"env": [LITERAL]}, {"env": [{"name": "A", "value": "1"}, LITERAL], "ports": [{"containerPort": 80}]}],
)
def test_a_patch_of_the_whole_contract_needs_no_injection(tmp_path: Path, trainer: Json) -> None:
    made = built("kustomization with the contract", tmp_path, base(**trainer))
    assert made["metadata"]["name"] == "vit"
    record = read_deployment(made)
    assert (record.view.hot, record.view.literal) == (True, False)
    spec, by_hand = made["spec"]["template"]["spec"], parsed("by hand")["spec"]["template"]["spec"]
    entries = {entry["name"]: entry for entry in spec["containers"][0]["env"]}
    for entry in by_hand["containers"][0]["env"]:
        assert entries[entry["name"]] == entry
    assert by_hand["containers"][0]["ports"][0] in spec["containers"][0]["ports"]
    assert spec["containers"][0]["volumeMounts"] == by_hand["containers"][0]["volumeMounts"]
    assert spec["volumes"] == by_hand["volumes"]
    assert spec["containers"][1] == {"name": "b", "image": "b"}
