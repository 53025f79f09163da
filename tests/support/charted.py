"""What the tests of the chart share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.support.rendered import Json

Render = Callable[..., list[Json]]


Helm = Callable[..., subprocess.CompletedProcess[str]]


ROOT = Path(__file__).parents[2]


CHART = ROOT / "helm" / "precision-operator"
