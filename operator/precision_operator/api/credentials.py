"""How credentials look: blocks and URLs, the prefixes that vendors give their tokens, and names whose values are secret."""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

_KEY_OF_WANDB = re.compile(r"(?<=[ \t])(?=[A-Za-z_-]{0,99}\d)[\w-]{30,}+", re.ASCII)

BLOCKS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = (
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)"
            r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
        ),
        "***",
    ),
    # The user info of a URL: a password, or a user without one that is no name.
    (re.compile(r"(://)[^\s/@:\"'<>]{0,200}+:(?!\d{1,5}(?:/|$))[^\s\"'<>]{0,500}@"), r"\1***@"),
    (re.compile(r"(://)(?=[^@]{0,200}\d)[\w.~%+-]{20,200}+@", re.ASCII), r"\1***@"),
    (re.compile(r"\b(hooks\.slack\.com/(?:services|workflows|triggers)/)[\w/-]{8,}+", re.ASCII), r"\1***"),
    (re.compile(r"\b(discord(?:app)?\.com/api/webhooks/)[\w/-]{8,}+", re.ASCII), r"\1***"),
    (re.compile(r"\b((?:webhook|outlook)\.office(?:365)?\.com/webhook[a-z0-9]{0,4}/)[\w@/-]{8,}+", re.ASCII), r"\1***"),
    # Commands that take a password without naming it.
    (
        re.compile(r"\b((?i:requirepass|masterauth|identified by)[ \t]{1,4}+[\"']?)[^\s\"'*][^\s\"']*+"),
        r"\1***",
    ),
    (
        re.compile(
            r"\b(sshpass[\"']?+,?+[ \t]{1,4}+[\"']?+-p[\"']?+,?+[ \t]{0,4}+)"
            r"(?:\"[^\"*][^\"]*+|'[^'*][^']*+|[^\s\"'*][^\s\"']*+)"
        ),
        r"\1***",
    ),
    (
        re.compile(r"\bwandb[ \t]{1,4}+login(?:[ \t]{1,4}+[^\s]++){1,7}"),
        # All of its words that look like one: which is the key, and which was masked before, cannot be told.
        lambda found: _KEY_OF_WANDB.sub("***", found[0]),
    ),
    (re.compile(r"([ \t]-u[ \t=]{0,2}[^\s]{1,64}+[ \t]{1,4}+-p[ \t=]{0,2})[^\s*][^\s]*+"), r"\1***"),
    (re.compile(r"\b(redis-cli\b(?:(?![ \t]-a[ \t]{1,4}+\*)[^\r\n]){0,80}?[ \t]-a[ \t]{1,4}+)[^\s*][^\s]*+"), r"\1***"),
    (re.compile(r"([?&](?:key|code)=)(?=[\w%+/.~-]{0,99}\d)[\w%+/.~-]{16,}+", re.ASCII), r"\1***"),
    (re.compile(r"(\"username\":\s?\"[^\"]{1,100}+\",\s?\"key\":\s?\")[^\"*]{8,}+"), r"\1***"),
    (re.compile(r"\b(login[ \t]{1,4}+[^\s]{1,100}+[ \t]{1,4}+password[ \t]{1,4}+)[^\s*][^\s]*+"), r"\1***"),
    (
        re.compile(
            r"(?<![\w-])((?:-[A-Za-z]{0,6}u|--user|--proxy-user)(?:[ =]{1,4}+[\"']?|[\"'],[ ]{0,4}+[\"'])"
            r"(?!\d{1,9}:\d)[^\s:\"'/]{1,100}+:)[^\s\"'*/][^\s\"']*+"
        ),
        r"\1***",
    ),
    (re.compile(r"(\bcurl[ \t]{1,4}+-[A-Za-z]{0,6}u[\"']?[^\s:\"'/=]{1,100}+:)[^\s\"'*/][^\s\"']*+"), r"\1***"),
    (re.compile(r"\b(jdbc:oracle:\w{2,5}+:[\w.$-]{1,60}+/)[^\s@\"'*]{1,200}+@", re.ASCII), r"\1***@"),
    # A URL that is written within another.
    (
        re.compile(
            r"((?i:%3A%2F%2F)[\w.~+-]{0,200}+(?i:%3A))(?:[\w.~+!-]|%(?!40|2[Ff])[0-9A-Fa-f]{2}){1,200}(?=%40)",
            re.ASCII,
        ),
        r"\1***",
    ),
    (
        re.compile(r"(\.docker(?:configjson|cfg)[\"']?[ \t]{0,4}+:[ \t]{0,4}+[\"']?)[\w+/-]{16,}+={0,2}", re.ASCII),
        r"\1***",
    ),
)
"""(pattern, what stands for it)."""

