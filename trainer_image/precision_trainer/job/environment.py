"""What ``precision-trainer env`` says: what a training job would start as here, and why; decided by the job's own code."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .. import compat
from ..distributed.batch import BatchAdvice, advise
from ..names import DEFAULT_PORT, DEFAULT_REQUEST_FILE, POD_UID_ENV, REQUEST_FILE_ENV
from ..precision.boot import Requests
from ..step.hardware import Hardware, detect
from ..values.config import read_boot
from ..values.logs import Field, JsonLog
from ..values.modes import WIRE_NAMES

SETTINGS = {
    "ENABLE_FP16_TRAINING": "false",
    "PRECISION_MODE": "fp16, where ENABLE_FP16_TRAINING is true",
    "FEATURE_FLAGS": "none",
    REQUEST_FILE_ENV: DEFAULT_REQUEST_FILE,
    "PRECISION_ALLOW_CPU": "false",
    "PRECISION_FP32_MODULES": "none: every module follows the mode",
    "PRECISION_SENTINEL": "true",
    "PRECISION_ALLOW_TF32": "false: FP32 is strict",
    POD_UID_ENV: "none: a restarted container waits for its own lease",
    "FP16_LOSS_SCALE": "65536",
    "FP16_GROWTH_FACTOR": "2",
    "FP16_BACKOFF_FACTOR": "0.5",
    "FP16_GROWTH_INTERVAL": "2000",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "none",
    "MASTER_PORT": DEFAULT_PORT,
}
"""What is read, and what holds where it is not set."""
EXTRAS = {"gymnasium": "world model", "matplotlib": "figures"}


@dataclass(frozen=True, slots=True)
class Environment:
    """What was found, and what it comes to."""

    mode: str
    """A job would start in."""
    source: str
    """What decided it: ``request``, ``FEATURE_FLAGS``, ``ENABLE_FP16_TRAINING``, ``PRECISION_MODE`` or ``default``."""
    generation: int
    """Of the request that decided; 0 if none did."""
    requests_accepted: tuple[str, ...]
    """Modes that a request may ask for."""
    requests_refused: str | None
    """Why not the others; None if all may."""
    messages: tuple[str, ...]
    """Errors and warnings of the decision, as the job would log them."""
    request_file: str
    """Its path and whether it is there."""
    settings: dict[str, str | None]
    """As set; None: not set, or empty, which is the same."""
    hardware: Hardware
    torch_note: str | None
    """What to know about this torch; None: nothing."""
    extras: dict[str, bool]
    batch: BatchAdvice | None
    """For the ranks that WORLD_SIZE says; None if it says none that one could use."""

    def to_wire(self) -> dict[str, object]:
        """For a program."""
        return asdict(self)

    def text(self) -> str:
        """For a person."""
        here = self.hardware
        flags = "unknown" if here.cpu_flags is None else ", ".join(here.cpu_flags) or "none of AMX, AVX-512, AVX2"
        preferred = ", ".join(here.preferred) or "neither BF16 nor FP16: they would be emulated"
        decided = f"request {self.generation}" if self.generation else self.source
        lines = [
            f"A job would start in {self.mode}, because of: {decided}",
            *(f"  ! {message}" for message in self.messages),
            f"Requests: {', '.join(self.requests_accepted)}"
            + (f"; no others: {self.requests_refused}" if self.requests_refused else ""),
            f"Request file: {self.request_file}",
            f"Device: {here.device}, {here.name}" + (f", CUDA capability {here.capability}" if here.capability else ""),
            f"  multiplies itself in: {preferred}",
            f"  TF32: {'there' if here.tf32 else 'not there'}; CPU: {flags}",
            f"  FP8: {here.fp8_missing or 'the hardware has it: train --fp8 current'}",
            f"torch {here.torch}" + (f"\n  ! {self.torch_note}" if self.torch_note else ""),
            *([f"Batch: {self.batch.text()}"] if self.batch is not None else []),
            "Settings:",
            *(
                f"  {name} = {value}" if value is not None else f"  {name} not set ({SETTINGS[name]})"
                for name, value in self.settings.items()
            ),
            "Extras: " + ", ".join(
                f"{name} ({use}) {'there' if self.extras[name] else 'missing'}" for name, use in EXTRAS.items()
            ),
        ]  # fmt: skip
        return "\n".join(lines)


class _Collecting(JsonLog):
    """Keeps what the decision says instead of logging it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def _write(self, event: str, at: float | None, fields: Mapping[str, Field]) -> None:
        if "level" in fields:
            self.messages.append(str(fields["message"]))


def examine(env: Mapping[str, str] = os.environ) -> Environment:
    """Look at this process' environment, request file and machine; changes nothing."""
    hardware, log = detect(), _Collecting()
    boot = read_boot(env, has_cuda=hardware.device == "cuda")

    def refused(reason: str, message: str) -> None:
        log.messages.append(f"{reason}: {message}")

    requests = Requests(boot, refused, env)
    start = requests.start(log)
    return Environment(
        start.mode.wire,
        start.source,
        start.generation,
        ("fp32",) if boot.low_precision_refused else WIRE_NAMES,
        boot.low_precision_refused,
        tuple(log.messages),
        f"{requests.path} ({'there' if os.path.exists(requests.path) else 'not there: no request'})",
        {name: env.get(name, "").strip() or None for name in SETTINGS},
        hardware,
        compat.security_note(),
        {name: importlib.util.find_spec(name) is not None for name in EXTRAS},
        _batch(env.get("WORLD_SIZE", "").strip() or "1"),
    )


def _batch(world_size: str) -> BatchAdvice | None:
    return advise(int(world_size)) if world_size.isdecimal() and int(world_size) > 0 else None
