"""Computing a micro-batch beside training, so that training does not notice.

Only a function that was given for it is ever computed again, never the loss that a script trains with: that one may talk to
other ranks, draw data, or carry a state that is not ours. What is given is held to it: a collective, a draw from a generator
of the script's own, or a write to a tensor that was there before, ends the replay before it happens. A tensor or a number
that it assigns to its own object, or to a variable that it closes over, is put back, and ends the replay too. A model with
hooks of the script's own is not computed again: they would run once more, and may keep what they see.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch._ops import OpOverload
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import TrainerError
from ..values.modes import PrecisionMode
from .carried import PLAIN, Collections, kept, own_collections

Batch = TypeVar("Batch")
AUTOCAST = {PrecisionMode.MIXED_FP16: torch.float16, PrecisionMode.MIXED_BF16: torch.bfloat16}
"""What forward and backward are cast to; a mode that is not here is computed as it is."""
Compute = Callable[[torch.nn.Module], torch.Tensor]
"""Computes the loss of one micro-batch with the model it is given."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Of a module; torch has the same names for hooks of all modules, after "_global"."""
_KNOWN_AUTHORS = frozenset({"torch", __name__.partition(".")[0], "precision_tools"})
"""Packages whose hooks leave nothing behind that is not put back: torch's write to buffers (spectral norm)."""
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "c10d_functional", "_dtensor"})


class ReplayError(TrainerError):
    """A micro-batch cannot be computed again as it was, or not without touching what is not ours."""


class Replay:
    """A micro-batch of a step, the last one, and the pure function that computes its loss again."""

    def __init__(
        self, replay_fn: Callable[[torch.nn.Module, Batch], torch.Tensor], batch: Batch, *, whole_step: bool
    ) -> None:
        """Keep ``batch`` as it is now; ``whole_step``: the step has no other micro-batch."""
        self.whole_step = whole_step
        self._function: Callable[..., torch.Tensor] = replay_fn
        self._batch: object = batch
        self._tensors = tensors_in(batch)
        self._versions = list(map(version, self._tensors))

    def __call__(self, model: torch.nn.Module) -> torch.Tensor:
        """The loss, 0-dim.

        Raises:
            ReplayError: the batch was written to since, or the function carries a state from call to call.
        """
        if list(map(version, self._tensors)) != self._versions:
            raise ReplayError("the batch was written to after the step; leave it alone, or give no replay_fn")
        with kept(self._function, model) as changed:
            loss = self._function(model, self._batch)
        if changed:
            raise ReplayError(
                f"{', '.join(sorted(changed)[:3])} changed: a replay_fn carries nothing from call to call"
            )
        return loss


def eagerly() -> contextlib.AbstractContextManager[object]:
    """Compute in here as the modules are written, so that hooks see every layer."""
    if "torch._dynamo" not in sys.modules:  # then nothing is compiled, and importing it takes seconds
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether torch.compile runs ``model`` or a part of it: then hooks that come later are passed over, or compile it anew.

    A function of the script's own that was compiled, and calls the model, is seen only if a module has a ``forward`` of its
    own, as a pinned one has: there alone torch guards its code by the hooks.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    if any(
        module._compiled_call_impl is not None or hasattr(module.forward, "_torchdynamo_orig_callable")
        for module in model.modules()
    ):
        return True
    compiles = sys.modules["torch._dynamo"].utils.counters["stats"]["unique_graphs"] > 0
    return compiles and any("forward" in vars(module) for module in model.modules())


