"""docs/contract.md is what both sides meet in: neither may drift from it."""

import re
from itertools import chain, product
from pathlib import Path

from precision_operator import contract
from precision_operator.signals.queries import BUILT_IN
from precision_trainer.errors import EXIT_OK, EXIT_PEER_LOST, EXIT_STOPPED, ConfigError
from precision_trainer.values.config import parse_bool

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contract.md").read_text()
TRAINER = "\n".join(p.read_text() for p in (ROOT / "trainer_image" / "precision_trainer").rglob("*.py"))


def test_every_name_of_the_operator_is_in_the_contract() -> None:
    names = {v for k, v in vars(contract).items() if k.isupper() and isinstance(v, str) and k != "PREFIX"}
    missing = {name for name in names if name not in PAGE}
    assert not missing


def test_the_keys_of_a_request_are_the_same_on_both_sides() -> None:
    for key in (contract.LOSS_SCALE_FACTOR, contract.GROWTH_INTERVAL):
        assert f'"{key}"' in TRAINER
        assert f'`"{key}"' in PAGE


def test_the_exit_codes_that_are_no_failure_are_the_same_on_both_sides() -> None:
    assert {EXIT_OK, EXIT_PEER_LOST, EXIT_STOPPED} == set(contract.NO_FAILURE_EXIT_CODES)
    for code in contract.NO_FAILURE_EXIT_CODES:
        assert f"\n| {code} | " in PAGE


def turns_on(word: str) -> bool:
    """What the trainer makes of it."""
    try:
        return parse_bool(contract.ENABLE_ENV, word) is True
    except ConfigError:
        return False


def test_the_same_words_turn_the_switch_on_for_the_operator_the_trainer_and_the_reader() -> None:
    letters = sorted({letter for word in contract.TRUE_SPELLINGS for letter in word})
    longest = max(map(len, contract.TRUE_SPELLINGS)) + 1
    words = map("".join, chain.from_iterable(product(letters, repeat=length) for length in range(longest)))
    assert {word for word in words if turns_on(word)} == contract.TRUE_SPELLINGS
    for word in contract.TRUE_SPELLINGS:
        assert turns_on(f" {word.title()}\n")
        assert f"`{word}`" in PAGE


def test_every_metric_that_a_query_reads_is_in_the_contract() -> None:
    read = set(re.findall(r"genesis_[a-z0-9_]+", " ".join(BUILT_IN.values())))
    assert read
    assert read <= set(re.findall(r"genesis_[a-z0-9_]+", PAGE))


def test_every_metric_of_the_contract_is_in_the_trainer() -> None:
    promised = set(re.findall(r"`(genesis_[a-z0-9_]+)", PAGE))
    absent = {name for name in promised if name not in TRAINER and name.removesuffix("_total") not in TRAINER}
    assert not absent
