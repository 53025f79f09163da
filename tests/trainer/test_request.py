"""The request file and the inbox; the message all ranks read."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_trainer.distributed.agreement import HEADER, WIDTH, Agreed, Unread, decode, encode, is_quiet
from precision_trainer.errors import RankMismatchError
from precision_trainer.values.levels import MAX_LAYERS, SERIALS, Finding, Level, Reason, Verdict
from precision_trainer.values.modes import PrecisionMode
from precision_trainer.values.request import (
    MAX_BYTES,
    MAX_FACTOR,
    MAX_GENERATION,
    MAX_GROWTH_INTERVAL,
    MIN_FACTOR,
    Inbox,
    PrecisionRequest,
    RequestError,
    RequestFile,
    parse_request,
)

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
Errors = list[tuple[str, str]]


def test_parse() -> None:
    assert parse_request('{"generation":17,"mode":"fp32"}') == PrecisionRequest(17, FP32)
    assert parse_request(' {"generation":1,"mode":"BF16","checkpoint":true,"later":[1]}') == PrecisionRequest(
        1, BF16, True
    )
    assert parse_request('{"generation":2,"mode":"fp32","rewind":true}') == PrecisionRequest(2, FP32, rewind=True)
    assert parse_request(
        '{"generation":3,"mode":"fp16","lossScaleFactor":0.5,"growthInterval":4000}'
    ) == PrecisionRequest(3, FP16, loss_scale_factor=0.5, growth_interval=4000)
    assert parse_request('{"generation":4,"mode":"bf16","lossScaleFactor":2}') == PrecisionRequest(
        4, BF16, loss_scale_factor=2.0
    )
    assert parse_request(" \n") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"generation":17,"mo', "Malformed"),
        ("[]", "Malformed"),
        ('"fp32"', "Malformed"),
        ("{}", "Malformed"),
        ('{"generation":"17","mode":"fp32"}', "Malformed"),
        ('{"generation":true,"mode":"fp32"}', "Malformed"),
        ('{"generation":1.5,"mode":"fp32"}', "Malformed"),
        ('{"generation":0,"mode":"fp32"}', "Malformed"),
        ('{"generation":-4,"mode":"fp32"}', "Malformed"),
        (json.dumps({"generation": MAX_GENERATION + 1, "mode": "fp32"}), "Malformed"),
        ('{"generation":1,"mode":7}', "Malformed"),
        ('{"generation":1,"mode":"fp32","checkpoint":"yes"}', "Malformed"),
        ('{"generation":1,"mode":"fp32","rewind":1}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":"0.5"}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":true}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":null}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":0}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":-0.5}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":65536.1}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":NaN}', "Malformed"),
        ('{"generation":1,"mode":"fp16","lossScaleFactor":Infinity}', "Malformed"),
        ('{"generation":1,"mode":"fp16","growthInterval":0}', "Malformed"),
        ('{"generation":1,"mode":"fp16","growthInterval":4000.0}', "Malformed"),
        ('{"generation":1,"mode":"fp16","growthInterval":true}', "Malformed"),
        ('{"generation":1,"mode":"fp16","growthInterval":1000000001}', "Malformed"),
        ('{"generation":1,"mode":"fp8"}', "UnknownMode"),
        ('{"generation":1,"mode":""}', "UnknownMode"),
        ("[" * 60000, "Malformed"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_request(text)
    assert caught.value.reason == reason


@given(st.text())
def test_any_text_is_a_request_nothing_or_a_request_error(text: str) -> None:
    with contextlib.suppress(RequestError):
        parse_request(text)


def _file(path: Path) -> tuple[RequestFile, Errors]:
    errors: Errors = []
    return RequestFile(str(path), lambda reason, message: errors.append((reason, message)), 0.0), errors


def test_file_is_read_once_for_each_change(tmp_path: Path) -> None:
    path = tmp_path / "request"
    file, errors = _file(path)
    assert file.poll() is None
    path.write_text('{"generation":1,"mode":"fp16"}')
    assert file.poll() == PrecisionRequest(1, FP16)
    assert file.poll() is None
    path.write_text('{"generation":2,"mode":"fp32"}')
    assert file.poll() == PrecisionRequest(2, FP32)
    assert errors == []


def test_kubelet_style_symlink_swap_is_seen(tmp_path: Path) -> None:
    for version in ("a", "b"):
        (tmp_path / version).mkdir()
    (tmp_path / "a" / "request").write_text('{"generation":1,"mode":"fp16"}')
    (tmp_path / "b" / "request").write_text('{"generation":2,"mode":"fp32"}')
    (tmp_path / "..data").symlink_to("a")
    (tmp_path / "request").symlink_to("..data/request")
    file, _ = _file(tmp_path / "request")
    assert file.poll() == PrecisionRequest(1, FP16)
    (tmp_path / "new").symlink_to("b")
    os.replace(tmp_path / "new", tmp_path / "..data")
    assert file.poll() == PrecisionRequest(2, FP32)


def test_torn_file_is_counted_once_and_the_whole_one_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "request"
    file, errors = _file(path)
    path.write_text('{"generation":9,"mo')
    assert file.poll() is None
    assert file.poll() is None
    assert [reason for reason, _ in errors] == ["Malformed"]
    path.write_text('{"generation":9,"mode":"bf16"}')
    assert file.poll() == PrecisionRequest(9, BF16)


def test_oversized_binary_and_unreadable_files_never_raise(tmp_path: Path) -> None:
    path = tmp_path / "request"
    file, errors = _file(path)
    path.write_bytes(b" " * (MAX_BYTES + 1))
    assert file.poll() is None
    path.write_bytes(b"\xff\xfe\x00")
    assert file.poll() is None
    path.unlink()
    path.mkdir()
    assert file.poll() is None
    assert [reason for reason, _ in errors] == ["Malformed"] * 3


def _inbox(refused: str | None = None) -> tuple[Inbox, list[str]]:
    reasons: list[str] = []
    return Inbox(lambda reason, _: reasons.append(reason), refused), reasons


def test_of_two_requests_at_once_the_highest_generation_wins() -> None:
    for order in ((5, 6), (6, 5)):
        inbox, _ = _inbox()
        for generation in order:
            inbox.offer(PrecisionRequest(generation, FP32), None)
        pending = inbox.pending(0)
        assert pending is not None
        assert pending.generation == 6


def test_older_request_changes_nothing_and_is_counted() -> None:
    inbox, reasons = _inbox()
    applied = PrecisionRequest(8, FP16)
    inbox.offer(PrecisionRequest(7, FP32), applied)
    inbox.offer(PrecisionRequest(8, FP32), applied)
    assert inbox.pending(8) is None
    assert reasons == ["StaleGeneration"] * 2


def test_the_applied_request_again_is_no_error() -> None:
    inbox, reasons = _inbox()
    inbox.offer(PrecisionRequest(8, FP16), PrecisionRequest(8, FP16))
    assert (inbox.pending(8), reasons) == (None, [])


def test_low_precision_is_refused_where_it_is_not_allowed_and_fp32_never_is() -> None:
    inbox, reasons = _inbox("no CUDA")
    inbox.offer(PrecisionRequest(1, FP16), None)
    assert (inbox.pending(0), reasons) == (None, ["NotAllowed"])
    inbox.offer(PrecisionRequest(2, FP32), None)
    assert inbox.pending(0) == PrecisionRequest(2, FP32)


_REQUESTS = st.builds(
    PrecisionRequest,
    st.integers(1, MAX_GENERATION),
    st.sampled_from([FP32, FP16, BF16]),
    st.booleans(),
    st.booleans(),
    st.none() | st.floats(MIN_FACTOR, MAX_FACTOR),
    st.none() | st.integers(1, MAX_GROWTH_INTERVAL),
)


@given(_REQUESTS)
def test_a_request_goes_through_its_own_json_unchanged(request: PrecisionRequest) -> None:
    assert parse_request(json.dumps(request.to_wire())) == request


_LEVELS = [level for level in Level if level is not Level.NOMINAL]
_VERDICTS = st.none() | st.builds(
    Verdict,
    st.integers(1, SERIALS),
    st.sampled_from(_LEVELS),
    st.sampled_from(Reason),
    st.none() | st.integers(0, MAX_LAYERS - 1),
)
_Numbers = list[float]


def _messages(
    request: PrecisionRequest | None, stops: list[bool], verdict: Verdict | None = None, running: PrecisionMode = FP32
) -> list[_Numbers]:
    """Of all ranks; each has the loss 2.5."""
    return [
        [*encode(request, leads=True, stop=stop, running=running, verdict=verdict), 2.5]
        if not rank
        else [*encode(None, leads=False, stop=stop, running=running), 2.5]
        for rank, stop in enumerate(stops)
    ]


def _mean(messages: list[_Numbers], world: int | None = None, dtype: str = "float32") -> _Numbers:
    """As DDP and its hooks do it: convert, divide, then sum, rank by rank."""
    import torch

    world = world or len(messages)
    parts = [torch.tensor(one).to(getattr(torch, dtype)).div_(world) for one in messages]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    means: _Numbers = total.float().tolist()
    return means


@given(
    st.none() | _REQUESTS,
    st.lists(st.booleans(), min_size=1, max_size=64),
    st.sampled_from([FP32, FP16, BF16]),
    _VERDICTS,
    st.sampled_from(["float32", "float16", "bfloat16"]),
)
def test_what_rank_0_writes_every_rank_reads(
    request: PrecisionRequest | None, stops: list[bool], running: PrecisionMode, verdict: Verdict | None, dtype: str
) -> None:
    means = _mean(_messages(request, stops, verdict, running), dtype=dtype)
    agreed = decode(means, len(stops), running)
    assert agreed.unread is None
    assert (agreed.request, agreed.verdict) == (request, verdict)
    assert agreed.stop == any(stops)
    assert agreed.loss == (pytest.approx(2.5, rel=1e-5) if dtype == "float32" else pytest.approx(2.5, rel=0.2))


def test_digits_survive_a_bucket_in_bf16_of_any_number_of_ranks() -> None:
    import torch

    digits = torch.arange(64)
    for world in range(1, 4097):
        assert torch.equal((digits.bfloat16().div_(world).float() * world).round(), digits), world


def test_damaged_message_is_no_decision_of_any_rank() -> None:
    assert decode([float("nan")] * WIDTH, 1, FP32).unread is Unread.DAMAGED
    request = PrecisionRequest(303, BF16, loss_scale_factor=0.7, growth_interval=777)
    verdict = Verdict(1000, Level.PIN, Reason.FORWARD_OVERFLOW, 900)
    means = _mean(_messages(request, [False, True], verdict))
    whole = decode(means, 2, FP32)
    assert (whole.request, whole.verdict, whole.unread) == (request, verdict, None)
    # Rank 0 alone writes what follows its mark, up to the wish to stop of every rank.
    own = encode(None, leads=True, stop=True, running=FP32).index(1.0, 1)
    for place in range(1, own):
        for change in (-64.0, -1.0, 1.0, 2.0):
            damaged = [*means[:place], means[place] + change / 2, *means[place + 1 :]]
            agreed = decode(damaged, 2, FP32)
            assert agreed == Agreed(None, None, None, stop=False, loss=2.5, unread=Unread.DAMAGED), (place, change)


@given(st.none() | _REQUESTS, st.lists(st.booleans(), min_size=2, max_size=16), _VERDICTS, st.integers(1, 15))
def test_a_message_that_not_all_ranks_share_is_read_by_none(
    request: PrecisionRequest | None, stops: list[bool], verdict: Verdict | None, size: int
) -> None:
    messages = _messages(request, stops, verdict)
    world, size = len(stops), min(size, len(stops) - 1)
    own = [_mean([message], 1) for message in messages]
    waits = [_mean([message], world) for message in messages]
    groups = [_mean(messages[:size]), _mean(messages[size:])]
    for means in (*own, *waits, *groups):
        agreed = decode(means, world, FP32)
        assert agreed.loss == pytest.approx(2.5)
        assert agreed == Agreed(None, None, None, stop=False, loss=agreed.loss, unread=Unread.NOT_AVERAGED)


@given(_REQUESTS, st.lists(st.booleans(), min_size=2, max_size=64), st.data())
def test_ranks_without_input_are_no_part_of_the_mean_and_nothing_is_decided_without_them(
    request: PrecisionRequest, stops: list[bool], data: st.DataObject
) -> None:
    world = len(stops)
    there = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=world - 1))
    messages = [message for rank, message in enumerate(_messages(request, stops)) if rank in there]
    agreed = decode(_mean(messages, world), world, FP32, joins=True)
    assert agreed.loss == pytest.approx(2.5)
    assert agreed == Agreed(None, None, None, stop=False, loss=agreed.loss, unread=Unread.UNEVEN)
    agreed = decode(_mean(_messages(request, stops)), world, FP32, joins=True)
    # The next step may be without some of them.
    assert (agreed.request, agreed.stop, agreed.unread) == (None, any(stops), Unread.UNEVEN)


def test_a_finding_needs_all_ranks_that_took_part() -> None:
    found = Finding(fp32_finite=True, weights_finite=True, origin=5)
    for findings, expected in (([found, found], True), ([found, None], False), ([found], False)):
        messages = [
            [*encode(None, leads=not rank, stop=False, running=FP32, finding=one), 2.5]
            for rank, one in enumerate(findings)
        ]
        agreed = decode(_mean(messages, 3), 3, FP32, joins=True)
        assert (agreed.diagnosis is not None, agreed.unread) == (expected, Unread.UNEVEN)


@given(st.integers(2, 64), st.data())
def test_one_rank_in_another_mode_is_noticed_by_all_in_any_bucket(world: int, data: st.DataObject) -> None:
    other = data.draw(st.integers(0, world - 1))
    messages = [
        [*encode(None, leads=not rank, stop=False, running=BF16 if rank == other else FP32), 2.5]
        for rank in range(world)
    ]
    for dtype in ("float32", "bfloat16"):
        for running in (FP32, BF16):
            with pytest.raises(RankMismatchError, match="1 in mixed_bf16"):
                decode(_mean(messages, dtype=dtype), world, running)


@pytest.mark.parametrize("world_size", [1, 2, 10, 11, 30, 1000])
def test_what_nearly_every_step_says_is_known_whatever_the_sum_of_the_shares_is(world_size: int) -> None:
    says = encode(None, leads=False, stop=False, running=BF16)
    lead = encode(None, leads=True, stop=False, running=BF16)
    for off in (0.0, 1e-7, -1e-7):
        means = [one * (1 + off) for one in says]
        means[: lead.index(1.0) + 1] = [1 / world_size]
        assert is_quiet([*means, 0.5], world_size, BF16, joins=False)
    asked = encode(PrecisionRequest(1, FP32), leads=True, stop=False, running=BF16)
    means = [max(one / world_size, other) for one, other in zip(asked, says, strict=True)]
    assert len(means) == HEADER
    assert not is_quiet([*means, 0.5], world_size, BF16, joins=False)
