"""The Grafana dashboards that ship: what they show, in ``fleet`` and ``operator``; how Grafana writes it, in ``model``.

A library for it (grafana-foundation-sdk) is released once for each Grafana and checks nothing while it runs, so these
few fields are written here, and tests hold the result against the schema that Grafana publishes.
"""

from __future__ import annotations

from manifests.dashboards.fleet import FLEET
from manifests.dashboards.model import written
from manifests.dashboards.operator import OPERATOR

DASHBOARDS = {f"{dashboard.uid}.json": written(dashboard) for dashboard in (FLEET, OPERATOR)}
"""File → its text."""
