"""What the ranks of a process group do in the tests: functions that process_group.py runs on every rank."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.distributed.agreement import encode
from precision_trainer.distributed.process_group import (
    check_same,
    cleanup_distributed,
    exchange,
    find_loss,
    lost_peer,
    training_failed,
)
from precision_trainer.errors import RankMismatchError
from precision_trainer.step.weights import LOOK_AFTER_STEPS
from precision_trainer.values.modes import HOT
from precision_trainer.values.request import Inbox, PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig

Result = dict[str, object]
WIDTH = 16


def make(
    rank: int,
    world: int,
    mode: PrecisionMode = PrecisionMode.MIXED_FP16,
    accumulation: int = 1,
    sentinel: SentinelConfig | None = None,
    compile_backend: str = "",
) -> ExtendedFP16Trainer:
    """A small model whose gradients differ by rank (the data does), under DDP."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    config = ExtendedFP16Config(
        precision_mode=mode,
        loss_scale=1024.0,
        use_ddp=True,
        gradient_accumulation_steps=accumulation,
        sentinel=sentinel or SentinelConfig(),
        compile_backend=compile_backend,
    )
    return ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)


def _mean_square(factor: float) -> Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]:
    def loss(model: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(data)
        return out.square().mean() * factor

    return loss


def step(trainer: ExtendedFP16Trainer, factor: float = 1.0) -> None:
    """One whole step; every rank sees its own data."""
    for _ in range(trainer.config.gradient_accumulation_steps):
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(trainer.step * 10 + trainer.rank))
        loss_of = _mean_square(factor)
        trainer.backward_and_step(trainer.training_step(batch, loss_of, loss_of))


def fingerprint(trainer: ExtendedFP16Trainer) -> str:
    """Of all parameters and optimizer state, bit for bit."""
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(bytes(parameter.detach().view(torch.uint8).flatten().tolist()))
        for value in trainer.optimizer.state[parameter].values():
            digest.update(bytes(torch.as_tensor(value).reshape(-1).view(torch.uint8).tolist()))
    return digest.hexdigest()


def switch_through_all_modes(rank: int, world: int) -> Result:
    """FP16 -> FP32 -> BF16 -> FP16; the request is seen by rank 0 alone."""
    trainer = make(rank, world)
    plan = {4: (1, PrecisionMode.FP32), 8: (2, PrecisionMode.MIXED_BF16), 12: (3, PrecisionMode.MIXED_FP16)}
    waiting: list[PrecisionRequest] = []
    if rank == 0:
        trainer.request_source = lambda applied: next((r for r in waiting if r.generation > applied), None)
    changes, prints, scales = [], [], []
    for number in range(18):
        if rank == 0 and number in plan:
            generation, mode = plan[number]
            waiting[:] = [PrecisionRequest(generation, mode)]
        boundary = trainer.begin_step()
        if boundary.change is not None:
            changes.append(
                [boundary.change.step, boundary.change.before.wire, boundary.change.after.wire, trainer.generation]
            )
        step(trainer)
        prints.append(fingerprint(trainer))
        scales.append(float(trainer.scaler.scale_value))
    dtypes = {str(p.dtype) for p in trainer.model.parameters()}
    state = {str(v.dtype) for s in trainer.optimizer.state.values() for v in s.values()}
    names = [name for name, _ in trainer.model.named_parameters()]
    return {"changes": changes, "prints": prints, "scales": scales, "dtypes": sorted(dtypes | state), "names": names}


def tune_the_loss_scale(rank: int, world: int) -> Result:
    """Two requests that change no mode, then one to BF16 that asks for the scale as well: it has none."""
    trainer = make(rank, world)
    plan = {
        3: PrecisionRequest(1, PrecisionMode.MIXED_FP16, loss_scale_factor=1 / 3),
        6: PrecisionRequest(2, PrecisionMode.MIXED_FP16, loss_scale_factor=0.3, growth_interval=2),
        9: PrecisionRequest(3, PrecisionMode.MIXED_BF16, loss_scale_factor=0.5, growth_interval=9),
    }
    waiting: list[PrecisionRequest] = []
    if rank == 0:
        trainer.request_source = lambda applied: next((r for r in waiting if r.generation > applied), None)
    changes, scales, prints = [], [], []
    for number in range(13):
        waiting = [plan[number]] if number in plan else waiting
        change = trainer.begin_step().change
        if change is not None:
            changes.append([change.step, change.after.wire, change.generation])
        scales.append(float(trainer.scaler.scale_value))
        step(trainer)
        prints.append(fingerprint(trainer))
    return {"changes": changes, "scales": scales, "prints": prints, "state": trainer.scaler.state_dict()}


