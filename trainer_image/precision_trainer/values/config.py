"""Settings: what the environment asks for, and what that comes to on this machine.

Precedence, highest first: ``FEATURE_FLAGS=fp16_training:false`` (towards FP32 only), the request file, the environment.
Absent or empty means *not set*. A value that cannot be read means FP32 and an error that names it, never a crash.
This module imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NoReturn

from ..errors import ConfigError
from .modes import WIRE_NAMES, PrecisionMode
from .numbers import is_number, is_whole
from .sentinel import SentinelConfig

_TRUE = frozenset({"true", "1", "yes", "on", "y", "t"})
_FALSE = frozenset({"false", "0", "no", "off", "n", "f"})
DISABLED_LINE = "FP16 training disabled - using FP32"
FALLBACK_LINE = "Falling back to FP32"
MAX_LOSS_SCALE = 2.0**127
"""The largest power of two that FP32 holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedFP16Config:
    """How to train in reduced precision. Refuses a wrong value with ConfigError: field, value, range."""

    precision_mode: PrecisionMode = PrecisionMode.MIXED_FP16
    """The mode to start in when ``enabled``; FP32 otherwise."""
    enabled: bool = True
    """False: start in FP32. A later request can still switch."""
    loss_scale: float = 65536.0
    """Loss scale that FP16 starts with, (0, 2^127]."""
    growth_factor: float = 2.0
    """Scale is multiplied by this after ``growth_interval`` good steps in a row, (1, 1024]."""
    backoff_factor: float = 0.5
    """Scale is multiplied by this after an overflow, (0, 1)."""
    growth_interval: int = 2000
    """Good steps in a row before the scale grows, [1, 2^31)."""
    gradient_accumulation_steps: int = 1
    """Micro-batches a step, [1, 65536]. A step is one optimizer update; precision changes only between steps."""
    max_grad_norm: float = 0.0
    """Global gradient norm is clipped to this, after unscaling; 0, the default: nothing is clipped. [0, inf)."""
    adaptive_clipping: bool = False
    """Clip a gradient whose norm is far above the average of those before it as well (clipping.py)."""
    use_ddp: bool = False
    """Average gradients over the ranks with DistributedDataParallel; init_distributed() comes first."""
    find_unused_parameters: bool = False
    """DDP's own switch: for models in which some parameters get no gradient in some steps. Costs a walk of the graph."""
    static_graph: bool = False
    """DDP's own switch: the same parameters are used in every step, so that checkpointed and unused ones are known."""
    broadcast_buffers: bool = False
    """DDP's own switch: rank 0's buffers replace those of the other ranks before each forward pass. For buffers that
    training reads and fills from data, such as a codebook kept by averages. Costs a collective a step."""
    min_loss_scale: float = 1.0
    """The scale never falls below this, [0, loss_scale]. 0 is torch's own behaviour, which runs into 0 after ~150
    overflows and then skips every step for ever (pytorch#99640)."""
    hysteresis: int = 1
    """Overflows that it takes, since the scale last grew, until the scale backs off, [1, 1024]. 1 is torch's behaviour."""
    dynamic_loss_scale: bool = True
    """False: a static scale. It neither grows nor backs off; overflowed steps are skipped all the same."""
    allow_tf32: bool | None = None
    """Let FP32 matrix products and convolutions run as TF32 on CUDA (10 bits of mantissa). False: an FP32 baseline is strict
    FP32, and a speed-up is one over strict FP32. None: torch's flags stay as they are found."""
    compile_backend: str = ""
    """Run the model through ``torch.compile`` with this backend (``inductor``, ``aot_eager``, …); empty: as written."""
    fp32_modules: tuple[str, ...] = ()
    """Names, or globs of names, of modules that compute in FP32 in every mode (``("encoder.lstm", "*.norm")``)."""
    sentinel: SentinelConfig = field(default_factory=SentinelConfig)
    """What may be done without a request, towards FP32 only (docs/sentinel.md)."""

    def __post_init__(self) -> None:
        """Check every field; the first wrong one raises ConfigError."""
        if not isinstance(self.precision_mode, PrecisionMode):
            _refuse("precision_mode", self.precision_mode, "a PrecisionMode")
        if not isinstance(self.compile_backend, str):
            _refuse("compile_backend", self.compile_backend, "the name of a torch.compile backend, or nothing")
        if not isinstance(self.fp32_modules, tuple) or not all(isinstance(name, str) for name in self.fp32_modules):
            _refuse("fp32_modules", self.fp32_modules, "a tuple of names or globs of modules")
        for switch in fields(self):
            value: object = getattr(self, switch.name)
            if isinstance(switch.default, bool) and not isinstance(value, bool):
                _refuse(switch.name, value, "True or False")
        if not isinstance(self.allow_tf32, (bool, type(None))):
            _refuse("allow_tf32", self.allow_tf32, "True, False or None")
        for name in ("find_unused_parameters", "static_graph", "broadcast_buffers"):
            if getattr(self, name) and not self.use_ddp:
                _refuse(name, True, "False without use_ddp=True, since it is a switch of DistributedDataParallel")
        if self.static_graph and self.gradient_accumulation_steps != 1:
            _refuse("static_graph", True, "False with gradient_accumulation_steps above 1, which DDP itself fails with")
        _check_float("loss_scale", self.loss_scale, lambda v: 0 < v <= MAX_LOSS_SCALE, "a finite number in (0, 2^127]")
        _check_float("growth_factor", self.growth_factor, lambda v: 1 < v <= 1024, "a number in (1, 1024]")
        _check_float("backoff_factor", self.backoff_factor, lambda v: 0 < v < 1, "a number in (0, 1)")
        _check_int("growth_interval", self.growth_interval, 1, 2**31 - 1)
        _check_int("hysteresis", self.hysteresis, 1, 1024)
        _check_int("gradient_accumulation_steps", self.gradient_accumulation_steps, 1, 65536)
        _check_float(
            "max_grad_norm", self.max_grad_norm, lambda v: v >= 0, "a finite number in [0, inf); 0 = no clipping"
        )
        _check_float(
            "min_loss_scale",
            self.min_loss_scale,
            lambda v: 0 <= v <= self.loss_scale,
            f"a number in [0, {self.loss_scale}]",
        )


