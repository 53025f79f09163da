"""What redaction masks, and what it alters wrongly: the corpus of secrets and look-alikes, and the figures."""

import random
import re
import string
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_operator.api.redaction import redact

KEYS = ("secrets", "masked", "look_alikes", "false_positives")
CASES, MASKED_SHARE, ALTERED_SHARE, GROWTH = 120, 0.95, 0.02, 8.0
"""The bounds. ``GROWTH``: the CPU time of four times a text, as a multiple; sixteen where work is quadratic."""
SHORT_CHARACTERS, LONG_CHARACTERS = 16_000, 64_000
_LEAST_SECONDS = 0.0025
"""Less than this tells nothing of how work grows: it counts as this much."""
_TRIES = 3

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
    *(
        "%",
        "%25",
        "%3A",
        "a%3D",
        "token%3Da",
        "password%3D",
        "password%3D%",
        "%22password%22%3A%22",
        "%3A%2F%2F",
        "%3A%2F%2Fa%3A",
        "%3A%2F%2Fa%3Ab",
        "auth: 'aaaa",
    ),
    *(
        "wandb login ",
        "wandb login a-",
        " wandb login -",
        "sshpass -p",
        "sshpass -p'",
        "curl -ua",
        "curl -u",
        "-u a",
        '-u", "',
        "jdbc:oracle:thin:a/",
        ".dockercfg:",
        "Cookie: a",
        "cookie=a",
    ),
)
"""What a hostile text repeats: parts of everything that a pattern looks for."""
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


def measure(directory: Path) -> Mapping[str, object]:
    """The part's figures: secrets, masked, look_alikes, false_positives, growth."""
    return {**counted(seed=1), "growth": round(max(map(_growth, REPEATED)), 2)}


def missed(found: Mapping[str, object] | Sequence[Mapping[str, object]]) -> list[str]:
    """The bounds that the figures miss."""
    figures = found if isinstance(found, Mapping) else found[0]
    secrets, masked, alike, altered = (int(str(figures[key])) for key in KEYS)
    wrong = []
    if min(secrets, alike) < CASES:
        wrong.append(f"expected at least {CASES} secrets and look-alikes each, found {secrets} and {alike}")
    if masked < MASKED_SHARE * secrets:
        wrong.append(f"expected at least {MASKED_SHARE:.0%} of the secrets masked, found {masked} of {secrets}")
    if altered > ALTERED_SHARE * alike:
        wrong.append(f"expected at most {ALTERED_SHARE:.0%} of the look-alikes altered, found {altered} of {alike}")
    if not float(str(figures["growth"])) <= GROWTH:
        wrong.append(f"expected four times a text to take at most {GROWTH:g} times the CPU, found {figures['growth']}")
    return wrong


def counted(*, seed: int) -> dict[str, int]:
    """The same for the values that a seed makes."""
    secrets, look_alikes = cases("secrets", seed=seed), cases("look_alikes", seed=seed)
    return {
        "secrets": len(secrets),
        "masked": sum(case.masked for case in secrets),
        "look_alikes": len(look_alikes),
        "false_positives": sum(case.altered for case in look_alikes),
    }


def repeated(fragment: str, characters: int) -> str:
    """A text of that length of nothing else."""
    return (fragment * (characters // len(fragment) + 1))[:characters]


def _growth(fragment: str) -> float:
    short, long = (_cpu_seconds(repeated(fragment, size)) for size in (SHORT_CHARACTERS, LONG_CHARACTERS))
    return long / max(short, _LEAST_SECONDS)


def _cpu_seconds(text: str) -> float:
    """The best of some tries."""
    spent = []
    for _ in range(_TRIES):
        began = time.process_time()
        redact(text, len(text))
        spent.append(time.process_time() - began)
    return min(spent)


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