def switch_a_compiled_model(rank: int, world: int) -> Result:
    """Every mode is compiled before the first step, under DDP; then through all of them."""
    from torch._dynamo.utils import counters

    trainer = make(rank, world, PrecisionMode.FP32, compile_backend="aot_eager")
    counters.clear()
    trainer.prewarm(torch.randn(4, WIDTH), lambda model, data: model(data).square().mean(), HOT)
    warm, modes, prints = int(counters["stats"]["unique_graphs"]), [], []
    for generation, mode in enumerate((PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16, PrecisionMode.FP32), 1):
        request = PrecisionRequest(generation, mode)
        if rank == 0:
            trainer.request_source = lambda applied, waiting=request: waiting
        for _ in range(3):
            step(trainer)
            prints.append(fingerprint(trainer))
        modes.append(trainer.mode.wire)
    return {"modes": modes, "prints": prints, "warm": warm, "after": int(counters["stats"]["unique_graphs"])}


def request_inside_a_window(rank: int, world: int) -> Result:
    """A request that comes between two micro-batches waits for the boundary, and no micro-batch is lost."""
    trainer = make(rank, world, PrecisionMode.FP32, accumulation=4)
    inbox = Inbox(lambda reason, message: None)
    if rank == 0:
        trainer.request_source = inbox.pending
    modes, ends, refused = [], [], 0
    for micro in range(16):
        if micro == 5:
            inbox.offer(PrecisionRequest(7, PrecisionMode.MIXED_BF16), None)
        if micro % 4:
            try:
                trainer.begin_step()
            except RuntimeError:
                refused += 1
        modes.append(trainer.mode.wire)
        batch = torch.ones(2, WIDTH)
        loss = trainer.training_step(batch, lambda model, data: model(data).square().mean())
        modes[-1] = trainer.mode.wire
        ends.append(trainer.backward_and_step(loss))
    return {"modes": modes, "ends": ends, "refused": refused, "step": trainer.step}


def nan_on_one_rank(rank: int, world: int) -> Result:
    """Rank 1's loss is NaN in the very step that carries a request: the request arrives, all ranks skip."""
    trainer = make(rank, world)
    step(trainer)
    before, scale = fingerprint(trainer), float(trainer.scaler.scale_value)
    if rank == 0:
        trainer.request_source = lambda applied: PrecisionRequest(
            2**40 + 12345, PrecisionMode.MIXED_BF16, checkpoint=True
        )
    trainer.begin_step()
    step(trainer, float("nan") if rank == 1 else 1.0)
    boundary = trainer.begin_step()
    record = boundary.records[-1]
    assert boundary.change is not None
    assert boundary.change.request is not None
    return {
        "unchanged": fingerprint(trainer) == before,
        "scale_ratio": float(trainer.scaler.scale_value) / scale,
        "generation": boundary.change.request.generation,
        "checkpoint": boundary.checkpoint,
        "overflow": record.overflow,
        "nonfinite": record.nonfinite,
        "stats": trainer.get_stats(),
    }


def overflow_on_one_rank(rank: int, world: int) -> Result:
    """An overflow on rank 1 alone: gradients are averaged, so every rank finds it."""
    trainer = make(rank, world)
    for number in range(6):
        step(trainer, 1e38 if rank == 1 and number == 3 else 1.0)
    return {"print": fingerprint(trainer), "scale": float(trainer.scaler.scale_value), "stats": trainer.get_stats()}


def stop_on_one_rank(rank: int, world: int) -> Result:
    """Only rank 1 is asked to stop; all ranks stop at the same boundary."""
    trainer = make(rank, world, PrecisionMode.FP32)
    for number in range(10):
        if rank == 1 and number == 3:
            trainer.stop_asked = True
        if trainer.begin_step().stop:
            return {"stopped_at": trainer.step}
        step(trainer)
    return {"stopped_at": -1}


