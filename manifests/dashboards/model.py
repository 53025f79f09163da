"""A dashboard as data, and the JSON that Grafana 10.4 and later read (schema version 39)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = dict[str, Any]
Color = Literal["green", "yellow", "orange", "red", "blue", "text"]
SOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
"""Of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and the name of its series in the legend."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Threshold:
    """From this value on the color holds."""

    value: float
    color: Color


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    description: str
    """What it shows, and what to do where it looks wrong."""
    queries: tuple[Query, ...]
    unit: str
    kind: Literal["timeseries", "stat", "state-timeline"] = "timeseries"
    thresholds: tuple[Threshold, ...] = ()
    base: Color = "green"
    """The color below the first threshold."""
    mappings: Mapping[str, tuple[str, Color]] = field(default_factory=dict)
    """Value → the text that stands for it, and its color."""
    lowest: float | None = None
    logarithm: int | None = None
    """The base of a logarithmic axis."""
    missing: str = "no data: nothing reports it"
    """What stands there where the query finds nothing."""
    width: int = 8
    height: int = 8


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a title."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks on every time axis: the query's value is the moment, in milliseconds."""

    name: str
    expr: str
    title: str
    color: Color


@dataclass(frozen=True, slots=True)
class Variable:
    """What a person chooses above the panels: the values of a label."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page of rows."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    annotations: tuple[Annotation, ...] = ()


def written(dashboard: Dashboard) -> str:
    """The file."""
    body = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["precision"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "links": [_other_dashboards()],
        "templating": {"list": [_datasource(), *map(_variable, dashboard.variables)]},
        "annotations": {"list": [_annotation(each) for each in dashboard.annotations]},
        "panels": list(_laid_out(dashboard.rows)),
    }
    return json.dumps(body, indent=1) + "\n"


def _laid_out(rows: tuple[Row, ...]) -> Iterator[Json]:
    """Rows from the top, panels from the left; the ids follow the order."""
    y, identity = 0, 1
    for row in rows:
        place = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        yield {"type": "row", "id": identity, "title": row.title, "collapsed": False, "gridPos": place, "panels": []}
        y, identity, x, tallest = y + 1, identity + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            yield _panel(panel, identity, {"h": panel.height, "w": panel.width, "x": x, "y": y})
            x, tallest, identity = x + panel.width, max(tallest, panel.height), identity + 1
        y += tallest


def _panel(panel: Panel, identity: int, place: Json) -> Json:
    steps = [{"value": step.value, "color": step.color} for step in panel.thresholds]
    defaults: Json = {
        "unit": panel.unit,
        "noValue": panel.missing,
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": [{"value": None, "color": panel.base}, *steps]},
        "mappings": _mappings(panel.mappings),
        "custom": _custom(panel),
    }
    if panel.lowest is not None:
        defaults["min"] = panel.lowest
    return {
        "type": panel.kind,
        "id": identity,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [_target(query, letter) for query, letter in zip(panel.queries, "ABCDEF", strict=False)],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
    }


def _target(query: Query, letter: str) -> Json:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend,
        "range": True,
        "editorMode": "code",
    }


def _mappings(mappings: Mapping[str, tuple[str, Color]]) -> list[Json]:
    options = {
        value: {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(mappings.items())
    }
    return [{"type": "value", "options": options}] if options else []


def _custom(panel: Panel) -> Json:
    if panel.kind == "stat":
        return {}
    if panel.kind == "state-timeline":
        return {"fillOpacity": 80, "lineWidth": 0}
    scale = {"type": "log", "log": panel.logarithm} if panel.logarithm else {"type": "linear"}
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 0,
        "showPoints": "auto",
        "spanNulls": False,  # what is absent is unknown
        "scaleDistribution": scale,
        "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
    }


def _options(kind: str) -> Json:
    legend = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]}
    tooltip = {"mode": "multi", "sort": "desc"}
    if kind == "stat":
        return {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "orientation": "auto",
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "percentChangeColorMode": "standard",
            "showPercentChange": False,
            "textMode": "auto",
            "wideLayout": True,
        }
    if kind == "state-timeline":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        return {"legend": legend, "tooltip": tooltip, "rowHeight": 0.8, "showValue": "auto", "mergeValues": True}
    return {"legend": legend, "tooltip": tooltip}


def _other_dashboards() -> Json:
    return {
        "type": "dashboards",
        "title": "Precision",
        "tags": ["precision"],
        "asDropdown": False,
        "icon": "external link",
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "tooltip": "",
        "url": "",
    }


def _datasource() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Prometheus",
        "query": "prometheus",
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }


def _variable(variable: Variable) -> Json:
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "allValue": ".*",
        "includeAll": True,
        "multi": True,
        "hide": 0,
        "options": [],
        "refresh": 2,
        "regex": "",
        "skipUrlSync": False,
        "sort": 1,
    }


def _annotation(annotation: Annotation) -> Json:
    return {
        "name": annotation.name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": annotation.color,
        "expr": annotation.expr,
        "titleFormat": annotation.title,
        "tagKeys": "namespace,policy",
        "step": "30s",
        "useValueForTime": True,
    }
