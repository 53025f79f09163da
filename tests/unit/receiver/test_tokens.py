"""Tokens that may post alerts: two at a time, replaced while the operator runs."""

from pathlib import Path

import pytest

from precision_operator.errors import ConfigurationError
from precision_operator.receiver.tokens import MAX_FILE_BYTES, TokenFile

OLD, NEW = "old-" + "a" * 32, "new-" + "b" * 32


def bearer(token: str) -> list[str]:
    return [f"Bearer {token}"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{OLD}\n")
    return path


def test_two_tokens_are_valid_while_one_replaces_the_other(file: Path) -> None:
    tokens = TokenFile(file)
    tokens.look()
    assert [tokens.allows(bearer(token)) for token in (OLD, NEW)] == [True, False]
    file.write_text(f"{NEW}\n{OLD}\n")
    tokens.look()
    assert [tokens.allows(bearer(token)) for token in (OLD, NEW)] == [True, True]
    file.write_text(NEW)
    tokens.look()
    assert [tokens.allows(bearer(token)) for token in (OLD, NEW)] == [False, True]


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        [OLD],
        [f"Basic {OLD}"],
        [f"Bearer {OLD}x"],
        [f"Bearer {OLD[:-1]}"],
        [f"Bearer {OLD}\n{OLD}"],
        ["Bearer \udcff\udcfe"],
        [f"Bearer {OLD}", f"Bearer {OLD}"],
    ],
)
def test_any_other_header_is_refused(file: Path, headers: list[str]) -> None:
    tokens = TokenFile(file)
    tokens.look()
    assert not tokens.allows(headers)
    assert tokens.allows([f"bearer  {OLD}"])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "short",
        "x" * 2000,
        f"{OLD}\n{NEW}\n{OLD}1",
        f"{OLD}\n" + "\n" * MAX_FILE_BYTES,
        "sp ace" * 8,
        "ü" * 20,
    ],
)
def test_a_file_that_cannot_be_used_makes_every_token_invalid_and_is_not_quoted(file: Path, content: str) -> None:
    tokens = TokenFile(file)
    tokens.look()
    file.write_text(content)
    with pytest.raises(ConfigurationError, match="expected") as refused:
        tokens.look()
    assert not tokens.allows(bearer(OLD))
    assert OLD not in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_file_that_has_gone_makes_every_token_invalid(file: Path) -> None:
    tokens = TokenFile(file)
    tokens.look()
    file.unlink()
    with pytest.raises(ConfigurationError, match="mount the Secret there"):
        tokens.look()
    assert not tokens.allows(bearer(OLD))