def _error(call: Callable[[], object]) -> str:
    try:
        call()
    except RankMismatchError as error:
        return str(error)
    return ""


def different_settings(rank: int, world: int) -> Result:
    """One rank was started with another batch size."""
    return {"error": _error(lambda: check_same({"batch_size": 8 + rank, "seed": 0}))}


def different_modes(rank: int, world: int) -> Result:
    """One rank runs another mode (a bug, or a patched process): noticed at the next boundary."""
    trainer = make(rank, world, PrecisionMode.FP32)
    if rank:
        trainer.modes.mode = PrecisionMode.MIXED_BF16
    step(trainer)
    return {"error": _error(trainer.begin_step)}


def different_start_modes(rank: int, world: int) -> Result:
    """One rank was configured for another mode."""
    return {"error": _error(lambda: make(rank, world, HOT[rank]))}


def late_and_twice(rank: int, world: int) -> Result:
    """Rank 0 reads two requests one after the other before the first is applied; the others never see a file."""
    trainer = make(rank, world, PrecisionMode.FP32)
    inbox = Inbox(lambda reason, message: None)
    if rank == 0:
        trainer.request_source = inbox.pending
    modes = []
    for number in range(8):
        if number == 2:
            inbox.offer(PrecisionRequest(5, PrecisionMode.MIXED_FP16), trainer.applied)
            inbox.offer(PrecisionRequest(6, PrecisionMode.MIXED_BF16), trainer.applied)
        if number == 3:  # while 6 is on its way
            inbox.offer(PrecisionRequest(7, PrecisionMode.MIXED_FP16), trainer.applied)
        trainer.begin_step()
        modes.append([trainer.mode.wire, trainer.generation])
        step(trainer)
    return {"modes": modes, "print": fingerprint(trainer)}


def activation_overflow_on_one_rank(rank: int, world: int) -> Result:
    """Rank 1 alone feeds the layers more than FP16 holds: all ranks pin the first, then the next, and go on in FP16."""
    trainer = make(rank, world, sentinel=SentinelConfig(window_steps=8, dwell_steps=64))
    assert trainer.sentinel is not None
    seen: list[object] = []
    trainer.sentinel.observer = lambda move, layer: seen.append(
        [trainer.step, move.after.label, move.reason.value, layer]
    )
    big = trainer.rank == 1
    skipped = []
    for _ in range(56):
        boundary = trainer.begin_step()
        skipped += [record.skipped for record in boundary.records]
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(trainer.step * 10 + rank))
        batch = batch * (1e5 if big else 1.0)
        loss_of = _mean_square(1e-3)
        trainer.backward_and_step(trainer.training_step(batch, loss_of, loss_of))
    return {
        "seen": seen,
        "tail": skipped[-8:],
        "mode": trainer.mode.wire,
        "pinned": trainer.get_stats()["pinned_layers"],
        "print": fingerprint(trainer),
    }


def poisoned_weights(rank: int, world: int) -> Result:
    """One rank's weights are hit by a NaN (a flipped bit): every rank asks for the rewind at one boundary."""
    trainer = make(rank, world, PrecisionMode.MIXED_BF16)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = True
    rewinds = []
    for number in range(9):
        if number == 3 and rank == world - 1:
            with torch.no_grad():
                next(trainer.model.parameters())[0, 0] = float("nan")
        if trainer.begin_step().rewind:
            rewinds.append(trainer.step)
        step(trainer)
    return {"rewinds": rewinds, "mode": trainer.mode.wire}


def poisoned_without_a_sentinel(rank: int, world: int) -> Result:
    """One rank's weights are hit by a NaN in FP16, and nothing but the scaler watches."""
    trainer = make(rank, world, sentinel=SentinelConfig(enabled=False))
    for number in range(LOOK_AFTER_STEPS + 6):
        if number == 2 and rank == world - 1:
            with torch.no_grad():
                next(trainer.model.parameters())[0, 0] = float("nan")
        step(trainer)
    stats = trainer.get_stats()
    return {"overflows": stats["overflow_steps"], "nonfinite": stats["nonfinite_steps"]}


