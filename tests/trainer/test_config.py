"""Settings: validation, environment, precedence."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precision_trainer.errors import ConfigError
from precision_trainer.precision.boot import decide
from precision_trainer.precision.setup import set_tf32, tf32_in_force
from precision_trainer.values.config import ExtendedFP16Config, parse_bool, read_boot
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.modes import PrecisionMode
from precision_trainer.values.request import Inbox, PrecisionRequest

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("precision_mode", "fp16"),
        ("enabled", "yes"),
        ("loss_scale", 0.0),
        ("loss_scale", -1.0),
        ("loss_scale", math.inf),
        ("loss_scale", math.nan),
        ("growth_factor", 1.0),
        ("growth_factor", True),
        ("backoff_factor", 1.0),
        ("backoff_factor", 0.0),
        ("growth_interval", 0),
        ("growth_interval", 2.5),
        ("gradient_accumulation_steps", 0),
        ("max_grad_norm", -0.1),
        ("max_grad_norm", math.nan),
        ("use_ddp", 1),
        ("allow_tf32", 1),
        ("min_loss_scale", 1e9),
    ],
)
def test_wrong_value_is_refused_with_field_value_and_range(field: str, value: object) -> None:
    wrong: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError) as caught:
        ExtendedFP16Config(**wrong)
    message = str(caught.value)
    assert message.startswith(f"{field}={value!r}: expected ")


@pytest.fixture
def torchs_flags() -> Iterator[None]:
    """As torch has them at its start, before and after."""
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True


@pytest.mark.usefixtures("torchs_flags")
@pytest.mark.parametrize("allowed", [None, False, True])
def test_the_flags_of_tf32_are_set_where_that_is_asked_for_and_stay_as_they_were_found_otherwise(
    allowed: bool | None,
) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    set_tf32(torch.device("cpu"), allowed=allowed)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == (False, True)
    set_tf32(torch.device("cuda"), allowed=allowed)
    expected = (False, True) if allowed is None else (allowed, allowed)
    assert (matmul.allow_tf32, cudnn.allow_tf32) == expected
    assert tf32_in_force(torch.device("cuda")) is any(expected)
    assert not tf32_in_force(torch.device("cpu"))


def test_the_classes_leave_tf32_alone_and_train_asks_for_strict_fp32() -> None:
    assert ExtendedFP16Config().allow_tf32 is None
    for env, expected in (({}, False), ({"PRECISION_ALLOW_TF32": "true"}, True), ({"FP16_LOSS_SCALE": "big"}, False)):
        assert read_boot(env, has_cuda=True).scaling.allow_tf32 is expected


def test_defaults_are_the_documented_ones() -> None:
    config = ExtendedFP16Config()
    assert (config.loss_scale, config.growth_factor, config.backoff_factor, config.growth_interval) == (
        65536.0,
        2.0,
        0.5,
        2000,
    )


@pytest.mark.parametrize("text", ["true", "TRUE", " True ", "1", "yes", "on"])
def test_usual_spellings_of_true(text: str) -> None:
    assert parse_bool("X", text) is True


@pytest.mark.parametrize("text", ["false", "FALSE", "0", "no", "Off"])
def test_usual_spellings_of_false(text: str) -> None:
    assert parse_bool("X", text) is False


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_is_not_set(text: str) -> None:
    assert parse_bool("X", text) is None
    assert read_boot({"ENABLE_FP16_TRAINING": text, "PRECISION_MODE": text}, has_cuda=True).errors == ()


@pytest.mark.parametrize(
    ("env", "mode", "source"),
    [
        ({}, FP32, "default"),
        ({"PRECISION_MODE": "bf16"}, FP32, "default"),
        ({"ENABLE_FP16_TRAINING": "true"}, FP16, "ENABLE_FP16_TRAINING"),
        ({"ENABLE_FP16_TRAINING": "false", "PRECISION_MODE": "bf16"}, FP32, "ENABLE_FP16_TRAINING"),
        ({"ENABLE_FP16_TRAINING": "true", "PRECISION_MODE": "BF16"}, BF16, "PRECISION_MODE"),
        ({"ENABLE_FP16_TRAINING": "true", "PRECISION_MODE": "fp32"}, FP32, "PRECISION_MODE"),
        ({"ENABLE_FP16_TRAINING": "true", "FEATURE_FLAGS": "fp16_training:false"}, FP32, "FEATURE_FLAGS"),
        ({"ENABLE_FP16_TRAINING": "true", "FEATURE_FLAGS": "a:b,fp16_training:true"}, FP16, "ENABLE_FP16_TRAINING"),
        (
            {"ENABLE_FP16_TRAINING": "true", "FEATURE_FLAGS": "fp16_training:true,fp16_training:0"},
            FP32,
            "FEATURE_FLAGS",
        ),
        ({"FEATURE_FLAGS": "fp16_training:true"}, FP32, "default"),
    ],
)
def test_environment(env: dict[str, str], mode: PrecisionMode, source: str) -> None:
    boot = read_boot(env, has_cuda=True)
    assert (boot.mode, boot.source, boot.errors) == (mode, source, ())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENABLE_FP16_TRAINING", "ja"),
        ("PRECISION_MODE", "fp8"),
        ("FEATURE_FLAGS", "fp16_training:perhaps"),
        ("FP16_LOSS_SCALE", "big"),
        ("FP16_LOSS_SCALE", "0"),
        ("FP16_LOSS_SCALE", "nan"),
        ("FP16_GROWTH_FACTOR", "1"),
        ("FP16_BACKOFF_FACTOR", "2"),
        ("FP16_GROWTH_INTERVAL", "2.5"),
        ("FP16_GROWTH_INTERVAL", "1e99"),
        ("PRECISION_ALLOW_CPU", "maybe"),
    ],
)
def test_unreadable_value_means_fp32_and_an_error_that_names_it(name: str, value: str) -> None:
    boot = read_boot({"ENABLE_FP16_TRAINING": "true", "PRECISION_ALLOW_CPU": "true", name: value}, has_cuda=False)
    assert boot.mode is FP32
    assert len(boot.errors) == 1
    assert name in boot.errors[0]


@given(
    st.dictionaries(
        st.sampled_from(["ENABLE_FP16_TRAINING", "PRECISION_MODE", "FEATURE_FLAGS", "FP16_LOSS_SCALE"]), st.text()
    )
)
def test_no_environment_raises(env: dict[str, str]) -> None:
    boot = read_boot(env, has_cuda=True)
    assert boot.mode in (FP32, FP16, BF16)


def _start(
    env: dict[str, str], request: PrecisionRequest | None, capsys: pytest.CaptureFixture[str], has_cuda: bool = True
) -> tuple[PrecisionMode, str, list[dict[str, object]], list[str]]:
    boot = read_boot(env, has_cuda=has_cuda)
    reasons: list[str] = []
    start = decide(
        boot, request, Inbox(lambda reason, _: reasons.append(reason), boot.low_precision_refused), JsonLog()
    )
    return start.mode, start.source, [json.loads(line) for line in capsys.readouterr().out.splitlines()], reasons


def test_request_file_beats_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    mode, source, lines, _ = _start({"ENABLE_FP16_TRAINING": "true"}, PrecisionRequest(3, FP32), capsys)
    assert (mode, source) == (FP32, "request")
    assert any(line.get("source") == "request" for line in lines)


def test_feature_flag_beats_the_request_file_and_a_request_for_fp16_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mode, source, _, reasons = _start({"FEATURE_FLAGS": "fp16_training:off"}, PrecisionRequest(3, FP16), capsys)
    assert (mode, source, reasons) == (FP32, "FEATURE_FLAGS", ["NotAllowed"])


def test_verbatim_lines_of_the_source(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, lines, _ = _start({}, None, capsys)
    text = json.dumps(lines)
    assert "FP16 training disabled - using FP32" in text
    assert "fp16_enabled: False" in text


def test_cpu_without_opt_in_falls_back_with_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    mode, _, lines, reasons = _start({"ENABLE_FP16_TRAINING": "true"}, None, capsys, has_cuda=False)
    warnings = [line for line in lines if line.get("level") == "warning"]
    assert mode is FP32
    assert reasons == []
    assert len(warnings) == 1
    assert "Falling back to FP32" in str(warnings[0]["message"])
    assert "PRECISION_ALLOW_CPU" in str(warnings[0]["message"])


def test_cpu_with_opt_in_trains_in_fp16(capsys: pytest.CaptureFixture[str]) -> None:
    env = {"ENABLE_FP16_TRAINING": "1", "PRECISION_ALLOW_CPU": "true"}
    assert _start(env, None, capsys, has_cuda=False)[0] is FP16
