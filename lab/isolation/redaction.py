"""What redaction masks, and what it alters wrongly: the corpus of secrets and look-alikes, and the figures."""

import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_operator.api.redaction import redact

CORPUS = Path(__file__).parent / "corpus"
_ALPHABETS = {
    "hex": "0123456789abcdef",
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_lowercase,
    "UPPER": string.ascii_uppercase + string.digits,
    "digits": string.digits,
    "b64": string.ascii_letters + string.digits + "+/",
    "b64url": string.ascii_letters + string.digits + "-_",
}
_MADE = re.compile(r"(?P<alphabet>\w+):(?P<length>\d+)")
_MARKED = re.compile("⟦([^⟧]*)⟧")
_LEFT = 8
"""So many characters of a credential in a row may not be left."""


@dataclass(frozen=True, slots=True)
class Case:
    """One text of the corpus."""

    name: str
    text: str
    secret: str
    """What must not be left of it; empty for a look-alike."""

    @property
    def masked(self) -> bool:
        """No part of the secret is left that is worth anything."""
        left, size = redact(self.text), min(_LEFT, len(self.secret))
        return not any(self.secret[at : at + size] in left for at in range(len(self.secret) - size + 1))

    @property
    def altered(self) -> bool:
        """The text is not the same after it."""
        return redact(self.text) != self.text


def cases(name: str, *, seed: int) -> Sequence[Case]:
    """The cases of ``secrets`` or ``look_alikes``; ``seed`` makes the values."""
    source = random.Random(f"{name} {seed}")  # noqa: S311, RUF100  no secret is made here
    lines = (CORPUS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return [_case(line, source) for line in lines if line and not line.startswith("#")]


def measure(*, seed: int = 1) -> dict[str, int]:
    """The figures of ``build/isolation.json``: secrets, masked, look_alikes, false_positives."""
    secrets, look_alikes = cases("secrets", seed=seed), cases("look_alikes", seed=seed)
    return {
        "secrets": len(secrets),
        "masked": sum(case.masked for case in secrets),
        "look_alikes": len(look_alikes),
        "false_positives": sum(case.altered for case in look_alikes),
    }


def _case(line: str, source: random.Random) -> Case:
    name, _, template = line.partition("  ")
    made: list[str] = []

    def make(found: re.Match[str]) -> str:
        made.append("".join(_piece(piece, source) for piece in found[1].split("|")))
        return made[-1]

    text = _MARKED.sub(make, template.strip().replace("␤", "\n"))
    return Case(name, text, made[0] if made else "")


def _piece(piece: str, source: random.Random) -> str:
    rule = _MADE.fullmatch(piece)
    if rule is None or rule["alphabet"] not in _ALPHABETS:
        return piece
    return "".join(source.choices(_ALPHABETS[rule["alphabet"]], k=int(rule["length"])))
