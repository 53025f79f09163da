"""Redaction: what is masked, what is left alone, and that no text can make it slow."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lab.isolation.redaction import CORPUS, Case, cases, counted, missed
from precision_operator.api.credentials import TOKENS
from precision_operator.api.redaction import TEXT_CHARACTERS, redact

SECRETS, LOOK_ALIKES = cases("secrets", seed=1), cases("look_alikes", seed=1)

REPEATED = (
    *(
        "a",
        "a.b-",
        "a-",
        "1a",
        " ",
        "   a",
        "a\n",
        "é",
        "…",
        "\\",
        '"',
        "'",
        '\\"',
        "= ",
        ",",
        "&",
        "@",
        "[",
        "<",
        "(",
        "--",
    ),
    *(
        "://",
        "://a:",
        "x://a:b",
        "x:y@",
        "?key=",
        "&sig=",
        "&token=a",
        "hooks.slack.com/services/",
        "a=",
        "a= ",
        "a,b=",
        "a&b=",
    ),
    *(
        "password=",
        "password: ",
        "password: '",
        'password="\\',
        "password:\n  ",
        "password   ",
        "password=a,",
        "password=a&b",
    ),
    *(
        "<password>",
        "('password', '",
        "--token ",
        "token is ",
        "api ",
        "name: ",
        "name=a\n\n\n",
        "name: a value",
        "key",
    ),
    *(
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN A",
        "eyJaaaaaaaaaaaa-",
        "sk-",
        "hf_",
        "hf_-",
        "xoxb-",
        "glpat-",
        "1//0-",
    ),
    *(
        "AKIA",
        "SG.aaaaaaaaaaaaaaaa.",
        "dp.pt.",
        "abcdef.",
        "a1.b1",
        "s.",
        "M",
        "1",
        "tskey-",
        "bearer ",
        "basic dXNlcjpw",
    ),
    *(
        "-u a ",
        " -u a -p",
        " -u",
        "redis-cli -a",
        " redis-cli ",
        "login a ",
        "login a password ",
        '"username":"a","key":"',
    ),
)


@pytest.mark.parametrize("case", SECRETS, ids=[case.name for case in SECRETS])
def test_a_credential_is_masked(case: Case) -> None:
    assert case.secret
    assert case.masked, redact(case.text)


@pytest.mark.parametrize("case", LOOK_ALIKES, ids=[case.name for case in LOOK_ALIKES])
def test_what_only_looks_like_a_credential_is_left_alone(case: Case) -> None:
    assert redact(case.text) == case.text


@pytest.mark.parametrize("seed", range(2, 12))
def test_the_share_that_is_masked_does_not_depend_on_the_values(seed: int) -> None:
    assert missed(counted(seed=seed)) == []


def test_each_bound_that_is_missed_is_said() -> None:
    found = {"secrets": 119, "masked": 113, "look_alikes": 119, "false_positives": 3}
    assert len(missed(found)) == 3
    assert missed({"secrets": 120, "masked": 114, "look_alikes": 120, "false_positives": 2}) == []


@pytest.mark.parametrize("name", ["secrets", "look_alikes"])
def test_no_complete_token_stands_in_the_corpus_itself(name: str) -> None:
    assert TOKENS.findall((CORPUS / f"{name}.txt").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("case", [*SECRETS, *LOOK_ALIKES], ids=lambda case: case.name)
def test_masking_twice_is_masking_once(case: Case) -> None:
    assert redact(redact(case.text)) == redact(case.text)


@example(["redis-cli -a", "redis-cli -a", "aws_access_key_id = AKIAWECBC0CNO31YJ57N"])
@given(
    st.lists(st.sampled_from([*(c.text for c in (*SECRETS, *LOOK_ALIKES)), *REPEATED, "***", " ", "\n"]), max_size=6)
)
def test_masking_twice_is_masking_once_in_any_mixture(parts: list[str]) -> None:
    once = redact(" ".join(parts))
    assert redact(once) == once


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
def test_the_work_grows_linearly_with_the_text(fragment: str) -> None:
    short, long = (_cpu_seconds(fragment, characters) for characters in (16_000, 64_000))
    assert long < 8 * short + 0.02, "four times the text must not take sixteen times the work"


def _cpu_seconds(fragment: str, characters: int) -> float:
    text = (fragment * (characters // len(fragment) + 1))[:characters]
    spent = []
    for _ in range(3):
        began = time.process_time()
        redact(text, characters)
        spent.append(time.process_time() - began)
    return min(spent)
