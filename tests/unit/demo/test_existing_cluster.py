"""The demo on a cluster that is there already: its images are built on the machine that runs the command."""

from __future__ import annotations

import pytest

from lab.demo import __main__ as demo
from lab.errors import LabError


def test_a_node_is_refused_before_an_image_is_built_for_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    def node() -> None:
        raise LabError("a machine that is no Kubernetes node", "signs of another cluster", "use another machine")

    monkeypatch.setattr(demo, "require_machine", node)
    monkeypatch.setattr(demo, "kube_binaries", None)
    monkeypatch.setattr(demo, "build_images", None)
    with pytest.raises(LabError, match="signs of another cluster"), demo.existing_stage("theirs", "host/path"):
        pass
