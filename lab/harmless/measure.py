"""Runs a script on both sides, here or in processes of its own, so that a crash or a hang costs one case."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import multiprocessing
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Literal

import torch

from lab.harmless.loops import Ours, ours, plain
from lab.harmless.script import CASES, REFUSALS, Case, Refusal, Setting, Start, in_bf16
from precision_trainer.distributed.launch import free_port
from precision_trainer.distributed.process_group import cleanup_distributed, init_distributed
from precision_trainer.errors import ConfigError

DOMAINS = (
    "vision",
    "generative",
    "language",
    "graphs",
    "control",
    "precision",
    "habits",
    "batches",
    "distributed",
    "refused",
)
"""The modules that hold the scripts."""
ALSO_IN_BF16 = (
    "imagenet", "mnist", "siamese", "fast_neural_style", "style_transfer", "forward_forward", "dcgan", "spectral_gan",
    "wgan_gp", "vae", "real_nvp", "transformer_language_model", "reentrant_checkpoints", "names", "news", "recommender",
    "deep_q_learning", "own_autocast", "double_default", "averaged_weights", "gradual_unfreezing", "data_loader",
    "failing_batches", "failing_backward", "steps_without_gradients",
)  # fmt: skip
"""Scripts that train in FP32, where the sentinel has nothing to look at. Not those that plain PyTorch cannot train in BF16
on a CPU (LSTM, GCN), that make too few updates to be looked at, or that are compiled."""
_LIMIT_SECONDS = 180.0
"""After which a case counts as hanging; each takes a few seconds."""
_PRELOADED = "torch", "torch._dynamo", "torch.nn.parallel.distributed"
"""What each process would import for seconds."""
_MAX_TEXT = 300
Kind = Literal["case", "refusal"]


@dataclass(slots=True)
class Outcome:
    """What a case came to: of all ranks one after the other, where there are several."""

    without_us: list[float] = field(default_factory=list)
    with_us: list[float] = field(default_factory=list)
    finished: bool = False
    reported: list[str] = field(default_factory=list)
    low: bool = False
    """It was to train in 16 bits."""
    looked: bool = False
    """The sentinel looked closer at a step."""

    @property
    def losses_equal(self) -> bool:
        """Bit for bit, and there are some."""
        return bool(self.without_us) and _bits(self.without_us) == _bits(self.with_us)

    def line(self, case: Case) -> dict[str, object]:
        """For build/harmless.json. A loss that is not finite is written as text: JSON has no NaN."""
        sides = {name: [_number(value) for value in getattr(self, name)] for name in ("without_us", "with_us")}
        rest: dict[str, object] = {
            "finished": self.finished,
            "losses_equal": self.losses_equal,
            "low": self.low,
            "looked": self.looked,
            "reported": self.reported,
        }
        return {"id": case.id, "stack": case.stack, "public_shape": case.public_shape, **sides, **rest}


def load() -> None:
    """Register all scripts."""
    for name in DOMAINS:
        importlib.import_module(f"{__package__}.{name}")
    CASES.update({case.id: case for case in (in_bf16(CASES[name]) for name in ALSO_IN_BF16)})


def train(case: Case) -> Outcome:
    """Both sides, in this process; of several ranks this is one."""
    outcome = Outcome()
    text = io.StringIO()
    started: list[Ours] = []

    def noted(model: torch.nn.Module, optimizer: torch.optim.Optimizer, setting: Setting | None = None) -> Ours:
        started.append(ours(model, optimizer, setting))
        return started[-1]

    try:
        for start, losses in ((plain, outcome.without_us), (noted, outcome.with_us)):
            with contextlib.redirect_stdout(text):
                _one_side(case, start, losses)
        outcome.finished = True
    except Exception as error:  # noqa: BLE001  (what it is, the reader of the file judges)
        outcome.reported.append(f"did not finish: {type(error).__name__}: {str(error)[:_MAX_TEXT]}")
    outcome.reported[:0] = dict.fromkeys(_events(text.getvalue()))
    outcome.low, outcome.looked = any(loop.low for loop in started), any(loop.looked for loop in started)
    return outcome


def _one_side(case: Case, start: Start, losses: list[float]) -> None:
    torch.manual_seed(0)
    losses.extend(case.train(start))


def _events(text: str) -> Iterator[str]:
    """What our log says a person should read."""
    for line in text.splitlines():
        if line.startswith("{"):
            event: dict[str, object] = json.loads(line)
            if "level" in event:
                yield f"{event['event']}: {str(event.get('message', ''))[:_MAX_TEXT]}"


def refuse(case: Refusal) -> str:
    """The message of the refusal; what else happened, if there was none."""
    torch.manual_seed(0)
    try:
        case.build(ours)
    except ConfigError as error:
        return str(error)
    return ""


def apart(case: Case) -> Outcome:
    """Both sides, in processes of their own."""
    whole = Outcome(finished=True)
    for found in _ranks("case", case.id, case.ranks):
        part = found if isinstance(found, Outcome) else Outcome(reported=["did not finish: its process ended, or hung"])
        whole.without_us += part.without_us
        whole.with_us += part.with_us
        whole.finished = whole.finished and part.finished
        whole.low, whole.looked = whole.low or part.low, whole.looked or part.looked
        whole.reported += [text for text in part.reported if text not in whole.reported]
    return whole


def refused_apart(case: Refusal) -> str:
    """The refusal's message on rank 0, from processes of its own; empty if any rank was not refused."""
    messages = [found if isinstance(found, str) else "" for found in _ranks("refusal", case.id, case.ranks)]
    return messages[0] if all(messages) else ""


def _ranks(kind: Kind, name: str, ranks: int) -> list[Outcome | str | None]:
    """What each rank sent; None for a rank that ended or did not answer in time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, __name__])
    port = str(free_port())
    pipes: list[Connection] = []
    processes = []
    for rank in range(ranks):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(kind, name, rank, ranks, port, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    found = [_received(pipe) for pipe in pipes]
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
    return found


def _received(pipe: Connection) -> Outcome | str | None:
    if not wait([pipe], _LIMIT_SECONDS):
        return None
    try:
        found: Outcome | str = pipe.recv()
    except EOFError:
        return None
    return found


def _rank(kind: Kind, name: str, rank: int, ranks: int, port: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    load()
    if ranks > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        init_distributed("gloo", timeout_seconds=60)
    try:
        pipe.send(train(CASES[name]) if kind == "case" else refuse(REFUSALS[name]))
    finally:
        cleanup_distributed()


def _bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


def _number(value: float) -> float | str:
    return value if value - value == 0.0 else str(value)
