"""``incident``: what is listed, and what is said where nothing is found."""

from __future__ import annotations

import pytest

from precision_operator.api.wire import format_time
from precision_operator.kube.port import INCIDENTS, JsonObject
from tests.support.cli import NOW, Cli


def incident(cli: Cli, name: str, *, namespace: str = "default", **stages: str) -> None:
    report: JsonObject = {"policy": "fleet", "stages": dict(stages)}
    cli.fake.put(INCIDENTS, {"metadata": {"name": name, "namespace": namespace}, "report": report})


def test_an_incident_of_unknown_age_is_listed_last_as_unknown(cli: Cli) -> None:
    incident(cli, "odd")
    incident(cli, "young", decidedAt=format_time(NOW - 60) or "")
    _, *rows = cli("incident", "list").splitlines()
    assert [row.split()[0] for row in rows] == ["young", "odd"]
    assert rows[1].split()[-1] == "unknown"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no PrecisionIncident in namespace default\n"),
        (["vision"], "no PrecisionIncident of policy vision in namespace default\n"),
        (["[/odd]"], "no PrecisionIncident of policy [/odd] in namespace default\n"),
        (["-n", "elsewhere"], "no PrecisionIncident in namespace elsewhere\n"),
        (["-A"], "no PrecisionIncident in any namespace\n"),
    ],
)
def test_where_there_is_none_it_says_so(cli: Cli, words: list[str], said: str) -> None:
    assert cli("incident", "list", *words) == said
    assert cli.json("incident", "list", *words) == []


def test_those_of_all_namespaces_are_listed_with_theirs(cli: Cli) -> None:
    incident(cli, "old", namespace="a", decidedAt=format_time(NOW - 60) or "")
    incident(cli, "new", namespace="b", decidedAt=format_time(NOW) or "")
    head, *rows = cli("incident", "list", "-A").splitlines()
    assert [row.split()[:2] for row in (head, *rows)] == [["NAMESPACE", "NAME"], ["b", "new"], ["a", "old"]]
    assert [row["namespace"] for row in cli.json("incident", "list", "-A", "fleet")] == ["b", "a"]


def test_the_namespace_may_stand_before_its_verb(cli: Cli) -> None:
    assert cli("incident", "-n", "elsewhere", "list") == "no PrecisionIncident in namespace elsewhere\n"


def test_one_that_is_not_there_is_answered_with_the_newest_and_how_to_see_all(cli: Cli) -> None:
    incident(cli, "fleet-5")
    said = cli("incident", "show", "fleet-6", code=1)
    assert "no PrecisionIncident fleet-6 in namespace default; the newest are fleet-5; see all: " in said
    assert "`kubectl precision incident list -n default`" in said


def test_one_that_is_asked_for_where_there_is_none_names_no_line_that_shows_nothing(cli: Cli) -> None:
    said = cli("incident", "show", "fleet-6", code=1)
    assert "no PrecisionIncident fleet-6 in namespace default; there is none; or choose another namespace" in said