def die_in_a_switch(rank: int, world: int) -> Result:
    """The last rank dies in the step that carries a request; see test_process_group."""
    trainer = make(rank, world, PrecisionMode.FP32)
    step(trainer)
    if rank == 0:
        trainer.request_source = lambda applied: PrecisionRequest(3, PrecisionMode.MIXED_BF16)
    trainer.begin_step()
    if rank == world - 1:
        os._exit(9)
    try:
        for _ in range(4):
            step(trainer)
    except RuntimeError as error:
        # Such a rank ends; those that do not speak with the dead one notice by this one's going.
        return {"lost": lost_peer(error), "who": find_loss(), "mode": trainer.mode.wire, "exit": True}
    return {"lost": False}


def reduce_once_a_step(rank: int, world: int) -> Result:
    """How often the ranks speak with each other in a step of four micro-batches."""
    trainer = make(rank, world, PrecisionMode.FP32, accumulation=4)
    assert trainer._ddp is not None
    reduced: list[int] = []

    def note(mean: torch.futures.Future[torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
        reduced.append(trainer.step)
        return mean

    # A lambda: DDP compares the annotations of a hook with types, and here they are text.
    trainer._ddp.register_comm_hook(None, lambda group, bucket: note(allreduce_hook(group, bucket)))
    for _ in range(3):
        step(trainer)
    return {"reduced": reduced, "print": fingerprint(trainer)}


def _train_until_lost(
    rank: int, world: int, ends: Callable[[], Result], who: int | None = None, *, seconds: float | None = None
) -> Result:
    """Rank ``who``, the last if None, does what ``ends`` says in the middle; the others train on, and say who they lost.

    From there on a collective may take so many ``seconds``; None: as many as before.
    """
    trainer = make(rank, world, PrecisionMode.FP32)
    step(trainer)
    if seconds is not None:
        dist.set_timeout(timedelta(seconds=seconds))
    if rank == (world - 1 if who is None else who):
        return ends()
    try:
        for _ in range(8):
            step(trainer)
    except RuntimeError as error:
        failed = training_failed(error)
        return {"lost": lost_peer(error), "who": find_loss(), "failed": failed, "exit": True}
    return {"lost": False}


def rank_0_dies(rank: int, world: int) -> Result:
    """With it dies the store in which the others would look."""
    return _train_until_lost(rank, world, lambda: os._exit(9), who=0)


def a_rank_dies_in_a_pod_of_two(rank: int, world: int) -> Result:
    """Of three ranks the first has a pod of its own; of the other two, which share one, the last is killed."""
    os.environ.update(LOCAL_WORLD_SIZE="1" if rank == 0 else "2", LOCAL_RANK=str(max(rank - 1, 0)))
    return _train_until_lost(rank, world, lambda: os._exit(9))


def rank_0_dies_in_a_pod_of_two(rank: int, world: int) -> Result:
    """It shares the pod with rank 1; the last has one of its own."""
    os.environ.update(LOCAL_WORLD_SIZE="2" if rank < 2 else "1", LOCAL_RANK=str(rank % 2))
    return _train_until_lost(rank, world, lambda: os._exit(9), who=0)


def last_is_stopped(rank: int, world: int) -> Result:
    """Its process is there, but does nothing more."""

    def stop() -> Result:
        os.kill(os.getpid(), signal.SIGSTOP)
        return {}

    return _train_until_lost(rank, world, stop, seconds=3)


def last_does_not_come(rank: int, world: int) -> Result:
    """It lives, and waits for something else than the others."""
    return _train_until_lost(rank, world, dict, seconds=3)


def last_leaves(rank: int, world: int) -> Result:
    """It ends by itself, as after an error of its own."""

    def leave() -> Result:
        cleanup_distributed()
        return {"exit": True}

    return _train_until_lost(rank, world, leave)


def exchange_values(rank: int, world: int) -> Result:
    """Values of different lengths arrive whole."""
    return {"all": exchange({"rank": rank, "text": "x" * (rank * 1000)})}


def reachable(rank: int, world: int) -> Result:
    """The process group works."""
    return {"rank": rank, "header": len(encode(None, leads=rank == 0, stop=False, running=PrecisionMode.FP32))}
