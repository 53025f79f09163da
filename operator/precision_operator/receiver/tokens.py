"""The bearer tokens that may post alerts, from a file that is read again: a token is replaced without a restart."""

import re
from collections.abc import Sequence
from hmac import compare_digest
from pathlib import Path

from precision_operator.errors import ConfigurationError

MAX_TOKENS = 2
"""Valid at once: the one in use, and the one that replaces it."""
MIN_CHARACTERS = 16
MAX_CHARACTERS = 1024
MAX_FILE_BYTES = 4096

_TOKEN = re.compile(rb"[A-Za-z0-9._~+/-]+=*")
"""What RFC 6750 lets a bearer token be made of."""


def parse_tokens(raw: bytes) -> tuple[bytes, ...]:
    """The tokens of a file, one a line; blank lines do not count.

    Raises:
        ConfigurationError: none, too many, or one that is no token. The message never quotes it.
    """
    found = tuple(line for line in map(bytes.strip, raw.splitlines()) if line)
    if not 1 <= len(found) <= MAX_TOKENS or len(raw) > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"expected 1 or {MAX_TOKENS} tokens, one a line, found {len(found)}; remove tokens that are no longer used"
        )
    if not all(MIN_CHARACTERS <= len(token) <= MAX_CHARACTERS and _TOKEN.fullmatch(token) for token in found):
        raise ConfigurationError(
            f"expected tokens of {MIN_CHARACTERS} to {MAX_CHARACTERS} letters, digits and -._~+/=, found another; "
            "make one with `openssl rand -hex 32`"
        )
    return found


class TokenFile:
    """The tokens that are valid now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: tuple[bytes, ...] = ()

    def look(self) -> None:
        """Read the file. Where it cannot be used, no token is valid any more: one that was taken back must not live on.

        Raises:
            ConfigurationError: it is absent, or does not hold what is expected.
        """
        self._tokens = ()
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: expected a file with a token, found: {error.strerror}; mount the Secret there"
            ) from error
        try:
            self._tokens = parse_tokens(raw)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._path}: {error}") from error

    def allows(self, authorization: Sequence[str]) -> bool:
        """Whether a request with these ``Authorization`` headers carries a valid token; several headers never do."""
        if len(authorization) != 1:
            return False
        scheme, _, given = authorization[0].partition(" ")
        candidate = given.strip().encode(errors="surrogateescape")
        # All are compared, each in constant time: how long it takes says nothing about them.
        matches = [compare_digest(candidate, token) for token in self._tokens]
        return scheme.lower() == "bearer" and any(matches)
