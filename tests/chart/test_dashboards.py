"""The Grafana dashboards that ship. Grafana cannot be had here: its published schema judges the files, and Prometheus the
queries.

What the full cluster's Prometheus answers to them: `make operate PARTS=panels`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from jsonschema import Draft7Validator

from lab.operate.panels import AT_LEAST, Panel, beside, filled, gpu_panels, shipped
from manifests.dashboards import fleet
from manifests.recording import PODS
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from tests.support.charted import Render
from tests.support.promtool import expect

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
FILES = {path.name: path for path in (ROOT / "manifests" / "monitoring" / "dashboards").glob("*.json")}
DASHBOARDS: dict[str, Json] = {name: json.loads(path.read_text()) for name, path in FILES.items()}
PANELS: dict[str, Json] = {
    f"{name}: {panel['title']}": panel
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    if panel["type"] != "row"
}
SCHEMA = Draft7Validator(json.loads((ROOT / "lab" / "operate" / "grafana" / "dashboard.schema.json").read_text()))
RULES = yaml.safe_load((ROOT / "manifests" / "monitoring" / "alerts.yaml").read_text())["groups"]
RECORDS = {rule["record"] for group in RULES for rule in group["rules"] if "record" in rule}
REFERENCES = "".join((ROOT / "docs" / page).read_text() for page in ("contract.md", "reference/metrics.md"))
OTHERS = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    *(f"DCGM_FI_{name}" for name in ("DEV_GPU_UTIL", "PROF_PIPE_TENSOR_ACTIVE", "DEV_FB_USED", "DEV_GPU_TEMP")),
}
"""Of client libraries and other exporters."""


def documented(metric: str) -> bool:
    base = re.sub(r"_bucket$", "", metric)
    return re.search(rf"[`,]{base}[`{{]", REFERENCES) is not None


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_dashboard_fits_the_schema_that_grafana_publishes(name: str) -> None:
    assert [f"{error.json_path}: {error.message[:300]}" for error in SCHEMA.iter_errors(DASHBOARDS[name])] == []


def test_the_schema_knows_the_options_of_each_kind_of_panel() -> None:
    """It refuses what Grafana would pass over in silence."""
    broken = json.loads(json.dumps(DASHBOARDS["precision-fleet.json"]))
    next(panel for panel in broken["panels"] if panel["type"] == "timeseries")["options"]["legnd"] = {}
    assert not SCHEMA.is_valid(broken)


@pytest.mark.parametrize("of", [signal for signal in SIGNALS if signal is not Signal.SPEED])
def test_a_signal_of_which_nothing_more_is_said_has_a_panel_with_its_thresholds(
    monkeypatch: pytest.MonkeyPatch, of: Signal
) -> None:
    monkeypatch.setattr(fleet, "REMARKS", {})
    panel, severity = fleet.signal(of), SIGNALS[of].default.severity
    assert panel.title[0].isupper()
    assert ("nothing is rolled back" in panel.description) == (severity is Severity.P3)
    assert panel.unit == ("percentunit" if of is not Signal.NON_FINITE else "none")
    assert panel.description.startswith(SIGNALS[of].text)
    assert SIGNALS[of].default.enter in [threshold.value for threshold in panel.thresholds]


@pytest.mark.parametrize("title", sorted(PANELS))
def test_each_metric_of_a_panel_is_in_a_reference(title: str) -> None:
    for target in PANELS[title]["targets"]:
        promql_parser.parse(filled(target["expr"]))
        bare = re.sub(r'"[^"]*"|\{[^}]*\}|\b(by|on|group_left) \([^)]*\)', "", target["expr"])
        names = set(
            re.findall(r"\b(?:namespace_|genesis_|precision_|reconcile_|workqueue_|process_|DCGM_)[\w:]+", bare)
        )
        assert names
        assert [name for name in names - RECORDS - OTHERS if not documented(name)] == []


@pytest.mark.parametrize("asked", beside(), ids=lambda asked: f"{asked.dashboard}: {asked.title}")
def test_each_metric_of_an_annotation_or_a_variable_is_in_a_reference(asked: Panel) -> None:
    (query,) = asked.queries
    promql_parser.parse(query)
    names = set(re.findall(r"\b(?:namespace_policy:|precision_)[\w:]+", re.sub(r"\{[^}]*\}", "", query)))
    assert names
    assert [name for name in names - RECORDS if not documented(name)] == []


@pytest.mark.parametrize("title", sorted(PANELS))
def test_a_panel_says_what_it_shows_what_to_do_and_in_which_unit(title: str) -> None:
    panel = PANELS[title]
    assert re.search(r"\. .+\.$", panel["description"]), "a sentence of what it shows, one of what to do"
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["noValue"].startswith("no data: ")
    assert panel["fieldConfig"]["defaults"]["custom"].get("spanNulls", False) is False, "what is absent is unknown"
    assert all(target["legendFormat"] and target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_runbooks_that_panels_name_are_there() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text()
    text = " ".join(panel["description"] for panel in PANELS.values())
    named = set(re.findall(r"(\w+) in docs/runbooks\.md|docs/runbooks\.md, (\w+)", text))
    assert named
    assert [name for pair in named for name in pair if name and f"### {name}\n" not in page] == []


def test_there_are_panels_enough_beside_those_of_gpus() -> None:
    assert sum(not panel.gpu for panel in shipped()) >= AT_LEAST


def test_panels_of_gpus_find_series_in_the_format_of_a_dcgm_exporter_and_of_a_trainer(tmp_path: Path) -> None:
    """Series written by hand: there is no GPU here, and the figures say so."""
    found = gpu_panels(tmp_path)
    assert (found["gpu"], found["gpu_with_data"]) == (5, 5)
    assert str(found["gpu_fed_from"]).startswith("written by hand, from no device: ")


def query_of(title: str) -> str:
    (query,) = next(panel.queries for panel in shipped() if panel.title == title)
    return query


def test_throughput_and_the_duration_of_runs_are_shown_by_workload(tmp_path: Path) -> None:
    """Of two pods the slower one's samples, and the runs of both: 5 a minute of up to 10 s, 5 of up to 30 s."""
    samples, bucket = "genesis_training_samples_total", "genesis_training_duration_seconds_bucket"
    series = {}
    for pod, samples_a_minute in {"vit-a": 120, "vit-b": 60}.items():
        named = f'namespace="team",pod="{pod}"'
        series[f'{PODS}{{{named},workload="vit",mode="fp16"}}'] = "1x40"
        series[f"{samples}{{{named}}}"] = f"0+{samples_a_minute}x40"
        for below, runs in {"10.0": 5, "30.0": 10, "+Inf": 10}.items():
            series[f'{bucket}{{{named},le="{below}"}}'] = f"0+{runs}x40"
    vit = '{namespace="team",workload="vit"}'
    throughput = query_of("Throughput").replace("[1m]", "[5m]")
    expect(tmp_path, throughput, series, {vit: 1.0}, interval="1m", at="30m")
    expect(tmp_path, query_of("Duration of a run (p95)"), series, {vit: 28.0}, interval="1m", at="30m")


