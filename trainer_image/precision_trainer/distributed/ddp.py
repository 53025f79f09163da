"""The process group: joining, leaving, and making sure that all ranks were started alike."""

from __future__ import annotations

import atexit
import contextlib
import copy
import dataclasses
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Self, SupportsIndex

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from .. import compat
from ..errors import ConfigError, RankMismatchError
from ..names import DEFAULT_PORT
from .rendezvous import Place, call_roll
from .watch import PeerWatch

UNUSED = (
    "parameters got no gradient in the last step, and DDP waits for all: expected a loss that depends on every parameter; "
    "set find_unused_parameters=True (--find-unused-parameters of train) where the parameters in use change from step to "
    "step, static_graph=True (--static-graph) where they never do, or freeze the unused ones with requires_grad_(False)"
)
"""What a person does where DDP averages nothing: its own advice names an argument that nobody here passes."""
_OWN = ("wrapped_by_precision", "precision_telemetry", "precision_in_graph", "precision_in_step")
_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""Where DDP looks for the names of what it leaves alone."""
_CONTAINER = ("__getitem__", "__len__", "__iter__", "__contains__")
_watches: list[PeerWatch] = []
"""Of the process group that this process is in, as torch keeps that one: at most one."""


def init_distributed(backend: str | None = None, timeout_seconds: float = 120.0) -> tuple[int, int]:
    """Join the process group that torchrun (or ``precision-trainer launch``) describes in the environment.

    Args:
        backend: ``nccl`` or ``gloo``; by default nccl where there is CUDA.
        timeout_seconds: how long a rank waits for the others before it gives up with an error: for rank 0, from then on
            for the rest, and later in every collective.

    Returns:
        (rank, world_size); (0, 1), without a process group, if WORLD_SIZE is not set.

    Raises:
        ConfigError: the environment is incomplete or wrong, or ranks are missing; it names them.
    """
    world_size = _whole("WORLD_SIZE", 1)
    rank = _whole("RANK", 0)
    if not 0 <= rank < world_size:
        raise ConfigError(f"RANK={rank}: expected a number in [0, {world_size - 1}] for WORLD_SIZE={world_size}")
    if world_size == 1 and "RANK" not in os.environ:
        return 0, 1
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", DEFAULT_PORT)
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    if backend == "nccl":
        torch.cuda.set_device(_whole("LOCAL_RANK", rank))
    compat.prepare_rendezvous()
    place = Place.from_env()
    roll = call_roll(place, rank, world_size, timeout_seconds)
    try:
        dist.init_process_group(
            backend,
            store=PrefixStore(roll.name, roll.store),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_seconds),
        )
        _watches.append(PeerWatch(place, roll, rank, world_size))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"rank {rank} of {world_size} could not connect to the others within {timeout_seconds:g} s ({error}); all of "
            f"them met at {place}, so look whether they reach each other at other ports too"
        ) from error
    # A script that forgets to clean up: a thread that wakes while the interpreter is finalised would abort the process.
    atexit.register(_leave)
    return rank, world_size


def cleanup_distributed() -> None:
    """Leave the process group; harmless if it was never joined."""
    _leave()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def lost_peer(error: RuntimeError) -> bool:
    """Whether a collective failed because another rank is gone or silent (gloo and NCCL say so in words only).

    Never where there is none: what a data loader says of its workers reads alike.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return False
    text = str(error).lower()
    return any(word in text for word in ("connection closed by peer", "connection reset", "timed out", "gloo", "nccl"))


def _leave() -> None:
    while _watches:
        _watches.pop().close()


def find_loss() -> str:
    """Who is missing, after :func:`lost_peer`, as a clause. Takes about two seconds; never hangs."""
    return str(_watches[-1].find()) if _watches else "it is gone or silent"


def training_failed(error: Exception) -> bool:
    """Whether training failed by ``error``. It need not have where a peer of another pod is gone: its node may be."""
    if not _watches or not isinstance(error, RuntimeError) or not lost_peer(error) or in_one_pod():
        return True
    loss = _watches[-1].find()
    # A process that was killed in this pod, such as for its memory, took no node with it.
    return loss.of_training or (bool(loss.missing) and all(rank in _of_this_pod() for rank in loss.missing))


def in_one_pod() -> bool:
    """Whether all ranks are in this pod: then no node of another one can be gone."""
    return _whole("LOCAL_WORLD_SIZE", 0) == _whole("WORLD_SIZE", 1)


def _of_this_pod() -> range:
    first = _whole("RANK", 0) - _whole("LOCAL_RANK", 0)
    return range(first, first + _whole("LOCAL_WORLD_SIZE", 0))


