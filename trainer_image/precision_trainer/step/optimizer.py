"""A step of an optimizer, without what torch does around it for those who listen, while nobody does.

Around each step torch looks for hooks and opens a record for its profilers, in Python, which costs as much as some kernels
(docs/benchmarks/trainer.md). Here the record is opened by the C++ that torch has for it, and the rest is left to torch where
somebody listens. Whatever is not as torch wrote it is called as it is: a step that was replaced (learning-rate schedules
do), a proxy, another library's class, a torch that listens in another way.
"""

from __future__ import annotations

from types import CodeType, FunctionType, MethodType

import torch
from torch.autograd import profiler
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

_NEEDED = (
    (torch_optimizer, ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")),
    (Optimizer, ("profile_hook_step", "_optimizer_step_code")),
    (profiler, ("_is_profiler_enabled", "record_function")),
    (torch._C._autograd, ("_profiler_enabled", "_record_function_with_args_enter", "_record_function_with_args_exit")),
)
"""What is asked of torch below. Little of it is public."""
_NAMES = frozenset((
    "Optimizer", "RuntimeError", "__class__", "__name__", "_global_optimizer_post_hooks", "_global_optimizer_pre_hooks",
    "_optimizer_step_code", "_optimizer_step_post_hooks", "_optimizer_step_pre_hooks", "autograd", "cast", "chain",
    "isinstance", "len", "profiler", "record_function", "torch", "tuple", "values",
))  # fmt: skip
"""What torch's wrapper uses, in the versions that are known here: one that uses more may tell somebody else."""


def _wrapper() -> CodeType | None:
    """What torch wraps around the step of each class of optimizers; None where this torch is not as it is known here."""
    if not all(hasattr(place, name) for place, names in _NEEDED for name in names):
        return None
    # Read, not called: somebody may have replaced them.
    outer, told = (
        getattr(getattr(Optimizer, name), "__code__", None) for name in ("profile_hook_step", "_optimizer_step_code")
    )
    inner = [part for part in getattr(outer, "co_consts", ()) if isinstance(part, CodeType)]
    files = {getattr(code, "co_filename", "") for code in (told, *inner)}
    if (
        len(inner) != 1
        or files != {torch_optimizer.__file__}
        or getattr(_RECORD, "__module__", "") != profiler.__name__
    ):
        return None
    return inner[0] if _NAMES.issuperset(inner[0].co_names) and "func" in inner[0].co_freevars else None


# Held here, because each step looks for it three times.
_AUTOGRAD = torch._C._autograd
_STEP_CODE = getattr(Optimizer, "_optimizer_step_code", None)
_RECORD = getattr(profiler, "record_function", None)
_WRAPPER = _wrapper()


def take_step(optimizer: Optimizer) -> None:
    """``optimizer.step()``. A hook that is registered while it runs hears the next one."""
    step: object = optimizer.step
    function = step.__func__ if type(step) is MethodType and step.__self__ is optimizer else None
    if type(function) is not FunctionType or function.__code__ is not _WRAPPER or _heard(optimizer):
        step()  # type: ignore[operator]
        return
    # Not ``__wrapped__``: a decorator that copies another step's documentation has overwritten it.
    own = (function.__closure__ or ())[_WRAPPER.co_freevars.index("func")].cell_contents
    record = _AUTOGRAD._record_function_with_args_enter(f"Optimizer.step#{optimizer.__class__.__name__}.step")
    try:
        own(optimizer)
    finally:
        _AUTOGRAD._record_function_with_args_exit(record)


def _heard(optimizer: Optimizer) -> bool:
    """Whether somebody listens to the steps of this optimizer."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
        or getattr(optimizer._optimizer_step_code, "__func__", None) is not _STEP_CODE
        or profiler._is_profiler_enabled
        or _AUTOGRAD._profiler_enabled()
        or getattr(profiler, "_active_cuspy_profiler_observer", None) is not None
        or profiler.record_function is not _RECORD
    )
