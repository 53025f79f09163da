"""A model in DDP, with the telemetry parameter beside its own, and what the trainer asks of DDP around a step."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self, SupportsIndex

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from .. import compat
from ..errors import ConfigError
from ..values.config import ExtendedFP16Config
from .channel import Channel

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


def wrap(
    model: torch.nn.Module, channel: Channel, device: torch.device, config: ExtendedFP16Config
) -> DistributedDataParallel:
    """DDP over the model and, in the same gradient bucket, the telemetry parameter of ``channel`` (agreement.py)."""
    # Python looks these up in the class: the layers of a Sequential by number (``net.module[0].weight``), and their count.
    ways_in = {name: _of_the_model(name) for name in _CONTAINER if hasattr(type(model), name)}
    kind = type(_WithTelemetry.__name__, (_WithTelemetry,), ways_in)
    module = kind(model, channel.telemetry, in_graph=config.find_unused_parameters)
    # As DDP sees the names now, and as it does after _hide().
    module.__dict__[_IGNORED] = {name for one in ignored(model) for name in (one, f"wrapped_by_precision.{one}")}
    wrapped = compat.wrap_ddp(
        module,
        device,
        find_unused_parameters=config.find_unused_parameters,
        static_graph=config.static_graph,
        broadcast_buffers=config.broadcast_buffers,
    )
    channel.joins = partial(_joins, wrapped)
    _hide(module)
    return wrapped


def _joins(wrapped: DistributedDataParallel) -> bool:
    """Whether ranks that have no input left may be missing in a step: ``wrapped.join()`` was entered, now or before."""
    return bool(getattr(getattr(wrapped, "_join_config", None), "enable", False))


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
