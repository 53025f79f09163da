"""A step of an optimizer, without what torch does around it for those who listen, while nobody does.

Around each step torch looks for hooks and opens a record for its profilers, in Python, which costs as much as some kernels
(docs/benchmarks/trainer.md). Here the record is opened by the C++ that torch has for it, and the rest is left to torch where
somebody listens. Whatever is not as torch wrote it is called as it is: a step that was replaced (learning-rate schedules
do), a proxy, another library's class, a torch that listens in another way.
"""

from __future__ import annotations

from types import CodeType, FunctionType

import torch
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

_NEEDED = (
    (torch_optimizer, ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")),
    (Optimizer, ("profile_hook_step", "_optimizer_step_code")),
    (profiler, ("_is_profiler_enabled",)),
    (torch._C._autograd, ("_profiler_enabled", "_record_function_with_args_enter", "_record_function_with_args_exit")),
)
"""What is asked of torch below. None of it is public."""


def _wrapper() -> CodeType | None:
    """What torch wraps around the step of each class of optimizers; None where this torch is not as it is known here."""
    if not all(hasattr(place, name) for place, names in _NEEDED for name in names):
        return None
    # Read, not called: somebody may have replaced it.
    code = getattr(Optimizer.profile_hook_step, "__code__", None)
    inner = [part for part in getattr(code, "co_consts", ()) if isinstance(part, CodeType)]
    return inner[0] if len(inner) == 1 and inner[0].co_filename == torch_optimizer.__file__ else None


_WRAPPER = _wrapper()
_STEP_CODE = getattr(Optimizer, "_optimizer_step_code", None)


def take_step(optimizer: Optimizer) -> None:
    """``optimizer.step()``. A hook that is registered while it runs hears the next one."""
    kind = type(optimizer)
    method = getattr(kind, "step", None)
    if not isinstance(method, FunctionType) or method.__code__ is not _WRAPPER or _heard(optimizer):
        optimizer.step()
        return
    record = torch._C._autograd._record_function_with_args_enter(f"Optimizer.step#{kind.__name__}.step")
    try:
        vars(method)["__wrapped__"](optimizer)
    finally:
        torch._C._autograd._record_function_with_args_exit(record)


def _heard(optimizer: Optimizer) -> bool:
    """Whether somebody listens to the steps of this optimizer, or took their place."""
    kind = type(optimizer)
    return bool(
        "step" in vars(optimizer)
        or kind.__getattribute__ is not object.__getattribute__
        or kind._optimizer_step_code is not _STEP_CODE
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or profiler._is_profiler_enabled
        or torch._C._autograd._profiler_enabled()
    )
