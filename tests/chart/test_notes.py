"""What Helm prints after an installation where links to the runbooks lead nowhere."""

from __future__ import annotations

import json

import pytest

from tests.support.charted import CHART, Helm, Render
from tests.support.rendered import REGISTRY

RULES = "prometheusRule.enabled=true"
CHAT = "config.notifications.chat.urlFile=/etc/chat"
WIKI = "https://wiki.example/runbooks"
OF_ALERTS, OF_MESSAGES = "prometheusRule.runbookUrl", "config.incidents.runbookUrl"
NAMED = """
apiVersion: v1
kind: ConfigMap
metadata: {name: named}
data: {values: '{{ include "precision-operator.runbooksWithoutUrl" . }}'}
"""
"""What the notes name, as an object of the release: helm prints notes only of a cluster that serves all kinds."""


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([], []),
        ([RULES], [OF_ALERTS]),
        ([CHAT], [OF_MESSAGES]),
        ([RULES, CHAT], [OF_ALERTS, OF_MESSAGES]),
        ([RULES, f"{OF_ALERTS}={WIKI}", CHAT], [OF_MESSAGES]),
        ([RULES, f"{OF_ALERTS}={WIKI}", CHAT, f"{OF_MESSAGES}={WIKI}"], []),
    ],
)
def test_an_address_of_the_runbooks_that_is_used_and_no_url_is_known(
    render: Render, values: list[str], named: list[str]
) -> None:
    objects = render(f"extraObjects={json.dumps([NAMED])}", *values, monitoring=["PrometheusRule"])
    (found,) = (o for o in objects if o["metadata"]["name"] == "named")
    assert found["data"]["values"].split() == named


@pytest.mark.parametrize(("values", "told"), [([], False), (["--set", CHAT], True)])
def test_the_notes_tell_where_links_to_the_runbooks_lead_nowhere(helm: Helm, values: list[str], told: bool) -> None:
    done = helm("install", "precision-operator", CHART, "--dry-run=client", *REGISTRY, *values)
    assert ("NOTE: links to the runbooks lead nowhere" in done.stdout) == told
    assert (f"--set {OF_MESSAGES}=https://" in done.stdout) == told
