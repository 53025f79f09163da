"""Text as a hostile tenant writes it: as long and as deeply nested as the API server takes it, and bait for what reads it.

``corpus`` has every text once, by name. A text is what stands in one annotation, label of a series, environment variable
or log line. What the API server itself refuses (a label of 64 characters) is not among them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

ANNOTATION_BYTES = 262_144
"""All annotations of one object together, keys included."""

_LENGTH = 200_000
"""Of one text: leaves room for the annotations beside it."""

QUERY_CHARACTERS = 4096
"""Of the PromQL in a policy: the schema takes no more."""

_CONTROLS = "".join(map(chr, (*range(0x01, 0x20), *range(0x7F, 0xA0))))
_DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c"
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u180e\u034f\ufe0f\u2028\u2029"


def _repeated(unit: str) -> str:
    return unit * (_LENGTH // len(unit.encode(errors="surrogatepass")))


def _request(generation: str, mode: str = '"fp16"') -> str:
    return f'{{"generation":{generation},"mode":{mode}}}'


def corpus() -> Mapping[str, str]:
    """Every text, by its name."""
    return {**_nested(), **_numbers(), **_characters(), **_bait()}


def stored(text: str) -> str:
    """The text as the API server would store it: it takes no lone surrogates and no NUL."""
    return text.encode(errors="replace").decode()


def cut(text: str, size_bytes: int) -> str:
    """Its beginning, in at most so many bytes."""
    return text.encode()[:size_bytes].decode(errors="ignore")


def keys(count: int) -> Mapping[str, str]:
    """Many annotations, or labels."""
    return {f"k{number}": str(number) for number in range(count)}


def _nested() -> dict[str, str]:
    return {
        "arrays that do not end": "[" * 100_000,
        "arrays that end": "[" * 90_000 + "]" * 90_000,
        "arrays below the parser's limit": "[" * 900 + "]" * 900,
        "objects that do not end": '{"a":' * 40_000,
        "objects that end": '{"a":' * 30_000 + "1" + "}" * 30_000,
        "10,000 keys": json.dumps({f"k{number}": number for number in range(10_000)}),
        "one key 10,000 times": "{" + ",".join('"generation":1' for _ in range(10_000)) + "}",
        "a nested mode": _request("7", "[" * 500 + "]" * 500),
        "a nested suspension": '{"spec":{"suspend":' + "[" * 50_000 + "]" * 50_000 + "}}",
        "objects that look like a trainer's event": '2026-11-23T00:00:00Z {"event":' + "[" * 50_000,
    }


def _numbers() -> dict[str, str]:
    huge = "1" * 5_000
    return {
        "a huge integer": _repeated("9"),
        "a huge integer behind a sign": "-" + _repeated("9"),
        "a huge fraction": "0." + _repeated("3"),
        "a request of a huge generation": _request(huge),
        "a request of 2^49": _request(str(2**49)),
        "a request beyond 2^49": _request(str(2**49 + 1)),
        "a request of a negative generation": _request("-1"),
        "a request of 1e400": _request("1e400"),
        "a request of NaN": _request("NaN"),
        "a request of Infinity": _request("-Infinity"),
        "a request of a fraction": _request("7.5"),
        "a record of a huge generation": f"fleet/{huge}/fp16",
        "a record of 2^49": f"fleet/{2**49}/fp16",
        "ten thousand records": " ".join(f"fleet-{number}/{number}/fp16" for number in range(10_000)),
        "a command with a huge transition": f"{huge}: done",
        "indexes without an end": _repeated("1-2,"),
        "one range of huge indexes": f"{huge}-{huge}",
        "digits of another script": _repeated("٣"),
        "digits that are no decimals": _repeated("²"),
        "underscores between digits": _repeated("1_"),
        "durations without an end": _repeated("1s"),
        "one huge duration": f"{_repeated('9')}h",
        "one exponent": "1e999999999",
        "not a number": "NaN",
    }


def _characters() -> dict[str, str]:
    return {
        "control characters": _repeated(_CONTROLS),
        "escape sequences of a terminal": _repeated("\x1b[2J\x1b]0;owned\x07\x9b31m"),
        "directions": _repeated(f"{_DIRECTIONS}abc"),
        "invisible characters": _repeated(f"{_INVISIBLE}abc"),
        "marks on marks": "a" + _repeated("\u0301"),
        "lone surrogates": "\ud800\udfff" * 1_000,
        "a lone surrogate in JSON": '{"mode":"\\ud800","generation":7,"event":"\\udc00"}',
        "characters beyond the first plane": _repeated("\U0001f4a9"),
        "blanks": _repeated(" "),
        "blanks and line ends": _repeated("\t\r\n \u00a0\u2003"),
        "line ends": _repeated("\n"),
        "a reason of blanks": "7:" + _repeated(" ") + "x",
        "a long reason": "7: " + _repeated("because "),
        "capitals that grow": _repeated("ﬃİ"),
    }


def _bait() -> dict[str, str]:
    return {
        "user info without an end": "https://" + _repeated("a:"),
        "schemes": _repeated("a://"),
        "word characters before a scheme": _repeated("a"),
        "bearers": _repeated("bearer "),
        "a bearer without an end": "bearer " + _repeated("a"),
        "keywords": _repeated("password"),
        "keywords with a sign": _repeated("api_key="),
        "keywords and blanks": _repeated("secret   "),
        "heads of tokens": _repeated("eyJ"),
        "a head of a token without an end": "eyJ" + _repeated("a"),
        "tokens without a last part": _repeated("eyJaaaaaaaa.aaaaaaaa "),
        "paths of dots": _repeated("/./"),
        "paths of dots to etc": _repeated("/.") + "/etc/./precision",
        "paths that go up": _repeated("../"),
        "dashes": _repeated("-"),
        "the name of a pod without an end": _repeated("-0"),
        "slashes": _repeated("/"),
        "quotes": _repeated('"\\'),
        "colons": _repeated(":"),
        "spellings of true": _repeated("true"),
        "markup": _repeated("[bold red](http://x)<b>`|*_"),
        "format strings": _repeated("%s{0}$(X)${y}"),
        "variables": _repeated("$("),
        "keys of a pointer": _repeated("~0~1/"),
    }


def queries() -> Mapping[str, str]:
    """PromQL that its parser is slow to read, beside the corpus: it is only read as a query."""
    signs = ("/", "^", "%", "*", "+", "-", "<", "==", " and ", " or ", " atan2 ")
    joined = {f"operands joined by {sign.strip()}": _most(f"x{sign}") + "x" for sign in signs}
    regexes = {
        "a class repeated": r"\\w{200}",
        "a repetition too large": r"\\w{400}",
        "classes without an end": r"\\w" * 1200,
        "any character without an end": "." * 4000,
        "repetitions of repetitions": "(((a{9}){9}){9}){9}",
        "alternatives without an end": "a|" * 2000,
        "every case of every character": "(?i:[a-\U0001f4a9])" * 200,
    }
    return {
        **joined,
        **{f"a selector by {name}": f'x{{a=~"{regex}"}}' for name, regex in regexes.items()},
        **{
            f"selectors by {n}": "x{" + _most(f'a!~"{regex}",') + "}" for n, regex in regexes.items() if len(regex) < 40
        },
        "brackets around a selector": "(" * 2000 + "x" + ")" * 2000,
        "signs before a selector": "-" * (QUERY_CHARACTERS - 1) + "x",
        "calls of calls": "abs(" * 800 + "x" + ")" * 800,
        "subqueries of subqueries": "max_over_time(" * 150 + "x" + "[1h:1m])" * 150,
        "matchers without an end": "x{" + _most('a="b",') + "}",
        "labels without an end": "sum by (" + "a," * 2000 + "a) (x)",
    }


def _most(unit: str) -> str:
    """As many as a query holds."""
    return unit * ((QUERY_CHARACTERS - 3) // len(unit))
