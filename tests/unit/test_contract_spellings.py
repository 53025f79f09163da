"""The operator and the trainer agree on what turns FP16 on."""

from __future__ import annotations

import pytest

from precision_operator.contract import TRUE_SPELLINGS
from precision_trainer.errors import ConfigError
from precision_trainer.values.config import parse_bool

WORDS = [
    "true",
    "1",
    "yes",
    "on",
    "y",
    "t",
    "enabled",
    "enable",
    "false",
    "0",
    "no",
    "off",
    "n",
    "f",
    "2",
    "tr",
    "wahr",
]


def accepted(word: str) -> bool:
    """Whether the trainer takes the word for on."""
    try:
        return parse_bool("ENABLE_FP16_TRAINING", word) is True
    except ConfigError:
        return False


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("form", [str.lower, str.upper, " {} ".format])
def test_the_operator_counts_as_on_what_the_trainer_does(word: str, form: object) -> None:
    assert callable(form)
    said = form(word)
    assert (said.strip().lower() in TRUE_SPELLINGS) == accepted(said)


def test_the_list_is_complete() -> None:
    assert accepted("") is False
    assert {word for word in WORDS if accepted(word)} == TRUE_SPELLINGS