def _whole(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdigit():
        raise ConfigError(
            f"{name}={text!r}: expected a whole number; start ranks with torchrun or precision-trainer launch"
        )
    return int(text)


def exchange(value: Mapping[str, object]) -> list[dict[str, object]]:
    """Every rank's ``value``, by rank. JSON inside; a collective, so for start-up and checkpoints, never for a step."""
    if not dist.is_initialized():
        return [dict(value)]
    # all_gather_object would pickle; JSON text in a tensor can only ever be read as data.
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    length = torch.tensor([text.numel()], device=device)
    lengths = [torch.zeros_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    sizes = [int(size.item()) for size in lengths]
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: text.numel()] = text.to(device)
    parts = [torch.zeros_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [json.loads(bytes(part[:size].tolist())) for part, size in zip(parts, sizes, strict=True)]


def check_same(setting: Mapping[str, object]) -> None:
    """Fail on every rank, naming the settings, if the ranks were not started alike.

    Raises:
        RankMismatchError: with each differing setting and its value by rank.
    """
    everyone = exchange(setting)
    names = sorted({name for one in everyone for name in one})
    wrong = []
    for name in names:
        values = [one.get(name) for one in everyone]
        if any(value != values[0] for value in values):
            wrong.append(f"{name}: " + ", ".join(f"rank {rank} has {value!r}" for rank, value in enumerate(values)))
    if wrong:
        raise RankMismatchError(
            "ranks disagree on " + "; ".join(wrong) + "; start all ranks with the same flags and image"
        )


def wrap(
    model: torch.nn.Module,
    telemetry: torch.nn.Parameter,
    device: torch.device,
    *,
    find_unused_parameters: bool = False,
    static_graph: bool = False,
    broadcast_buffers: bool = False,
) -> DistributedDataParallel:
    """DDP over the model and, in the same gradient bucket, the telemetry parameter (agreement.py)."""
    # Python looks these up in the class: the layers of a Sequential by number (``net.module[0].weight``), and their count.
    ways_in = {name: _of_the_model(name) for name in _CONTAINER if hasattr(type(model), name)}
    kind = type(_WithTelemetry.__name__, (_WithTelemetry,), ways_in)
    module = kind(model, telemetry, in_graph=find_unused_parameters)
    # As DDP sees the names now, and as it does after _hide().
    module.__dict__[_IGNORED] = {name for one in ignored(model) for name in (one, f"wrapped_by_precision.{one}")}
    wrapped = compat.wrap_ddp(
        module,
        device,
        find_unused_parameters=find_unused_parameters,
        static_graph=static_graph,
        broadcast_buffers=broadcast_buffers,
    )
    _hide(module)
    return wrapped


def _hide(module: _WithTelemetry) -> None:
    """Show what the model is made of as ``module``'s own, by the model's names, and the telemetry to nobody.

    DDP has taken what it reduces. A penalty over ``net.parameters()`` would write into the message.
    """
    own, model = module.__dict__, module.wrapped_by_precision
    own["wrapped_by_precision"], own["precision_telemetry"] = model, module.precision_telemetry
    for kept in ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules"):
        own[kept] = vars(model)[kept]


@contextlib.contextmanager
def alone(wrapped: DistributedDataParallel) -> Iterator[None]:
    """A forward pass without another rank: DDP broadcasts no buffers before it, and looks for no unused parameters after."""
    searches, wrapped.find_unused_parameters = wrapped.find_unused_parameters, False
    syncs, wrapped.require_forward_param_sync = wrapped.require_forward_param_sync, False
    try:
        yield
    finally:
        wrapped.find_unused_parameters, wrapped.require_forward_param_sync = searches, syncs


def reduced(wrapped: DistributedDataParallel) -> None:
    """What DDP notes after a step whose gradients it has reduced: before the next one buffers are broadcast."""
    wrapped.require_forward_param_sync = True


def ignored(model: torch.nn.Module) -> frozenset[str]:
    """Names of parameters and buffers that DDP was told to leave alone."""
    names: Iterable[str] = getattr(model, _IGNORED, ())
    return frozenset(names)


def joins(wrapped: DistributedDataParallel) -> bool:
    """Whether ranks that have no input left may be missing in a step: ``wrapped.join()`` was entered, now or before."""
    return bool(getattr(getattr(wrapped, "_join_config", None), "enable", False))


def sync_buffers(wrapped: DistributedDataParallel) -> None:
    """What DDP does before a forward pass, by itself: rank 0's buffers go to all ranks, where that was asked for."""
    if wrapped.will_sync_module_buffers():  # type: ignore[no-untyped-call]
        wrapped._sync_buffers()  # type: ignore[no-untyped-call]


class OwnStep:
    """Around the forward pass of a trainer's own step. Says which of our settings an error of DDP is about."""

    def __init__(self, wrapped: DistributedDataParallel | None) -> None:
        """For what :func:`wrap` returned; None without DDP."""
        module = wrapped.module if wrapped is not None else None
        self._module = module if isinstance(module, _WithTelemetry) else None

    def __enter__(self) -> None:
        """The telemetry parameter is a root of the backward pass to come."""
        if self._module is not None:
            self._module.precision_in_step = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Translate."""
        if self._module is not None:
            self._module.precision_in_step = False
        if isinstance(error, RuntimeError) and "finished reduction in the prior iteration" in str(error):
            raise ConfigError(UNUSED) from error


class _WithTelemetry(torch.nn.Module):
    """Puts the telemetry parameter beside the model's own, so that DDP takes it into its bucket.

    A loss may use parts of the model (``net.module.head(x)``): whatever is not of this class is the model's. Hence the long
    names of its own.
    """

    def __init__(self, model: torch.nn.Module, telemetry: torch.nn.Parameter, *, in_graph: bool) -> None:
        super().__init__()
        self.wrapped_by_precision = model
        self.precision_telemetry = telemetry
        self.precision_in_graph = in_graph
        self.precision_in_step = False
        """Outside its own step the model stands in another one's loss (GAN): DDP waits for the telemetry there too."""

    def __getattr__(self, name: str) -> torch.Tensor | torch.nn.Module:
        """The model's own attributes: torch asks here for what the instance does not have itself."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _OWN:
                raise
        found: torch.Tensor | torch.nn.Module = getattr(self.wrapped_by_precision, name)
        return found

    def __setattr__(self, name: str, value: torch.Tensor | torch.nn.Module) -> None:
        """What a loss keeps in the model (``net.module.hidden = h``) is the model's too."""
        if name in _OWN or name in self.__dict__ or hasattr(torch.nn.Module, name):
            super().__setattr__(name, value)
        else:
            setattr(self.wrapped_by_precision, name, value)

    @property  # type: ignore[override]
    def __class__(self) -> type[torch.nn.Module]:
        """The model's, for isinstance: ``type()`` tells the two apart."""
        return self.wrapped_by_precision.__class__

    @__class__.setter
    def __class__(self, kind: type[torch.nn.Module]) -> None:
        self.wrapped_by_precision.__class__ = kind

    # A script keeps the model, or a copy of it, as it does with DDP's own: torch.save, copy.deepcopy.
    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        """The bare model is pickled, by names that a reader without this package has too."""
        return operator.getitem, ((self.wrapped_by_precision,), 0)

    def __copy__(self) -> torch.nn.Module:
        """Of the bare model."""
        return copy.copy(self.wrapped_by_precision)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        """Of the bare model."""
        return copy.deepcopy(self.wrapped_by_precision, memo)

    # torch asks the module itself for these, and not for what it is made of.
    def train(self, mode: bool = True) -> Self:
        """As the model does it."""
        super().train(mode)
        self.wrapped_by_precision.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (torch's)
        """As the model gives it."""
        return self.wrapped_by_precision.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (torch's)
        """As the model takes it."""
        return self.wrapped_by_precision.load_state_dict(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> object:
        """The model's forward, unchanged."""
        output: object = self.wrapped_by_precision(*args, **kwargs)
        if (self.precision_in_step and not self.precision_in_graph) or not torch.is_grad_enabled():
            return output
        # DDP looks for parameters that the outputs do not depend on, and takes them for unused: not this one.
        return tree_map(self._tied, output)

    def _tied(self, value: object) -> object:
        # DDP looks into these; pytree takes those that nobody registered for leaves.
        if isinstance(value, dict):
            entries = copy.copy(value)
            entries.update({key: tree_map(self._tied, part) for key, part in value.items()})
            return entries
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            twin = copy.copy(value)
            for part in dataclasses.fields(value):
                # Not setattr: it may be frozen.
                object.__setattr__(twin, part.name, tree_map(self._tied, getattr(value, part.name)))
            return twin
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        tied: torch.Tensor = _Tie.apply(value, self.precision_telemetry)
        return tied


def _of_the_model(name: str) -> Callable[..., object]:
    def method(wrapper: _WithTelemetry, *args: object) -> object:
        found: object = getattr(wrapper.wrapped_by_precision, name)(*args)
        return found

    return method


class _Tie(torch.autograd.Function):
    """The identity of a tensor, in whose graph a parameter stands; no gradient flows to that."""

    @staticmethod
    def forward(ctx: object, value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        return value.clone()  # not a view: a loss may change it in place

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None