_PREFIXED = (
    r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    r"(?:gh[oprsu]|gho)_[A-Za-z0-9]{30,}+",
    r"github_pat_\w{22,}+",
    r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat|oas|ffct)-[\w.-]{20,}+",
    r"GR1348941[\w-]{20,}+",
    r"xox[a-z](?:\.xox[a-z])?-(?=[\w-]{0,99}\d)[\w-]{10,}+",
    r"xapp-\d-[\w-]{10,}+",
    r"(?:sk|rk|pk)_(?:live|test|prod)_\w{10,}+",
    r"whsec_[\w+/=]{16,}+",
    r"sk-(?=[\w-]{0,199}\d)[\w-]{20,}+",
    r"AIza[\w-]{35}",
    r"ya29\.[\w-]{20,}+",
    r"GOCSPX-[\w-]{20,}+",
    r"1//0[\w-]{20,}+",
    r"(?:npm|wandb_v1|dckr_[op]at|lin_api|lin_oauth|r8|gsk|pcsk|sbp|sbs|figd|pscale_(?:tkn|oauth|pw)|api_org|hf|rnd|fio|ntn"
    r"|patch|rubygems|dapi|dose|do[opr]_v1|shp(?:at|ca|pa|ss)|sntry[su]|glsa|CFPAT|FlyV1|fm[12][ar]?)_"
    r"(?=[A-Za-z_+/=-]{0,199}\d)[\w+/=-]{20,}+",
    r"(?:glc|sntrys|sntryu)_eyJ[\w+/=-]{10,}+",
    r"pypi-(?=[A-Za-z_-]{0,199}\d|Ag)[\w-]{16,}+",
    r"dapi[0-9a-f]{32}",
    r"SG\.[\w-]{16,32}\.[\w-]{16,64}",
    r"key-[0-9a-f]{32}(?![0-9a-f])",
    r"[0-9a-f]{32}-us\d{1,2}(?!\w)",
    r"(?:SK|AC)[0-9a-f]{32}(?!\w)",
    r"hv[bsr]\.[\w-]{20,}+",
    r"s\.(?=[A-Za-z]{0,23}\d)[A-Za-z0-9]{24}(?!\w)",
    r"NRAK-[A-Z0-9]{20,}+",
    r"sq0[a-z]{3}-[\w-]{22,}+",
    r"EAAC[A-Za-z0-9]{40,}+",
    r"AKC[A-Za-z0-9]{10,}+(?<=[A-Za-z0-9]{40})",
    r"nvapi-[\w-]{20,}+",
    r"ATATT3[\w=-]{20,}+|ATBB[A-Za-z0-9]{24,}+|ATCTT3[\w=-]{20,}+",
    r"tskey-[a-z]{2,12}-[\w-]{10,}+",
    r"AGE-SECRET-KEY-1[A-Z0-9]{50,}+",
    r"HRKU-[\w-]{30,}+",
    r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}+",
    r"dp\.(?:pt|st|ct|scim|audit|sa)\.[\w.]{20,}+",
    r"amzn\.mws\.[0-9a-f-]{36}",
    r"[\w~-]{3}\dQ~[\w.~-]{31,40}",
    r"[MNO][\w-]{23,28}\.[\w-]{6}\.[\w-]{27,}+",
    r"(?:bot)?\d{8,10}:AA[\w-]{30,}+",
    r"(?=[a-z]{0,5}\d)[a-z0-9]{6}\.(?=[a-z]{0,15}\d)[a-z0-9]{16}(?![\w.-])",  # a bootstrap token of kubeadm
    r"eyJ[\w-]{10,2000}+\.[\w-]{10,}+(?:\.[\w-]*+)?",  # a JSON Web Token
)
TOKENS: Final = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})", re.ASCII)
"""Tokens that are known by their beginning, wherever they stand."""


