"""Pods by their annotations: what templates say, what was copied or forged, and what is too much."""

from __future__ import annotations

from itertools import product

from tests.support.bodies import MEANING, SWITCH, Json, container, literal, ours, pod, request

LIMIT = 256 * 1024
"""Bytes of annotations that the API server allows a pod."""
ROOM = LIMIT - 4096
FORMS = {"literal": literal("true", "fp16"), "read": [SWITCH, MEANING]}


def _with(annotations: dict[str, str], form: str = "read") -> Json:
    return pod(container(env=FORMS[form]), annotations=annotations)


def _templates() -> dict[str, Json]:
    return {
        "no annotations": pod(),
        "empty annotations": pod(annotations={}),
        "annotations of others": _with({"mine": "kept", "a/b_c": "~1/~0"}),
        **{
            f"a template in {mode}": _with(ours(mode=mode, enable_fp16="true", request=request(5, mode)))
            for mode in ("fp32", "bf16", "fp16")
        },
        "empty values": _with(ours(mode="", enable_fp16="", request="", admitted="")),
        "nonsense": _with(ours(mode="fp8", enable_fp16="\u202efalse", request="{{{")),
        "a template asks for a high generation": _with(ours(request=request(10**6, "fp16"))),
        "the operator's own questions": _with(
            {f"precision.genesis.ai/{k}": "1" for k in ("echo", "echo-nonce", "retry")}
        ),
    }


_LONG = "x" * 274
RECORDS = (
    "fleet/3/fp16",
    "other/3/fp32",
    "other/3/bf16 fleet/2/fp16",
    "fleet/1/fp16 fleet/2/bf16",
    "fleet-b/1/fp32",
    "fleet/",
    "/fleet/1/fp16",
    " ",
    "a  b",
    " fleet/3/fp16 ",
    "fleet/3/fp16\n",
    "é/1/fp32",
    "é" * 137,
    "é" * 138,
    f"{_LONG} " * 7 + "y" * 123,
    f"{_LONG} " * 7 + "y" * 124,
    f"{_LONG} " * 3 + "y/1/fp16 " * 100,
    "fleet/3/fp16 " + "x" * 274,
    "x" * 275 + " fleet/3/fp16",
    " ".join(f"p{i}/1/fp16" for i in range(19)),
    " ".join(f"p{i}/1/fp16" for i in range(20)),
    " ".join(f"p{i}/1/fp16" for i in range(700)),
    " ".join(f"p{i}/1/fp16" for i in range(20)) + " fleet/3/fp16",
)


def _records() -> dict[str, Json]:
    shown = {record: f"{record[:40]!r} of {len(record)}" for record in RECORDS}
    return {
        **{
            f"a record {shown[record]} with {mode!r}": _with(ours(admitted=record, mode=mode, request=request(5, mode)))
            for record, mode in zip(RECORDS, ("fp16", "bf16", "fp32", "", "FP32") * 4, strict=False)
        },
        **{
            f"a record, {mode!r}, as {form}": _with(ours(admitted="other/1/fp16", mode=mode), form)
            for mode, form in product(("fp32", "bf16", "fp16", " fp32", "int8", ""), FORMS)
        },
    }


REQUESTS = (
    request(16, "fp16"),
    request(18, "fp16"),
    request(2**49, "fp16"),
    request(2**49 + 1, "fp16"),
    request(10**15 - 1, "fp16"),
    request(10**15, "fp16"),
    '{"generation":0099,"mode":"fp16"}',
    '{"generation":-99,"mode":"fp16"}',
    '{"generation":99.5,"mode":"fp16"}',
    '{"generation":9e3,"mode":"fp16"}',
    '{"generation":"99","mode":"fp16"}',
    '{"generation":99}',
    '{"generation":99,',
    '{"generation":99',
    '{"generation": 99,"mode":"fp16"}',
    '{"mode":"fp16","generation":99}',
    ' {"generation":99,"mode":"fp16"}',
    '\n{"generation":99,"mode":"fp16"}',
    '{"generation":99,"mode":"fp16","checkpoint":true}',
    '{"generation":٩٩,"mode":"fp16"}',
    '{"generation":99,"mode":"fp16","x":"' + "x" * 4059 + '"}',
    '{"generation":99,"mode":"fp16","x":"' + "x" * 4058 + '"}',
    '{"generation":99,"mode":"fp16","x":' + "[" * 1500 + "]" * 1500 + "}",
    "[" * 50_000,
    "{}",
    "",
)


def _requests() -> dict[str, Json]:
    return {
        f"a record and the request {text[:50]!r} of {len(text)}": _with(
            ours(admitted="other/1/fp16", mode="fp16", request=text)
        )
        for text in REQUESTS
    }


def _filled(size: int, more: dict[str, str] | None = None, *, letter: str = "x", form: str = "read") -> Json:
    """A pod whose annotations, without ours in `more`, have exactly this size."""
    fill = (size - len("fill")) // len(letter.encode())
    rest = size - len("fill") - fill * len(letter.encode())
    return _with({"fill": letter * fill + "x" * rest, **(more or {})}, form)


def _counted(count: int, form: str = "read") -> Json:
    return _with({f"n{i}": "" for i in range(count)}, form)


def _huge() -> dict[str, Json]:
    template = ours(mode="fp16", enable_fp16="true", request=request(5, "fp16"))
    return {
        "annotations that leave room": _filled(ROOM),
        "annotations that leave no room": _filled(ROOM + 1),
        "annotations at the limit": _filled(LIMIT),
        "annotations at the limit, in literals": _filled(LIMIT, form="literal"),
        "letters of two bytes that leave room": _filled(ROOM, letter="é"),
        "letters of two bytes that leave no room": _filled(ROOM + 1, letter="é"),
        "letters of four bytes at the limit": _filled(LIMIT, letter="🚂"),
        "ours beside annotations that leave room": _filled(ROOM, template),
        "ours beside annotations that leave no room": _filled(ROOM + 1, template),
        "a record beside annotations that leave no room": _filled(
            ROOM + 1, {**template, **ours(admitted="other/1/fp16")}, form="literal"
        ),
        "ours beside annotations, together at the limit": _filled(LIMIT - 148, template),
        "as many annotations as are read": _counted(1_000),
        "one annotation more than is read": _counted(1_001),
        "far too many annotations": _counted(5_000),
        "far too many annotations, in literals": _counted(5_000, "literal"),
        "deep JSON": _with({"deep": "[" * 100_000 + "]" * 100_000}),
        "deep JSON in ours": _with(ours(request="[" * 100_000, mode="{" * 100_000)),
    }


def annotated() -> dict[str, Json]:
    """All of them, by what they show."""
    return {**_templates(), **_records(), **_requests(), **_huge()}