@pytest.mark.parametrize(
    ("rates", "share"),
    [({"SourceUnavailable": 60}, 1.0), ({"success": 60}, 0.0), ({"success": 45, "SourceUnavailable": 15}, 0.25)],
)
def test_the_share_of_failed_queries_is_there_whatever_fails(
    rates: dict[str, int], share: float, tmp_path: Path
) -> None:
    name = 'precision_operator_prometheus_queries_total{namespace="s",query="overflow",result="%s"}'
    series = {name % result: f"0+{rate}x30" for result, rate in rates.items()}
    expect(tmp_path, query_of("Queries that fail"), series, {'{namespace="s"}': share}, interval="15s", at="5m")


def test_an_endpoint_that_a_former_leader_found_away_is_not_shown_as_away(tmp_path: Path) -> None:
    states = {"old": ("1x30", "0x30"), "new": ("0x30", "1x30")}
    series = {}
    for instance, (circuit, leader) in states.items():
        series[f'precision_operator_prometheus_circuit_state{{endpoint="default",instance="{instance}"}}'] = circuit
        series[f'precision_operator_leader{{instance="{instance}"}}'] = leader
    query = query_of("Prometheus endpoints")
    expect(tmp_path, query, series, {'{endpoint="default"}': 0.0}, interval="15s", at="5m")


def test_panels_do_not_overlap() -> None:
    for name, dashboard in DASHBOARDS.items():
        taken = [
            (place["x"] + x, place["y"] + y)
            for place in (panel["gridPos"] for panel in dashboard["panels"])
            for x in range(place["w"])
            for y in range(place["h"])
        ]
        assert len(taken) == len(set(taken)), name
        assert max(x for x, _ in taken) == 23


def test_the_chart_gives_each_dashboard_to_grafanas_sidecar(render: Render) -> None:
    objects = render("dashboards.enabled=true", "dashboards.annotations.grafana_folder=Precision")
    maps = [o for o in objects if "grafana_dashboard" in o["metadata"].get("labels", {})]
    assert {key: json.loads(text) for o in maps for key, text in o["data"].items()} == DASHBOARDS
    assert {o["metadata"]["labels"]["grafana_dashboard"] for o in maps} == {"1"}
    assert {o["metadata"]["annotations"]["grafana_folder"] for o in maps} == {"Precision"}
    assert len({o["metadata"]["name"] for o in maps}) == len(DASHBOARDS)
