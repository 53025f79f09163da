"""Templates of messages: every kind has one, the admin's take its place, and a bad one is said and not used."""

from __future__ import annotations

import logging
import re
import shlex
from pathlib import Path

import pytest
import yaml

from precision_operator.api.messages import MessageKind
from precision_operator.cli import parser as plugin
from precision_operator.config_file import parse_settings
from precision_operator.errors import ConfigurationError
from precision_operator.incidents.templates import BODY_CHARACTERS, FIELDS, chosen, objection, render
from precision_operator.incidents.wording import Wording, message
from precision_operator.settings import IncidentSettings, MessageTemplate

FULL = {name: f"<{name}>" for name in FIELDS}
PAGE = (Path(__file__).parents[3] / "docs" / "notifications.md").read_text()
RUNBOOKS = (Path(__file__).parents[3] / "docs" / "runbooks.md").read_text()
ANCHORS = {title.lower() for title in re.findall(r"^#+ (\S+)$", RUNBOOKS, re.MULTILINE)}
ABOUT = {"namespace": "team", "policy": "fleet", "incident": "fleet-4"}


@pytest.mark.parametrize("kind", MessageKind)
def test_every_kind_ends_with_a_command_that_the_plugin_takes_and_its_runbook(kind: MessageKind) -> None:
    made = message(kind, ABOUT, Wording(IncidentSettings(runbook_url="https://wiki.example/runbooks")), now=0.0)
    *_, command, link = made.body.splitlines()
    given = shlex.split(command.removeprefix("RUN: kubectl precision "))
    assert command.startswith("RUN: kubectl precision ")
    plugin(given).parse_args(given)
    page, _, anchor = link.removeprefix("RUNBOOK: ").partition("#")
    assert (page, anchor in ANCHORS) == ("https://wiki.example/runbooks", True), anchor


@pytest.mark.parametrize("kind", MessageKind)
def test_every_built_in_template_is_one_that_would_be_taken(kind: MessageKind) -> None:
    subject, body = render(kind, FULL)
    assert "team" not in subject
    assert objection(kind, MessageTemplate(subject.replace("$", "$$"), "")) == ""
    assert subject
    assert "$" not in body


def test_an_own_template_takes_the_place_and_keeps_the_command() -> None:
    own = {"Notice": MessageTemplate("$policy!", "Costs $$5, ${reason}\nSeverity $severity")}
    subject, body = render(MessageKind.NOTICE, {"policy": "fleet", "reason": "$impact", "command": "run it"}, own)
    assert subject == "fleet!"
    assert body == "Costs $5, $impact\nRUN: run it", "no value is a template, and a line of an empty field is left out"
    assert render(MessageKind.ALL_CLEAR, FULL, own) == render(MessageKind.ALL_CLEAR, FULL)


BAD = {
    "a kind that is none": ("Rollback", MessageTemplate(body="x"), "expected one of Notice, "),
    "a field that is none": ("Notice", MessageTemplate(body="$password"), r"body: no such field: \$password"),
    "an attribute": ("Notice", MessageTemplate(subject="${policy.__class__}"), "subject: expected"),
    "a dollar alone": ("Notice", MessageTemplate(body="5 $ a day"), "body: expected"),
    "a book": ("Notice", MessageTemplate(body="x" * 8193), "body: expected at most 8192 characters, found 8193"),
    "a bomb": ("Notice", MessageTemplate(body="$timeline" * 101), "at most 100 dollar signs, found 101"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_template_is_said_and_counted_and_the_built_in_one_is_sent(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    kind, template, words = BAD[case]
    failed: list[str] = []
    with caplog.at_level(logging.ERROR):
        good = chosen({kind: template, "AllClear": MessageTemplate("ok")}, failed.append)
    assert set(good) == {"AllClear"}
    assert failed == ["TemplateInvalid"]
    assert re.search(rf"config\.messageTemplates\.{kind}: .*{words}", caplog.text)


def test_whatever_a_template_is_made_of_the_message_fits_and_keeps_its_end() -> None:
    own = {"Notice": MessageTemplate("$timeline", "\n".join(["$timeline $impact $status"] * 33))}
    subject, body = render(MessageKind.NOTICE, {**dict.fromkeys(FIELDS, "x" * 10**5), "command": "run it"}, own)
    assert len(subject) <= 512
    assert len(body) <= BODY_CHARACTERS
    assert "\nRUN: run it\nRUNBOOK: xxx" in body


def test_the_page_lists_every_kind_and_every_field_as_they_are() -> None:
    for kind in MessageKind:
        assert f"| `{kind}` | {kind.meaning} | {kind.tone} |" in PAGE
    for name, meaning in FIELDS.items():
        assert f"| `{name}` | {meaning} |" in PAGE


def test_the_templates_of_the_page_are_taken() -> None:
    (found,) = re.findall(r"^config:\n  messageTemplates:\n.*?(?=^```)", PAGE, re.DOTALL | re.MULTILINE)
    settings = parse_settings(yaml.safe_load(found)["config"], environment={})
    assert len(settings.message_templates) == 2
    failed: list[str] = []
    assert chosen(settings.message_templates, failed.append) == settings.message_templates


def test_templates_stand_in_the_settings() -> None:
    raw = {"messageTemplates": {"Notice": {"subject": "$policy"}}}
    assert parse_settings(raw, environment={}).message_templates["Notice"] == MessageTemplate("$policy")
    with pytest.raises(ConfigurationError, match="messageTemplates"):
        parse_settings({"messageTemplates": {"Notice": {"html": "x"}}}, environment={})