class ForwardState:
    """What a forward pass changes, as it is now: random state, buffers (running statistics), attributes of modules, and what
    lists, dicts, sets and deques among these hold."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        """Of ``model``, and of the generators that it draws from on ``device``."""
        self._random = torch.get_rng_state()
        self._random_on = (device, torch.cuda.get_rng_state(device)) if device.type == "cuda" else None
        self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._attributes = [
            (names, dict(names)) for module in model.modules() for names in (vars(module), module._buffers)
        ]
        self._collections = Collections(value for module in model.modules() for value in own_collections(module))

    def restore(self) -> None:
        """Put it back; may be repeated."""
        torch.set_rng_state(self._random)
        if self._random_on is not None:
            device, state = self._random_on
            torch.cuda.set_rng_state(state, device)
        for names, before in self._attributes:
            for name in names.keys() - before.keys():
                del names[name]
            names.update(before)
        self._collections.put_back()
        for buffer, value in self._buffers:
            # What refuses to be written (an expanded tensor, one of inference mode) did so in the forward pass too.
            with contextlib.suppress(RuntimeError), torch.no_grad():
                buffer.copy_(value)


def hooked_by_others(model: torch.nn.Module) -> str | None:
    """Name of a parameter or module whose hooks a replay would run, neither torch's nor ours; None if there is none."""
    for name, parameter in model.named_parameters():
        # Those after accumulation stay asleep: autograd.grad accumulates nothing.
        if _any_of_others(parameter._backward_hooks):
            return name
    for name, module in model.named_modules():
        if any(_any_of_others(vars(module).get(hooks)) for hooks in _HOOKS):
            return name or "the model"
    everywhere = vars(torch.nn.modules.module)
    return "every module" if any(_any_of_others(everywhere.get(f"_global{hooks}")) for hooks in _HOOKS) else None


def _any_of_others(hooks: Mapping[int, object] | None) -> bool:
    return bool(hooks) and any(_author(hook) not in _KNOWN_AUTHORS for hook in (hooks or {}).values())


def _author(hook: object) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return str(getattr(hook, "__module__", "")).partition(".")[0]


@contextlib.contextmanager
def undisturbed(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Leave what a forward pass changes as it was; also after an error."""
    before = ForwardState(model, device)
    try:
        yield
    finally:
        before.restore()


@contextlib.contextmanager
def replaying(model: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Where replays are computed. Raises ReplayError at what a pure function would not do, and for hooks of the script's."""
    hooked = hooked_by_others(model)
    if hooked is not None:
        raise ReplayError(
            f"{hooked} has a hook of the script's own, which would run once more and may keep what it saw"
        )
    with undisturbed(model, device), eagerly(), _Pure(list(model.buffers())):
        yield


class _Pure(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses collectives, and writes to tensors that were made before, but for ``writable`` ones."""

    def __init__(self, writable: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = list(writable)
        self._writable = {_storage(tensor) for tensor in writable}

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func.namespace in _COLLECTIVES:
            raise ReplayError(f"{func} talks to other ranks; a replay_fn computes by itself")
        if any(isinstance(value, torch.Generator) and _is_own(value) for value in (*args, *kwargs.values())):
            raise ReplayError(f"{func} draws from a generator of the script's own; a replay_fn draws no data")
        schema = func._schema
        if schema.is_mutable:
            given = {
                **{argument.name: value for argument, value in zip(schema.arguments, args, strict=False)},
                **kwargs,
            }
            for argument in schema.arguments:
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._check_writes(func, given.get(argument.name))
        out: object = func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default or all(result.alias_info is None for result in schema.returns):
            self._writable.update(_storage(leaf) for leaf in tensors_in(out))
        return out

    def _check_writes(self, func: OpOverload, value: object) -> None:
        if any(_storage(tensor) not in self._writable for tensor in tensors_in(value)):
            raise ReplayError(f"{func} writes to a tensor that was there before; a replay_fn changes nothing")


def _is_own(generator: torch.Generator) -> bool:
    """Not one of torch's, whose state is put back."""
    return all(generator is not known for known in (torch.default_generator, *torch.cuda.default_generators))


def version(tensor: torch.Tensor) -> int:
    """Counts the writes to it; 0 where torch does not count them."""
    return 0 if tensor.is_inference() else tensor._version


def tensors_in(value: object) -> list[torch.Tensor]:
    """All that a value holds. Usual batches are not given to pytree: that takes as long as a kernel, in every step."""
    parts: Iterable[object] = (value,)
    if type(value) is dict:
        parts = value.values()
    elif isinstance(value, tuple | list) and type(value) in (tuple, list):
        parts = value
    found: list[torch.Tensor] = []
    for part in parts:
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif type(part) not in PLAIN:
            return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return found


def _storage(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
