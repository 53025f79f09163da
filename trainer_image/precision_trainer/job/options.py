"""What ``precision-trainer train`` takes. Imports no torch: ``--help`` must be quick."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields

from ..errors import ConfigError
from ..values.config import parse_bool

ENV_PREFIX = "TRAINER_"
BUILT_IN = ("transformer", "world-model")


def _option(default: object, text: str, low: float | None = None, high: float | None = None) -> object:
    return field(default=default, metadata={"help": text, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Every field is a flag (``--batch-size``) and an environment variable (``TRAINER_BATCH_SIZE``); the flag wins."""

    model: str = "transformer"
    """What to train: ``transformer`` (the byte-level one), ``world-model`` or ``your.module:factory`` (models/task.py)."""
    steps: int = _option(0, "stop at this global step; 0: train until asked to stop", 0)  # type: ignore[assignment]
    batch_size: int = _option(8, "samples a micro-batch and rank", 1, 65536)  # type: ignore[assignment]
    accumulation: int = _option(1, "micro-batches a step", 1, 65536)  # type: ignore[assignment]
    learning_rate: float = _option(1e-3, "of AdamW", 0, 10)  # type: ignore[assignment]
    max_grad_norm: float = _option(1.0, "clip the global gradient norm to this; 0: off", 0)  # type: ignore[assignment]
    adaptive_clipping: bool = _option(False, "also clip a gradient norm far above its average")  # type: ignore[assignment]
    width: int = _option(64, "features: of a token (a multiple of 4), or of the world model's layers", 4, 65536)  # type: ignore[assignment]
    layers: int = _option(2, "transformer: blocks", 1, 1024)  # type: ignore[assignment]
    context: int = _option(32, "tokens a sample, or steps a sequence of the world model", 1, 65536)  # type: ignore[assignment]
    vocabulary: int = _option(256, "transformer: entries of the token table; bytes use the first 256", 256, 1 << 20)  # type: ignore[assignment]
    compile: str = _option("", "torch.compile backend (inductor, aot_eager); before the first step; empty: off")  # type: ignore[assignment]
    fp8: str = _option("off", "linear layers in FP8 where the mode is bf16: off, current or delayed (docs/analyzer.md)")  # type: ignore[assignment]
    environment: str = _option("CartPole-v1", "world-model: the gymnasium environment it learns from")  # type: ignore[assignment]
    seed: int = _option(0, "of the initial weights and the random state", 0, 2**31)  # type: ignore[assignment]
    threads: int = _option(1, "CPU threads a rank", 1, 1024)  # type: ignore[assignment]
    checkpoint_dir: str = _option("", "directory of checkpoints; empty: none are kept")  # type: ignore[assignment]
    checkpoint_every: int = _option(200, "steps between checkpoints; 0: only when asked or stopped", 0)  # type: ignore[assignment]
    checkpoint_lease_seconds: float = _option(30.0, "a lease without heartbeat is free after this", 1, 3600)  # type: ignore[assignment]
    healthy_after: int = _option(50, "good steps after a checkpoint that make it healthy: a rewind goes back to it", 1)  # type: ignore[assignment]
    resume_from: str = _option("", "where the directory has no checkpoint: begin from this one, or from a plain file")  # type: ignore[assignment]
    segment_steps: int = _option(200, "steps of a run, for genesis_training_total", 1)  # type: ignore[assignment]
    metrics_port: int = _option(9400, "rank 0 serves /metrics and /healthz here; 0: any free port, -1: off", -1, 65535)  # type: ignore[assignment]
    step_interval_seconds: float = _option(0.0, "start steps at least this far apart, to spare a CPU", 0, 60)  # type: ignore[assignment]
    diverged_after: int = _option(100, "non-finite FP32 steps in a row that mean divergence (exit 17); 0: never", 0)  # type: ignore[assignment]
    backend: str = _option("", "gloo or nccl; empty: nccl where there is CUDA")  # type: ignore[assignment]
    find_unused_parameters: bool = _option(False, "DDP's: in some steps some parameters get no gradient")  # type: ignore[assignment]
    static_graph: bool = _option(False, "DDP's: the same parameters are used in every step")  # type: ignore[assignment]
    broadcast_buffers: bool = _option(False, "DDP's: rank 0's buffers go to all ranks before each forward pass")  # type: ignore[assignment]
    ddp_timeout_seconds: float = _option(120.0, "how long a rank waits for the others", 1, 86400)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check the ranges; ConfigError names the flag, the value and the range."""
        for item in fields(self):
            low, high = item.metadata.get("low"), item.metadata.get("high")
            value: object = getattr(self, item.name)
            if isinstance(value, (int, float)) and low is not None:
                ceiling = float("inf") if high is None else high
                if not low <= value <= ceiling:
                    raise ConfigError(f"{_flag(item.name)}={value!r}: expected a number in [{low}, {ceiling}]")
        if self.model not in BUILT_IN and ":" not in self.model:
            raise ConfigError(f"model {self.model!r}: expected {', '.join(BUILT_IN)} or your.module:factory")
        if self.width % 4:
            raise ConfigError(f"--width={self.width}: expected a multiple of 4 (attention heads)")
        if self.fp8 not in ("off", "current", "delayed"):
            raise ConfigError(f"--fp8={self.fp8!r}: expected off, current or delayed")
        if self.backend not in ("", "gloo", "nccl"):
            raise ConfigError(f"--backend={self.backend!r}: expected gloo, nccl or nothing")


def _parse(name: str, text: str, default: object) -> object:
    kind = type(default)
    if kind is bool:
        return parse_bool(name, text)
    try:
        return int(text) if kind is int else float(text) if kind is float else text
    except ValueError:
        raise ConfigError(f"{name}={text!r}: expected {kind.__name__}; correct or remove it") from None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare model and flags."""
    parser.add_argument(
        "model", nargs="?", default="transformer", help=f"{', '.join(BUILT_IN)} or your.module:factory (examples/)"
    )
    for item in fields(TrainOptions):
        if item.name == "model":
            continue
        assert item.default is not MISSING
        kind = type(item.default)
        text = f"{item.metadata['help']} (default {item.default!r}; env {ENV_PREFIX}{item.name.upper()})"
        if kind is bool:
            parser.add_argument(_flag(item.name), action=argparse.BooleanOptionalAction, help=text)
        else:
            parser.add_argument(_flag(item.name), type=kind, metavar=kind.__name__.upper(), help=text)


def read_options(arguments: argparse.Namespace, env: Mapping[str, str] = os.environ) -> TrainOptions:
    """Flags over environment over defaults.

    Raises:
        ConfigError: a value cannot be read or is out of range.
    """
    values: dict[str, object] = {}
    for item in fields(TrainOptions):
        given: object = getattr(arguments, item.name, None)
        name = ENV_PREFIX + item.name.upper()
        text = env.get(name, "").strip()
        if given is not None:
            values[item.name] = given
        elif text:
            values[item.name] = _parse(name, text, item.default)
    return TrainOptions(**values)  # type: ignore[arg-type]  # argparse and the loop above made each value of its field's type
