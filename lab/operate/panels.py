"""The panels of the dashboards that ship: each of their queries is asked of a Prometheus, as Grafana would ask.

Grafana itself is not here. What it makes of the files is held against its published schema (``grafana/``) by
tests/chart/test_dashboards.py; what Prometheus answers is asked here. There is no GPU here either: the panels of GPUs are
asked of a Prometheus that has scraped the files of ``exposition``, which no device reported, and are counted apart.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from lab import paths
from lab.cluster import Cluster
from lab.cluster.monitoring import apply_prometheus
from lab.errors import LabError
from lab.isolation.part import Figures, Section
from lab.operate.exposition import DCGM, TRAINER, served
from lab.progress import step
from lab.prometheus import Prometheus
from lab.waiting import wait_for

FOLDER = paths.ROOT / "manifests" / "monitoring" / "dashboards"
CHOSEN = {"$namespace": ".*", "$policy": ".*", "$__rate_interval": "1m"}
"""What Grafana fills in where a person has chosen nothing."""
HOUR = 3600.0
DEMO = [sys.executable, "-m", "lab.demo"]
DEMO_SECONDS = 1200.0
DEMO_LOG = paths.BUILD / "reports" / "demo-for-panels.log"
FILLED = "sum(precision_rollback_stage_seconds_count) > 0 and on () sum(genesis_training_steps_total) > 0"
"""Trainers have trained, and were rolled back."""
AT_LEAST = 15
"""Panels beside the GPUs'."""


class Panel(NamedTuple):
    """One panel of a file, or what else of it asks Prometheus."""

    dashboard: str
    title: str
    queries: tuple[str, ...]

    @property
    def gpu(self) -> bool:
        """It shows what only a machine with a GPU reports."""
        return any("DCGM_" in query or "genesis_cuda_" in query for query in self.queries)


def shipped() -> list[Panel]:
    """All panels, in the files' order."""
    files = [(path, json.loads(path.read_text())) for path in sorted(FOLDER.glob("*.json"))]
    return [
        Panel(path.stem, panel["title"], tuple(filled(target["expr"]) for target in panel["targets"]))
        for path, dashboard in files
        for panel in dashboard["panels"]
        if panel["type"] != "row"
    ]


def beside() -> list[Panel]:
    """What stands beside the panels: the annotations, and the variables with the labels that they offer."""
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        dashboard = json.loads(path.read_text())
        asked = {f"annotation {each['name']}": each["expr"] for each in dashboard["annotations"]["list"]}
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                asked[f"variable {variable['name']}"] = _offered(variable["query"]["query"])
        found += [Panel(path.stem, title, (filled(query),)) for title, query in asked.items()]
    return found


def _offered(query: str) -> str:
    """The series with the label of ``label_values(series, label)``; without any, Grafana offers nothing to choose."""
    asked = re.fullmatch(r"label_values\((.+?)(\{.*\})?, (\w+)\)", query)
    if asked is None:
        raise LabError("a variable label_values(series, label)", query, "mend it in manifests/dashboards")
    series, matchers, label = asked.groups(default="")
    wanted = ", ".join(filter(None, (matchers[1:-1], f'{label}!=""')))
    return f"{series}{{{wanted}}}"


def filled(query: str) -> str:
    """A query with its variables filled in."""
    for name, value in CHOSEN.items():
        query = query.replace(name, value)
    return query


def panels(prometheus_url: str, *, seconds: float = HOUR) -> Figures:
    """How many panels beside the GPUs' there are, and how many have data in the last ``seconds``; which have none.

    Annotations and variables are counted apart.

    Raises:
        LabError: Prometheus refuses a query.
    """
    asked = [panel for panel in shipped() if not panel.gpu]
    others = beside()
    without, without_others = (
        [panel for panel in each if not has_data(panel, prometheus_url, seconds=seconds)] for each in (asked, others)
    )
    return {
        "count": len(asked),
        "with_data": len(asked) - len(without),
        "annotations_and_variables": len(others),
        "annotations_and_variables_with_data": len(others) - len(without_others),
        "without_data": [f"{panel.dashboard}: {panel.title}" for panel in (*without, *without_others)],
    }


