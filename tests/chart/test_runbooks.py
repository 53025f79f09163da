"""The runbooks: each alert has one, and each command in them is one that kubectl, its plugin or the trainer takes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from lab.docs.commands import in_blocks, in_prose
from lab.setup.kube import kube_binaries
from precision_operator.cli import parser as plugin
from precision_trainer.cli import main as trainer
from tests.support.charted import Render

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbooks.md").read_text()
ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "manifests" / "monitoring" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
    if "alert" in rule
}
SECTIONS = {text.partition("\n")[0]: text for text in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]}
ANCHORS = {
    re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
}
VARIABLES = {
    "NS": "training",
    "POLICY": "fleet",
    "POD": "vit-0",
    "SYSTEM": "precision-system",
    "PROMETHEUS": "http://h:9090",
}


def commands(text: str) -> list[str]:
    """Lines of code, and code within a sentence, that begin with kubectl."""
    return [*in_blocks(text), *in_prose(text)]


def words(command: str) -> list[str]:
    """As a shell makes them, with the variables that the page has set."""
    filled = re.sub(r"\$([A-Z]+)", lambda name: VARIABLES[name[1]], command)
    return shlex.split(filled, comments=True)[1:]


COMMANDS = sorted(set(commands(PAGE)))
OF_THE_PLUGIN = [command for command in COMMANDS if command.startswith("kubectl precision ")]
OF_KUBECTL = [command for command in COMMANDS if not command.startswith("kubectl precision ")]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_is_so_in_units_and_where_its_runbook_is(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["description"].endswith(".")
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (ROOT / page).is_file()
    assert anchor == alert.lower()
    assert anchor in ANCHORS


def test_the_runbooks_are_those_of_the_alerts() -> None:
    assert set(SECTIONS) == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_says_what_it_means_what_to_look_at_what_to_do_and_whom_to_call(alert: str) -> None:
    section = SECTIONS[alert]
    parts = re.findall(r"^\*\*(\w+)\.?\*\*", section, re.MULTILINE)
    assert parts == ["Means", "Look", "Do", "Escalate"]
    assert commands(section)


def test_the_chart_leads_to_where_people_read_the_page(render: Render) -> None:
    where = "https://wiki.example/precision"
    values = ("prometheusRule.enabled=true", f"prometheusRule.runbookUrl={where}")
    (rule,) = (o for o in render(*values, monitoring=["PrometheusRule"]) if o["kind"] == "PrometheusRule")
    rules = [rule for group in rule["spec"]["groups"] for rule in group["rules"]]
    found = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule}
    assert found == {alert: f"{where}#{alert.lower()}" for alert in ALERTS}


def test_links_within_the_page_lead_somewhere() -> None:
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= ANCHORS


@pytest.mark.parametrize("command", OF_THE_PLUGIN)
def test_the_plugin_takes_the_command(command: str) -> None:
    given = words(command)[1:]
    plugin(given).parse_args(given)


@pytest.mark.parametrize("command", OF_KUBECTL)
def test_kubectl_takes_the_command(command: str, tmp_path: Path) -> None:
    """It gets as far as asking an API server, which is not there."""
    given = words(command)
    config = tmp_path / "config"
    cluster = "clusters: [{name: none, cluster: {server: 'http://127.0.0.1:1'}}]"
    context = "contexts: [{name: none, context: {cluster: none}}]"
    config.write_text(f"apiVersion: v1\nkind: Config\n{cluster}\n{context}\ncurrent-context: none\n")
    program: list[str | Path] = [kube_binaries() / "kubectl", "--kubeconfig", config]
    done = subprocess.run([*program, *given], capture_output=True, text=True, timeout=60, check=False)
    assert "was refused" in done.stderr, done.stderr
    if "--" in given:
        inside = given[given.index("--") + 1 :]
        assert inside[:3] == ["python3", "-m", "precision_trainer"], "the image has no other name for it"
        with pytest.raises(SystemExit) as ended:
            trainer([*inside[3:], "--help"])
        assert ended.value.code == 0
