"""What must not leave in a text: credentials that an annotation, a log line or an error quotes. Pure.

Three things are looked for: a block, a URL or a header of a form that carries a credential; a token that is known by its
vendor's prefix; and an assignment whose name says that its value is one. No library does it: docs/redaction.md compares.

Work grows linearly with the text: what repeats is possessive, bounded, or the pattern's end.
"""

import binascii
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote_plus

from precision_operator.api.credentials import BLOCKS, TOKENS, Kind, kind_of

MASK: Final = "***"
TEXT_CHARACTERS = 16_384
"""What is read of a text unless a caller says more: what stands in a status, an Event or a log line is shorter."""
_ENCODED_TIMES = 4
_TAIL = 512
"""What a cut leaves out of a longer word."""

_ASSIGNED = re.compile(
    r"""(?<![\w.])(?P<key>(?:(?i:access|api|private|secret)[ ])?\w[\w.-]{1,80}+)
        (?:(?P<sign>\\{0,3}+["']?\]?[ \t]{0,8}+(?:=>|:=|->|==?|:(?!//)))  # password = x, "password": "x"
        |(?P<pair>["']\s{0,4}+,\s{0,4}+(?=[bru]?["']))  # ('password', 'x')
        |(?P<tag>>(?=[^<\s]))  # <password>x
        |(?P<space>[ \t]{1,8}+(?:(?:is|was)[ ])?(?=[^\s-])))  # --password x
        [ \t]{0,8}+(?P<line>(?:[|>][+-]?[ \t]{0,8}+)?\r?\n[ \t]{1,40}+|\r?\n(?=["']))?""",
    re.ASCII | re.VERBOSE,
)
_NAMED = re.compile(
    r"""\b(?:name|key)\\{0,3}+["']?\s{0,4}+[:=]\s{0,4}+\\{0,3}+["']?(?P<key>\w[\w.-]{1,80}+)\\{0,3}+["']?
        \s{0,40}+,?\s{0,40}+\\{0,3}+["']?(?P<sign>value\\{0,3}+["']?\s{0,4}+[:=])[ \t]{0,4}+""",
    re.ASCII | re.VERBOSE,
)
"""``name: PASSWORD, value: x``: an entry of a container's environment."""
_ENCODED = re.compile(
    r"""(?:(?<![\w.%-])|(?<=%[0-9A-Fa-f][0-9A-Fa-f]))(?P<key>[A-Za-z][\w.-]{1,80}+)(?P<quote>%(?:25){0,3}2[27])?
        (?P<sign>%(?:25){0,3}3[ADad])(?:%(?:25){0,3}20|\+){0,4}(?:%(?:25){0,3}2[27])?""",
    re.ASCII | re.VERBOSE,
)
"""What is assigned within a URL, encoded once or several times: ``password%3Dx``, ``%22password%22%3A%22x%22``."""
_ENCODED_VALUE = re.compile(r"(?:[^\s\"'<>&;,%\\]++|%(?!(?:25){0,3}(?:2[267C]|2c|3[Bb]|7[Dd]|0[ADad])))+", re.ASCII)
_QUOTED = re.compile(r"[bruf]?(?P<quote>\\{0,3}+[\"'])", re.ASCII)
_BARE = re.compile(r"(?:[^\s\"'<>&;,\\]++|[&;,](?!\s|$|[\"']|[\w.-]{1,60}+ ?[=:])|\\(?![\"'n]))+", re.ASCII)
_LINE = re.compile(r"[^\r\n\"'\\]++")
_PLACEHOLDER = re.compile(
    r"[*.x•]+|<.*|\[(?:[A-Z_]*\]|\{).*|\$[({A-Za-z_].*|\{.*|%[(\w].*"
    r"|(?i:none|null|nil|true|false|undefined|unset|redacted|masked|hidden|empty)",
    re.ASCII | re.DOTALL,
)
"""No value, or one that stands for another."""
_LINE_BREAKS = ("\r", "\n")
_PATH = re.compile(r"(?:[~.]{0,2}/|[a-z][a-z0-9]{0,9}:/)[a-z0-9_.@/-]*+", re.ASCII)
_SCHEME = re.compile(r"(?i:bearer|basic|token|digest|negotiate|apikey|key)[ \t]{1,4}+", re.ASCII)
_COOKIE = re.compile(r"[\w.-]{1,128}+=[^\s;,]", re.ASCII)
_BASIC = re.compile(r"\b(?P<scheme>[Bb]asic|BASIC)[ \t]{1,4}+(?P<value>[\w+/-]{8,2048}+={0,2})", re.ASCII)
_BEARER = re.compile(r"\b(?i:bearer)[ \t]{1,4}+(?P<value>[\w.~+/=-]{8,}+)", re.ASCII)


