"""What pages give to Helm, the chart takes."""

from __future__ import annotations

import os
import re
import shlex
from itertools import pairwise

import pytest
import yaml

from lab.docs.commands import all_blocks, blocks_of, shell_blocks
from lab.process import run
from lab.setup.kube import kube_binaries
from tests.support.charted import CHART, ROOT, Helm
from tests.support.rendered import REGISTRY

SETS = ("--set", "--set-json")
MONITORS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")


def values_given() -> list[tuple[str, list[str]]]:
    """Of each `helm upgrade` that a page shows, the page and its `--set` flags."""
    return [
        (
            f"{block.page}:{block.line}",
            [part for flag, value in pairwise(shlex.split(line)) if flag in SETS for part in (flag, value)],
        )
        for block in shell_blocks(all_blocks())
        for line in block.text.replace("\\\n", " ").splitlines()
        if re.match("helm (upgrade|template) ", line)
    ]


@pytest.mark.parametrize("flags", [pytest.param(flags, id=place) for place, flags in values_given() if flags])
def test_values_that_a_page_gives_are_the_charts(flags: list[str], helm: Helm) -> None:
    flags = [flag.replace("sha256:…", f"sha256:{'0' * 64}") for flag in flags]  # what the reader puts in its place
    served = [part for kind in MONITORS for part in ("--api-versions", f"monitoring.coreos.com/v1/{kind}")]
    assert helm("template", "precision-operator", CHART, *served, *REGISTRY, *flags).stdout


def test_the_page_s_template_is_for_clusters_that_have_the_webhook() -> None:
    page = ROOT / "docs" / "kubernetes-versions.md"
    (block,) = shell_blocks(list(blocks_of(page.name, page.read_text())))
    environment = {"PATH": f"{kube_binaries()}:{os.environ['PATH']}"}
    done = run(["bash", "-euc", block.text], cwd=ROOT, env=environment, timeout=60)
    kinds = {document["kind"] for document in yaml.safe_load_all(done.stdout) if document}
    assert "MutatingWebhookConfiguration" in kinds
    assert "MutatingAdmissionPolicy" not in kinds