class Kind(StrEnum):
    """How much a name says of its value."""

    PASSWORD = "Password"  # noqa: S105, RUF100  a kind
    """The value is a credential whatever it looks like, unless it is a word within a sentence."""
    TOKEN = "Token"  # noqa: S105, RUF100  a kind
    """It is one where it is assigned; behind a colon it must look like one, for YAML and prose speak of tokens too."""
    HEADER = "Header"
    """The rest of the line is one."""
    WEAK = "Weak"
    """It is one only where it looks like one."""


_PASSWORDS = (
    *("password", "passwd", "passphrase", "passcode", "pwd"),
    *(
        f"{of}pass"
        for of in ("admin", "auth", "db", "ftp", "http", "key", "ldap", "mail", "mongo", "mq", "my", "mysql")
    ),
    *(f"{of}pass" for of in ("pg", "postgres", "proxy", "redis", "root", "smtp", "sql", "ssh", "store", "user")),
)
_PASSES = frozenset({"backward", "bwd", "forward", "full", "fwd", "multi", "one", "second", "single", "three", "two"})
"""``forward_pass``: of a training step."""
_HEADERS = frozenset({"authorization", "cookie"})
_KEYS_OF = frozenset(
    [
        *(
            "api",
            "app",
            "access",
            "account",
            "auth",
            "client",
            "consumer",
            "deploy",
            "encryption",
            "hmac",
            "jwt",
            "license",
        ),
        *("master", "private", "secret", "service", "shared", "signing", "ssh", "storage", "subscription", "webhook"),
    ]
)
"""``api_key``, ``secretAccessKey``, …"""
_KEYS = tuple(f"{word}key" for word in ("api", "access", "account", "auth", "private", "secret"))
_LANGUAGE = frozenset(
    [
        *(
            "pad",
            "eos",
            "bos",
            "unk",
            "mask",
            "sep",
            "cls",
            "sos",
            "image",
            "prompt",
            "input",
            "output",
            "stop",
            "special",
        ),
        *(
            "next",
            "prev",
            "page",
            "continue",
            "start",
            "end",
            "first",
            "last",
            "max",
            "min",
            "num",
            "per",
            "of",
            "each",
        ),
        *("new", "unexpected", "expected", "invalid", "missing"),
    ]
)
"""``pad_token``, ``next_token``: of a language, or of a list."""
_ENDINGS = frozenset(
    {"value", "values", "data", "b64", "base64", "plain", "plaintext", "string", "str", "raw", "old", "new"}
)
_PUBLIC_KEYS = frozenset(["", "cache", "dedup", "foreign", "group", "partition", "primary", "public", "sort"])
_WEAK = frozenset(
    [
        *("auth", "assertion", "credential", "credentials", "dsn", "jsessionid", "phpsessid", "sessionid", "sig"),
        "signature",
    ]
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", re.ASCII)


def kind_of(name: str) -> Kind | None:
    """What a name (``AWS_SECRET_ACCESS_KEY``, ``clientSecret``, ``x-api-key``) says of its value; None: nothing."""
    words = [word.lower() for word in _WORDS.findall(name)]
    while len(words) > 1 and words[-1] in _ENDINGS:
        words.pop()
    if words[-2:] == ["key", "id"]:
        words.pop()
    if not words:
        return None
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if (
        last.endswith(_PASSWORDS)
        or last.endswith("pw")
        or (last == "pass" and before and before not in _PASSES | _LANGUAGE)
    ):
        return Kind.PASSWORD
    if last in _HEADERS:
        return Kind.HEADER
    if last.endswith("token"):
        return None if before in _LANGUAGE else Kind.TOKEN
    if (last == "key" and before in _KEYS_OF) or last.endswith(_KEYS):
        return Kind.TOKEN
    if last.endswith("secret"):
        return Kind.TOKEN
    of_environment = last == "key" and name.isupper() and before not in _PUBLIC_KEYS
    return Kind.WEAK if last in _WEAK or of_environment or words[-2:] == ["art", "api"] else None
