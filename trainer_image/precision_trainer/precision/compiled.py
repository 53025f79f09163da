"""torch.compile for a model whose precision changes while it trains.

torch guards compiled code by autocast's state: each mode is one more compilation of the same model, and a flip back to a
mode that was compiled costs nothing. So every mode that a request may ask for is compiled before the first step.

Hooks that come after the compilation are passed over in silence: they are not probed, and a replay computes the model as it
is written (step/replay.py).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import torch

from ..errors import ConfigError
from ..step.replay import AUTOCAST, Compute, undisturbed
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode


def compile_in_place(model: torch.nn.Module, backend: str) -> None:
    """Let ``model`` run through ``torch.compile``; it stays the same object, with the same names of parameters.

    Raises:
        ConfigError: torch knows no such backend.
    """
    import torch._dynamo as dynamo

    known = dynamo.list_backends(())
    if backend not in known:
        raise ConfigError(f"compile_backend={backend!r}: expected one of {', '.join(known)}; or leave it out")
    model.compile(backend=backend)


def prewarm(
    module: torch.nn.Module,
    compute: Compute,
    modes: Iterable[PrecisionMode],
    *,
    device: torch.device,
    log: JsonLog,
    begins: Callable[[PrecisionMode], None],
) -> float:
    """Compile forward and backward in each of ``modes``; weights, gradients, buffers and random state stay as they are.

    Args:
        module: as training calls it: under DDP, the wrapper. No collective: every rank compiles by itself.
        compute: the loss of a micro-batch of the size that training has, with the module given.
        modes: hot ones, the one to start in first.
        device: of the module.
        log: told of a mode that cannot be compiled.
        begins: told of each mode before it is compiled.

    Returns:
        Seconds.

    Raises:
        ConfigError: the backend cannot compile it in any mode.
    """
    from torch._dynamo.exc import TorchDynamoException
    from torch.nn.parallel import DistributedDataParallel

    started = time.monotonic()
    refused: TorchDynamoException | None = None
    compiled = False
    for mode in modes:
        begins(mode)
        dtype = AUTOCAST.get(mode)
        autocast = torch.autocast(device.type, dtype) if dtype is not None else contextlib.nullcontext()
        silent = module.no_sync() if isinstance(module, DistributedDataParallel) else contextlib.nullcontext()
        try:
            with undisturbed(module, device), silent:
                with autocast:
                    loss = compute(module)
                torch.autograd.backward(loss.float())
            compiled = True
        except Exception as error:  # noqa: BLE001  (a mode the model fails in: a switch to it will be refused)
            if isinstance(error, TorchDynamoException):
                refused = refused or error
            reason = (str(error).splitlines() or [""])[0]
            log.warning("not_compiled", f"{mode.wire} cannot be compiled ({reason}); a switch to it may be refused")
        finally:
            for parameter in module.parameters():
                parameter.grad = None
    if refused is not None and not compiled:
        raise ConfigError(
            f"torch.compile: {str(refused).splitlines()[0]}; inductor needs a C++ compiler on a CPU (g++), aot_eager "
            "none; or train without --compile"
        ) from refused
    return time.monotonic() - started
