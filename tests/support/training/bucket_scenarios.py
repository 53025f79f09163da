"""What a script may do to the gradient bucket that the message rides in: called by name through process_group.py."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.values.request import PrecisionRequest
from tests.support.training.scenarios import WIDTH, Result, fingerprint, make

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
Loss = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


def _loss(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = net(data)
    return out.float().square().mean()


def _batch(number: int, rank: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * number + rank))


def _step(trainer: ExtendedFP16Trainer, number: int, loss: Loss = _loss) -> None:
    trainer.backward_and_step(trainer.training_step(_batch(number, trainer.rank), loss))


def _ddp(trainer: ExtendedFP16Trainer) -> DistributedDataParallel:
    assert isinstance(trainer.module, DistributedDataParallel)
    return trainer.module


def _ask(trainer: ExtendedFP16Trainer, request: PrecisionRequest) -> None:
    """Of rank 0, which alone reads requests."""
    if trainer.rank == 0:
        trainer.request_source = lambda applied: request if request.generation > applied else None


@contextlib.contextmanager
def _unread() -> Iterator[list[str]]:
    """The reasons for which a message was not read, as far as this rank says them."""
    text, found = io.StringIO(), list[str]()
    with contextlib.redirect_stdout(text):
        yield found
    lines = [json.loads(line) for line in text.getvalue().splitlines()]
    found += [line["reason"] for line in lines if line["event"] == "message_unread"]


def _state(trainer: ExtendedFP16Trainer) -> list[object]:
    return [trainer.mode.wire, trainer.generation]


def compressed_to_bf16(rank: int, world: int) -> Result:
    """Three requests whose numbers need more digits than BF16 has; the last one tunes the loss scale."""
    trainer = make(rank, world, FP32)
    _ddp(trainer).register_comm_hook(None, bf16_compress_hook)
    plan = {
        2: PrecisionRequest(303, BF16),
        5: PrecisionRequest(304, FP32),
        8: PrecisionRequest(2**49 + 305, FP16, loss_scale_factor=0.7, growth_interval=777),
    }
    states = []
    with _unread() as unread:
        for number in range(11):
            if number in plan:
                _ask(trainer, plan[number])
            _step(trainer, number)
            states.append(_state(trainer))
    scale = trainer.scaler.state_dict()
    tuned = [scale["scale"], scale["growth_interval"]]
    return {"states": states, "tuned": tuned, "unread": unread, "print": fingerprint(trainer)}


def damaged_for_some_steps(rank: int, world: int) -> Result:
    """A hook that rounds to 3 bits, for the first steps."""
    trainer = make(rank, world, FP32)
    rough = True

    def hook(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent = bucket.buffer().div_(world)
        work = dist.all_reduce(sent, async_op=True)
        assert work is not None

        def receive(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            (mean,) = future.value()
            return mean.copy_(mean.to(torch.float8_e5m2)) if rough else mean

        done: torch.futures.Future[torch.Tensor] = work.get_future().then(receive)
        return done

    _ddp(trainer).register_comm_hook(None, lambda _, bucket: hook(bucket))
    _ask(trainer, PrecisionRequest(47, BF16))
    states = []
    with _unread() as unread:
        for number in range(8):
            rough = number < 5
            _step(trainer, number)
            states.append(_state(trainer))
    return {"states": states, "unread": unread, "print": fingerprint(trainer)}


def not_averaged_for_some_steps(rank: int, world: int) -> Result:
    """A request and a wish to stop of rank 0, in steps whose gradients stay each rank's own."""
    return {way: _not_averaged(rank, world, way) for way in ("no_sync", "bare model", "hook")}


def _not_averaged(rank: int, world: int, way: str) -> Result:
    trainer = make(rank, world, FP32)
    own = True

    def hook(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        if not own:
            dist.all_reduce(bucket.buffer().div_(world))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def loss(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        return _loss(trainer.model if own and way == "bare model" else net, data)

    if way == "hook":
        _ddp(trainer).register_comm_hook(None, lambda _, bucket: hook(bucket))
    own = False
    _step(trainer, 0, loss)
    # For FP32, since twice its code is that of another mode.
    _ask(trainer, PrecisionRequest(1, FP32))
    trainer.stop_asked = rank == 0
    states: list[list[object]] = []
    with _unread() as unread:
        for number in range(1, 7):
            own = number < 4
            boundary = trainer.begin_step()
            with _ddp(trainer).no_sync() if own and way == "no_sync" else contextlib.nullcontext():
                _step(trainer, number, loss)
            states.append([*_state(trainer), boundary.stop])
    return {"states": states, "unread": unread}


def averaged_in_pairs(rank: int, world: int) -> Result:
    """From the second step on torch's own hook averages over two ranks each; then a request comes."""
    trainer = make(rank, world, FP32)
    pair, _ = dist.new_subgroups(group_size=2)
    state = PostLocalSGDState(None, pair, start_localSGD_iter=2)
    _ddp(trainer).register_comm_hook(state, post_localSGD_hook)
    states = []
    with _unread() as unread:
        for number in range(6):
            if number in (0, 3):
                _ask(trainer, PrecisionRequest(number + 1, FP32))
            _step(trainer, number)
            states.append(_state(trainer))
        trainer.drain()
    return {"states": states, "unread": unread}


def uneven_inputs(rank: int, world: int) -> Result:
    """One rank has less than the others, beside plain DDP; a request comes in its last step, and a wish to stop later."""
    return {f"short: {short}": _uneven(rank, world, short) for short in (1, 0)}


def _uneven(rank: int, world: int, short: int) -> Result:
    def model() -> torch.nn.Module:
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 4))

    own = 4 if rank == short else 7
    plain, ours = model(), model()
    net, optimizer = DistributedDataParallel(plain), torch.optim.SGD(plain.parameters(), lr=0.1)
    with net.join():
        for number in range(own):
            _loss(net, _batch(number, rank)).backward()
            optimizer.step()
            optimizer.zero_grad()
    config = ExtendedFP16Config(enabled=False, max_grad_norm=0.0, use_ddp=True)
    trainer = ExtendedFP16Trainer(
        ours, torch.optim.SGD(ours.parameters(), lr=0.1), config, "cpu", rank, world, allow_cpu=True
    )
    with _unread() as unread:
        with _ddp(trainer).join():
            for number in range(own):
                if number == 3:
                    _ask(trainer, PrecisionRequest(1, BF16))
                _step(trainer, number)
        same = all(torch.equal(one, other) for one, other in zip(ours.parameters(), plain.parameters(), strict=True))
        states = []
        for number in range(10, 14):
            boundary = trainer.begin_step()
            trainer.stop_asked = rank == short and number == 12
            _step(trainer, number)
            states.append([*_state(trainer), boundary.stop])
    return {"same": same, "states": states, "unread": unread}