def redact(text: str, characters: int = TEXT_CHARACTERS) -> str:
    """``text`` with what is a credential masked as ``***``; beyond ``characters`` it is cut, which shows as ``…``.

    Applying it twice gives the same as once, so that a text may be masked where it enters and where it leaves.
    """
    text = cut(text, characters)
    for pattern, masked in BLOCKS:
        text = pattern.sub(masked, text)
    text = TOKENS.sub(MASK, text)
    text = _BASIC.sub(lambda found: f"{found['scheme']} {MASK}" if _is_basic(found["value"]) else found[0], text)
    text = _BEARER.sub(lambda found: f"{found[0][:6]} {MASK}" if _is_bearer(found["value"]) else found[0], text)
    text = _masked(text, _encoded_values(text))
    text = _masked(text, _values(text, _NAMED))
    return _masked(text, _values(text, _ASSIGNED))


def cut(text: str, characters: int) -> str:
    """At most so many characters, without the word at the cut: it may be half a credential."""
    if len(text) <= characters:
        return text
    kept = text[: characters - 1]
    if not text[characters - 1].isspace():
        longest = min(_TAIL, characters // 2)
        at = max(kept.rfind(" "), kept.rfind("\n"), len(kept) - longest)
        kept = kept[:at]
    return f"{kept}…"


def _masked(text: str, spans: Iterator[tuple[int, int]]) -> str:
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], MASK]
        done = end
    return "".join((*parts, text[done:])) if parts else text


def _encoded_values(text: str) -> Iterator[tuple[int, int]]:
    """From where to where a credential stands that is encoded for a URL."""
    read = 0
    for found in _ENCODED.finditer(text):
        kind = kind_of(found["key"]) if found.start("key") >= read else None
        written = _ENCODED_VALUE.match(text, found.end()) if kind is not None else None
        if kind is None or written is None:
            continue
        read, value = written.end(), written[0]
        for _ in range(_ENCODED_TIMES):
            value = unquote_plus(value)
        value = _SCHEME.sub("", value, 1)
        if _PLACEHOLDER.fullmatch(value) or _PATH.fullmatch(value):
            continue
        quoted = found["quote"] is not None
        if found["sign"][-1] in "Aa" and not quoted:
            sure = _is_credential_of_colon(value, kind, more=" " if " " in value else "")
        else:
            sure = _is_credential(value, kind, quoted=quoted)
        if sure:
            yield written.span()