def _refuse(field: str, value: object, expected: str) -> NoReturn:
    raise ConfigError(f"{field}={value!r}: expected {expected}; set it to such a value or leave it out for the default")


def _check_float(field: str, value: object, good: Callable[[float], bool], expected: str) -> None:
    if not is_number(value) or not good(value):
        _refuse(field, value, expected)


def _check_int(field: str, value: object, low: int, high: int) -> None:
    if not is_whole(value, low, high):
        _refuse(field, value, f"a whole number in [{low}, {high}]")


@dataclass(frozen=True, slots=True)
class Boot:
    """What the environment comes to, before the request file is read."""

    mode: PrecisionMode
    """The mode to start in, if no request says otherwise."""
    source: str
    """What decided it: ``FEATURE_FLAGS``, ``ENABLE_FP16_TRAINING``, ``PRECISION_MODE`` or ``default``."""
    low_precision_refused: str | None
    """Why a request for FP16 or BF16 must be refused in this process; None if it may be taken."""
    scaling: ExtendedFP16Config
    """Loss-scaling values from FP16_*."""
    errors: tuple[str, ...]
    """One sentence for each value that could not be used."""


def parse_bool(name: str, text: str) -> bool | None:
    """A switch in the usual spellings, any case. None if absent or empty; ConfigError if it is anything else."""
    word = text.strip().lower()
    if not word:
        return None
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(f"{name}={text!r}: expected true or false; set it to one of them or remove it")


def read_boot(env: Mapping[str, str], *, has_cuda: bool) -> Boot:
    """Read the environment; never raises for a bad value.

    Args:
        env: the process environment.
        has_cuda: whether training runs on a CUDA device. Without one, FP16 and BF16 need ``PRECISION_ALLOW_CPU=true``.
    """
    errors: list[str] = []
    allow_cpu = _tolerant_bool(env, "PRECISION_ALLOW_CPU", errors)
    flag = _feature_flag(env.get("FEATURE_FLAGS", ""), errors)
    scaling = _scaling(env, errors)
    wanted = _tolerant_bool(env, "ENABLE_FP16_TRAINING", errors)
    meaning = _meaning(env.get("PRECISION_MODE", ""), errors)

    refused: str | None = None
    if flag is False:
        refused = "FEATURE_FLAGS=fp16_training:false keeps this process in FP32; remove the flag and restart"
    elif scaling is None:
        refused = "an FP16_* setting cannot be used (see the error above); correct it and restart"
    elif not has_cuda and not allow_cpu:
        refused = "no CUDA device, and FP16/BF16 on a CPU was not asked for; set PRECISION_ALLOW_CPU=true to allow it"

    mode, source = PrecisionMode.FP32, "default"
    if flag is False:
        source = "FEATURE_FLAGS"
    elif wanted is not None or env.get("ENABLE_FP16_TRAINING", "").strip():
        source = "ENABLE_FP16_TRAINING"
        if wanted and meaning is not None:
            mode = meaning
            source = "PRECISION_MODE" if env.get("PRECISION_MODE", "").strip() else source
    if errors and mode is not PrecisionMode.FP32:
        # A half-understood environment does not start the riskier mode (T1).
        mode = PrecisionMode.FP32
    return Boot(mode, source, refused, scaling or ExtendedFP16Config(allow_tf32=False), tuple(errors))


