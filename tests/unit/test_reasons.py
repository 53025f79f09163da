"""The table of reasons: each row is whole, and each is used."""

import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import precision_operator
from precision_operator import reasons
from precision_operator.reasons import Cause, Reason, ReasonSeverity

CODE = Path(precision_operator.__file__).parent
EVENT_REASON_CHARACTERS = 128
"""What the API server takes of an Event's reason."""


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_a_reason_is_one_word_and_its_member_is_named_after_it(reason: Reason) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", reason)
    assert len(reason) <= EVENT_REASON_CHARACTERS
    assert reason.name.replace("_", "").lower() == reason.lower()


@pytest.mark.parametrize("reason", Reason, ids=str)
def test_a_reason_says_what_it_means_and_what_a_person_does_about_it(reason: Reason) -> None:
    assert reason.meaning
    assert bool(reason.steps) or not reason.warns


def test_no_word_stands_for_two_reasons_and_none_is_left_unused() -> None:
    code = "".join(path.read_text() for path in CODE.rglob("*.py"))
    used = set(re.findall(r"\bReason\.([A-Z0-9_]+)\b", code))
    assert used == set(Reason.__members__)
    assert max(Counter(map(str, Reason)).values()) == 1


def test_every_row_is_a_member_under_its_own_name() -> None:
    topics = [import_module(f"{reasons.__name__}.{found.name}") for found in iter_modules(reasons.__path__)]
    found = {name: row for topic in topics for name, row in vars(topic).items() if name.isupper()}
    rows = {name: row for name, row in found.items() if isinstance(row, tuple) and isinstance(row[0], ReasonSeverity)}
    assert rows == {name: (one.severity, one.meaning, *one.steps) for name, one in Reason.__members__.items()}


@pytest.mark.parametrize(
    ("severity", "warns", "stuck"),
    [
        (ReasonSeverity.NORMAL, False, False),
        (ReasonSeverity.WAITING, False, False),
        (ReasonSeverity.DECISION, False, False),
        (ReasonSeverity.ATTENTION, True, False),
        (ReasonSeverity.STUCK, True, True),
    ],
)
def test_what_follows_from_a_reason_follows_from_its_severity(
    severity: ReasonSeverity, warns: bool, stuck: bool
) -> None:
    found = [reason for reason in Reason if reason.severity is severity]
    assert found
    assert {(reason.warns, reason.stuck) for reason in found} == {(warns, stuck)}


def test_a_word_of_another_version_is_no_reason_of_this_one() -> None:
    assert (Reason.known("Soaking"), Reason.known("Weather")) == (Reason.SOAKING, None)


def test_a_cause_is_shown_as_its_reason_and_what_it_is_about() -> None:
    assert str(Cause(Reason.NODE_UNREACHABLE, "node-1")) == "NodeUnreachable: node-1"


def test_a_command_of_the_next_steps_can_be_pasted() -> None:
    of_fleet = {"name": "fleet", "namespace": "team"}
    assert Reason.AWAITING_RETRY.command("retry", **of_fleet) == "kubectl precision retry fleet -n team"
    acknowledge = Reason.AWAITING_PREREQUISITES.command("ack", **of_fleet, missing="fix monitoring")
    assert acknowledge == "kubectl precision ack fleet fix monitoring -n team"


def test_a_command_that_no_step_names_is_an_error() -> None:
    with pytest.raises(LookupError, match="AwaitingRetry: expected a step with `!promote …`"):
        Reason.AWAITING_RETRY.command("promote", name="fleet", namespace="team")


def test_no_decision_asks_a_person_for_an_annotation() -> None:
    messages = "".join(path.read_text() for path in (CODE / "core").rglob("*.py"))
    assert not re.search(r"annotate [a-z{<-]+=|kubectl annotate", messages)
