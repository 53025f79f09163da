"""The dashboards' queries against the Prometheus that the demo's trainers and operators have filled (test_story.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.operate.panels import AT_LEAST, Figures, panels, until_filled

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def found(prometheus_url: str, tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Played again only where the story has not been played in this cluster."""
    directory: Path = tmp_path_factory.mktemp("panels")
    until_filled(prometheus_url, directory)
    return panels(prometheus_url)


def test_each_panel_beside_those_of_gpus_has_data(found: Figures) -> None:
    assert found["without_data"] == []
    assert found["with_data"] == found["count"]
    assert int(str(found["count"])) >= AT_LEAST