def _tolerant_bool(env: Mapping[str, str], name: str, errors: list[str]) -> bool | None:
    try:
        return parse_bool(name, env.get(name, ""))
    except ConfigError as error:
        errors.append(str(error))
        return None


def _feature_flag(text: str, errors: list[str]) -> bool | None:
    """``fp16_training`` out of a comma-separated ``name:value`` list; other flags are not ours and are ignored."""
    result: bool | None = None
    for item in text.split(","):
        name, _, value = item.partition(":")
        if name.strip().lower() != "fp16_training":
            continue
        try:
            parsed = parse_bool("FEATURE_FLAGS fp16_training", value)
        except ConfigError as error:
            errors.append(str(error))
            parsed = False
        if parsed is None:
            errors.append(f"FEATURE_FLAGS={text!r}: expected fp16_training:true or fp16_training:false; found no value")
            parsed = False
        # Named twice: off wins.
        result = parsed if result is None else result and parsed
    return result


def _meaning(text: str, errors: list[str]) -> PrecisionMode | None:
    if not text.strip():
        return PrecisionMode.MIXED_FP16
    mode = PrecisionMode.from_wire(text)
    if mode is None:
        errors.append(f"PRECISION_MODE={text!r}: expected one of {', '.join(WIRE_NAMES)}; set it to one or remove it")
    return mode


def _scaling(env: Mapping[str, str], errors: list[str]) -> ExtendedFP16Config | None:
    """The FP16_* values, or None (with one error each) if any cannot be used."""
    before = len(errors)
    defaults = ExtendedFP16Config()
    watch = _tolerant_bool(env, "PRECISION_SENTINEL", errors)
    tf32 = _tolerant_bool(env, "PRECISION_ALLOW_TF32", errors)
    loss_scale = _number(env, "FP16_LOSS_SCALE", defaults.loss_scale, errors)
    growth_factor = _number(env, "FP16_GROWTH_FACTOR", defaults.growth_factor, errors)
    backoff_factor = _number(env, "FP16_BACKOFF_FACTOR", defaults.backoff_factor, errors)
    growth_interval = _number(env, "FP16_GROWTH_INTERVAL", float(defaults.growth_interval), errors)
    if len(errors) > before:
        return None
    if not growth_interval.is_integer():
        errors.append(f"FP16_GROWTH_INTERVAL={growth_interval!r}: expected a whole number in [1, 2147483647]")
        return None
    try:
        return ExtendedFP16Config(
            loss_scale=loss_scale,
            growth_factor=growth_factor,
            backoff_factor=backoff_factor,
            growth_interval=int(growth_interval),
            min_loss_scale=min(defaults.min_loss_scale, loss_scale if loss_scale > 0 else 0.0),
            allow_tf32=tf32 or False,
            fp32_modules=tuple(filter(None, map(str.strip, env.get("PRECISION_FP32_MODULES", "").split(",")))),
            sentinel=SentinelConfig(enabled=watch is not False),
        )
    except ConfigError as error:
        # The field's name in capitals is the variable's: loss_scale comes from FP16_LOSS_SCALE.
        field, _, rest = str(error).partition("=")
        errors.append(f"FP16_{field.upper()}={rest}")
        return None


def _number(env: Mapping[str, str], name: str, default: float, errors: list[str]) -> float:
    text = env.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        errors.append(f"{name}={text!r}: expected a finite number; set it to one (default {default:g}) or remove it")
        return default
    return value
