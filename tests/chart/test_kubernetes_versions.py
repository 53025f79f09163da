"""What docs/kubernetes-versions.md says that older API servers need not know."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lab.setup import kube, older
from lab.surfaces.chart import versions_run
from tests.support.rendered import Json

ROOT = Path(__file__).parents[2]
SINCE_1_31 = {
    "two variables": r"\.transform(?:List|Map|MapEntry)\(|\.(?:all|exists|existsOne)\(\s*\w+\s*,\s*\w+\s*,",
    "format": r"format\.(?:dns|uuid|uri|named|qualified)",
    "selectors of the authorizer": r"\.(?:fieldSelector|labelSelector)\(",
    "versions": r"\b(?:semver|isSemver)\(",
    "lists of 1.34": r"\.(?:flatten|distinct|sortBy)\(|lists\.range\(",
}
"""Libraries of CEL that 1.30 lacks, and how each is known in an expression (k8s.io/apiserver/pkg/cel/environment)."""


def test_the_page_calls_those_versions_run_that_are_compiled_here() -> None:
    page = (ROOT / "docs" / "kubernetes-versions.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| 1.")]
    run = {row[1].strip(): row[-2] for row in rows if row[-2].strip().startswith("**run**")}
    assert list(run) == versions_run()
    for text, version in zip(run.values(), (kube.VERSION, older.VERSION), strict=True):
        assert f"**run** on {version.removeprefix('v')}:" in text


def policies(kind: str) -> list[Json]:
    files = [*(ROOT / "manifests" / "admission").glob("*.yaml"), *(ROOT / "manifests" / "webhook").glob("*.yaml")]
    found = [body for path in files for body in yaml.safe_load_all(path.read_text())]
    return [body for body in found if body["kind"] == kind]


@pytest.mark.parametrize("library", SINCE_1_31)
def test_what_every_version_installs_uses_nothing_that_1_30_lacks(library: str) -> None:
    crds = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    used = {
        body["metadata"]["name"]: found[0]
        for body in (*policies("ValidatingAdmissionPolicy"), *crds)
        if (found := re.findall(SINCE_1_31[library], yaml.safe_dump(body["spec"], width=10_000)))
    }
    assert used == {}


def test_what_mutates_does_and_so_needs_1_32() -> None:
    texts = [yaml.safe_dump(body["spec"], width=10_000) for body in policies("MutatingAdmissionPolicy")]
    assert any(re.search(SINCE_1_31["two variables"], text) for text in texts)