def gpu_panels(directory: Path) -> Figures:
    """The same of the GPUs' panels, from series written by hand: they show that queries fit, not what a GPU does."""
    asked = [panel for panel in shipped() if panel.gpu]
    with written_gpus(directory) as url:
        found = sum(has_data(panel, url, seconds=60) for panel in asked)
    return {
        "gpu": len(asked),
        "gpu_with_data": found,
        "gpu_fed_from": "written by hand, from no device: "
        + ", ".join(str(file.relative_to(paths.ROOT)) for file in (DCGM, TRAINER)),
    }


@contextmanager
def written_gpus(directory: Path) -> Iterator[str]:
    """A Prometheus that scrapes the written series as those of an exporter's pod and a trainer's; its address."""
    pods = {"metrics": ("gpu-operator", "dcgm-exporter"), "trainer": ("training", "vit-6d4cf56db6-x2x9q")}
    with served() as address:
        jobs = [
            {
                "job_name": path,
                "metrics_path": f"/{path}",
                "static_configs": [{"targets": [address], "labels": {"namespace": namespace, "pod": pod}}],
            }
            for path, (namespace, pod) in pods.items()
        ]
        timing = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        with Prometheus(directory, {"global": timing, "scrape_configs": jobs}) as prometheus:
            scraped = f"count(up == 1) == {len(pods)}"
            wait_for(lambda: bool(prometheus.query(scraped)), what="the written series", seconds=30, every=0.1)
            yield prometheus.url


def has_data(panel: Panel, prometheus_url: str, *, seconds: float) -> bool:
    """Whether each query of the panel gives a number at some time; NaN is none."""
    return all(_numbers(query, prometheus_url, seconds=seconds) for query in panel.queries)


def _numbers(query: str, prometheus_url: str, *, seconds: float) -> bool:
    now = time.time()
    # As close as scrapes: what the demo's operator counts last is there for three seconds, then the operator is away.
    asked = {"query": query, "start": now - seconds, "end": now, "step": 1.0}
    address = f"{prometheus_url}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            series = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:500]
        raise LabError(
            f"an answer to {query}", said, "mend the query in manifests/dashboards, then `make generate`"
        ) from error
    return any(math.isfinite(float(value)) for each in series for _, value in each["values"])


def measure(directory: Path) -> Section:
    """Of the full cluster's Prometheus, after the demo's story has filled it."""
    cluster = Cluster()
    found_running = cluster.running()
    with step("the full cluster"):
        cluster.up()
    try:
        url = apply_prometheus(cluster.kubectl)
        until_filled(url)
        return {**panels(url), **gpu_panels(directory / "gpu")}
    finally:
        if not found_running:
            cluster.down()


def until_filled(prometheus_url: str) -> None:
    """Play the demo, unless its trainers have filled this Prometheus within the hour.

    Raises:
        LabError: it failed; its log is kept.
    """
    if _numbers(FILLED, prometheus_url, seconds=HOUR):
        return
    DEMO_LOG.parent.mkdir(parents=True, exist_ok=True)
    with step("the demo, to fill Prometheus"), DEMO_LOG.open("w") as log:
        try:
            code = subprocess.run(
                DEMO, cwd=paths.ROOT, stdout=log, stderr=log, timeout=DEMO_SECONDS, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    if code != 0:
        found = f"it ran for more than {DEMO_SECONDS:g} s" if code is None else f"exit code {code}"
        raise LabError("the demo to fill Prometheus", f"{found}: {DEMO_LOG.read_text()[-2000:]}", f"read {DEMO_LOG}")


def missed(found: Section) -> list[str]:
    """The bounds that it misses."""
    assert isinstance(found, dict)
    wrong = [f"expected data in {title}, found none" for title in found["without_data"]]
    if found["count"] < AT_LEAST:
        wrong.append(f"expected {AT_LEAST} panels beside the GPUs' or more, found {found['count']}")
    if found["gpu_with_data"] < found["gpu"]:
        wrong.append(f"expected data in all {found['gpu']} panels of GPUs, found it in {found['gpu_with_data']}")
    return wrong
