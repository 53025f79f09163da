"""Redaction: what is masked, what is left alone, and that no text can make it slow."""

import sys
from types import FrameType

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lab.isolation.redaction import CORPUS, REPEATED, Case, cases, counted, missed, repeated
from precision_operator.api import redaction
from precision_operator.api.credentials import TOKENS
from precision_operator.api.redaction import TEXT_CHARACTERS, redact

SECRETS, LOOK_ALIKES = cases("secrets", seed=1), cases("look_alikes", seed=1)


@pytest.mark.parametrize("case", SECRETS, ids=[case.name for case in SECRETS])
def test_a_credential_is_masked(case: Case) -> None:
    assert case.secret
    assert case.masked, redact(case.text)


@pytest.mark.parametrize("case", LOOK_ALIKES, ids=[case.name for case in LOOK_ALIKES])
def test_what_only_looks_like_a_credential_is_left_alone(case: Case) -> None:
    assert redact(case.text) == case.text


@pytest.mark.parametrize("seed", range(2, 12))
def test_the_share_that_is_masked_does_not_depend_on_the_values(seed: int) -> None:
    assert missed({**counted(seed=seed), "growth": 1.0}) == []


def test_each_bound_that_is_missed_is_said() -> None:
    found = {"secrets": 119, "masked": 113, "look_alikes": 119, "false_positives": 3, "growth": 8.1}
    assert len(missed(found)) == 4
    assert missed({"secrets": 120, "masked": 114, "look_alikes": 120, "false_positives": 2, "growth": 8.0}) == []


@pytest.mark.parametrize("name", ["secrets", "look_alikes"])
def test_no_complete_token_stands_in_the_corpus_itself(name: str) -> None:
    assert TOKENS.findall((CORPUS / f"{name}.txt").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("case", [*SECRETS, *LOOK_ALIKES], ids=lambda case: case.name)
def test_masking_twice_is_masking_once(case: Case) -> None:
    assert redact(redact(case.text)) == redact(case.text)


@example(["wandb login " + "0b50e69c21" * 4, "built from commit " + "0b50e69c21" * 4])
@example(["wandb login --host ***", "0b50e69c21" * 4])
@example(["wandb login abc-ghp_" + "a1B2c3" * 6, "0b50e69c21" * 4])
@example(["redis-cli -a", "redis-cli -a", "aws_access_key_id = AKIAWECBC0CNO31YJ57N"])
@given(
    st.lists(st.sampled_from([*(c.text for c in (*SECRETS, *LOOK_ALIKES)), *REPEATED, "***", " ", "\n"]), max_size=6)
)
def test_masking_twice_is_masking_once_in_any_mixture(parts: list[str]) -> None:
    once = redact(" ".join(parts))
    assert redact(once) == once


PIECES = (
    *("name: API_TOKEN ", "name:", "value: ", "password=", "-password ", "token: ", "Bearer ", "secret"),
    *("?key=", "&code=", "%3D", "%22", "a" * 20, "a" * 80, "b2" * 9, "9", "***"),
    *("/", "<", "?", "&", "=", ":", ",", '"', "'", "-", " ", "\n"),
)


@example(f"?key={'a' * 17}</?key={'a' * 74}<9")
@example("-password secret password=9")
@example("name: DB_PASSWORD value: name: API_TOKEN value: abc123def")
@settings(max_examples=50)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
def test_masking_twice_is_masking_once_whatever_names_and_values_touch(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("before", ["--password secret", "password: secret", "password = private"])
def test_a_credential_is_masked_behind_a_value_that_could_begin_its_name(before: str) -> None:
    assert "hunter2" not in redact(f"{before} password=hunter2")


def test_a_credential_is_masked_behind_an_entry_without_a_value() -> None:
    assert "abc123def" not in redact("name: DB_PASSWORD value: name: API_TOKEN value: abc123def")


def test_a_digit_behind_a_value_makes_it_no_key() -> None:
    text = f"https://h/?key={'a' * 20}</a>9"
    assert redact(text) == text


def test_a_credential_within_a_long_text_is_masked() -> None:
    for case in SECRETS:
        if "\n" not in case.text:
            assert Case(case.name, f"{'step 1 of 9; ' * 200}\n{case.text}\n{'loss 0.5 ' * 200}", case.secret).masked, (
                case.name
            )


def test_a_text_that_is_too_long_is_cut_before_a_word_that_may_be_half_a_credential() -> None:
    text = f"{'word ' * 3276}ghp_{'a1' * 18}"
    shown = redact(text)
    assert len(shown) <= TEXT_CHARACTERS
    assert shown.endswith("word…")


def test_a_text_without_spaces_is_cut_too() -> None:
    assert len(redact("é" * 10**6)) < TEXT_CHARACTERS


@pytest.mark.parametrize("fragment", REPEATED)
def test_the_work_grows_linearly_with_the_text(fragment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted are calls, and the characters that are read as values; `make isolation` compares the CPU time of both."""
    short, long = (_work(repeated(fragment, characters), monkeypatch) for characters in (1_000, 8_000))
    assert long <= 10 * short + 100, "eight times the text must not take sixty-four times the work"


def _work(text: str, monkeypatch: pytest.MonkeyPatch) -> int:
    work = 0
    value = redaction._value

    def read(text: str, at: int, *, header: bool) -> tuple[int, int, bool]:
        nonlocal work
        found = value(text, at, header=header)
        work += found[1] - at
        return found

    def called(frame: FrameType, event: str, _: object) -> None:
        nonlocal work
        work += event in ("call", "c_call")

    with monkeypatch.context() as patched:
        patched.setattr(redaction, "_value", read)
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            redact(text, len(text))
        finally:
            sys.setprofile(before)
    return work


@pytest.mark.parametrize("before", ["***", "* ", "--relogin ***@host"])
def test_a_key_is_masked_behind_what_was_masked_before(before: str) -> None:
    key = "0b50e69c21" * 4
    assert key not in redact(f"wandb login {before} {key} and more")