def _values(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """From where to where a credential stands behind a name of the pattern."""
    at = read = 0
    while found := pattern.search(text, at):
        if found.start("key") < read:
            at = read  # it stands within a value that was looked at already
            continue
        at = found.end()
        kind = kind_of(found["key"])
        if kind is None:
            continue
        before = text[max(0, found.start("key") - 2) : found.start("key")]
        start, end, quoted = _value(text, at, header=kind is Kind.HEADER)
        read = end
        how = found.groupdict()
        flag = before.endswith("-") and not before[0].isalnum()
        if how.get("tag") and not before.endswith("<"):
            continue
        value = text[start:end]
        if _PLACEHOLDER.fullmatch(value) or _PATH.fullmatch(value):
            continue
        if how.get("space") and not flag:
            sure = kind in (Kind.PASSWORD, Kind.TOKEN) and _is_random(value, surely=kind is Kind.TOKEN)
        elif ((how.get("line") or "").startswith(_LINE_BREAKS) and not quoted) or (
            how.get("pair") and not flag and " " not in value
        ):
            sure = _is_random(value) and not value.endswith(":")
        elif (how.get("sign") or "").endswith(":") and not quoted:
            sure = _is_credential_of_colon(value, kind, more=text[end : end + 1])
        else:
            sure = _is_credential(value, kind, quoted=quoted)
        if sure:
            yield start, end


def _value(text: str, at: int, *, header: bool) -> tuple[int, int, bool]:
    """(start, end, whether it is quoted) of the value that begins here, its quotes left out."""
    quoted = _QUOTED.match(text, at)
    if quoted is not None:
        end = _closed(text, quoted["quote"], quoted.end())
        scheme = _SCHEME.match(text, quoted.end(), end)
        return (scheme.end() if scheme is not None else quoted.end()), end, True
    scheme = _SCHEME.match(text, at)
    start = scheme.end() if scheme is not None else at
    found = (_LINE if header else _BARE).match(text, start)
    if found is None:
        return start, start, False
    return start, start + len(found[0].rstrip(")}],;. ")), False


def _closed(text: str, quote: str, at: int) -> int:
    """Where a quotation ends: at the next quote that is not escaped, else with the text."""
    while (end := text.find(quote, at)) >= 0:
        if len(quote) > 1 or text[end - 1] != "\\" or text[end - 2 : end] == "\\\\":
            return end
        at = end + 1
    return len(text)


def _is_credential(value: str, kind: Kind, *, quoted: bool) -> bool:
    """Whether a value that is assigned to a name of this kind is one."""
    match kind:
        case Kind.PASSWORD:
            return bool(value)
        case Kind.TOKEN:
            word = not quoted and value.isalpha() and len(value) < 12
            return len(value) > 2 and not word and not (value.isdecimal() and len(value) < 9)
        case Kind.HEADER:
            return _is_random(value.partition(" ")[0]) or any(c.isdigit() for c in value) or bool(_COOKIE.match(value))
    return (len(value) >= 12 and _is_random(value)) or (quoted and _is_user_and_password(value))


def _is_credential_of_colon(value: str, kind: Kind, *, more: str) -> bool:
    """The same behind a colon and without quotes: in YAML, where it is a value, and in prose, where it is a word."""
    if kind is Kind.PASSWORD:
        return bool(value) and not (value.isalpha() and more == " ")
    return _is_random(value) if kind is Kind.TOKEN else _is_credential(value, kind, quoted=False)


def _is_random(value: str, *, surely: bool = False) -> bool:
    """No word of a language: letters with digits, or a long stretch in both cases. ``surely``: no object's name either."""
    if len(value) < (16 if surely else 6) or (surely and value == value.lower()):
        return False
    head = value[:256]
    if any(c.isdigit() for c in head):
        return any(c.isalpha() for c in head) or len(head) >= 9
    return len(head) >= 20 and head != head.lower() and head != head.upper() and " " not in head


def _is_bearer(value: str) -> bool:
    return _is_random(value) or len(value) >= 20


def _is_basic(value: str) -> bool:
    """``user:password`` in base64, or cut within it."""
    return b":" in _from_base64(value) or value.endswith("=")


def _is_user_and_password(value: str) -> bool:
    """The same, where it may be any word: it holds nothing but text."""
    user, colon, _ = (found := _from_base64(value)).partition(b":")
    return bool(user and colon) and found.isascii() and found.decode().isprintable()


def _from_base64(value: str) -> bytes:
    """Its whole groups of four; empty where it is no base64."""
    try:
        return binascii.a2b_base64(value[: len(value) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""
