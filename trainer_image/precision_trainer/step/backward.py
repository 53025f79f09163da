"""The backward pass of a step, without what torch looks for in Python before each one, while there is nothing to find.

``torch.autograd.backward`` compares the shapes that it is given as symbolic ones, which takes longer than a small kernel
(docs/benchmarks/trainer.md). What is given here fits by construction, and the engine looks at it once more. Whatever is not
as torch wrote it is called as it is: a backward pass that was replaced, tensors of a class with a say of their own, a torch
that does something else before the engine runs.
"""

from __future__ import annotations

from types import CodeType, FunctionType

import torch
from torch import _C, autograd
from torch.overrides import has_torch_function

_NAMES = frozenset((
    "FutureWarning", "GradientEdge", "Mapping", "RuntimeError", "Tensor", "TypeError", "_C", "__name__",
    "_are_functorch_transforms_active", "_engine_run_backward", "_make_grads", "_tensor_or_tensors_to_tuple", "backward",
    "cast", "dict", "graph", "handle_torch_function", "has_torch_function", "is_tensor_like", "isinstance", "len", "torch",
    "tuple", "type", "values", "warn", "warnings",
))  # fmt: skip
"""What torch's function uses, in the versions that are known here: one that uses more may do something else."""
_OPTIONS = ("allow_unreachable", "accumulate_grad")
"""How it calls the engine."""
_BACKWARD = autograd.backward
_CODE = getattr(_BACKWARD, "__code__", None)


def _known() -> bool:
    """Whether torch's function is the one that is known here. Read, not called: somebody may have replaced it."""
    return (
        type(_BACKWARD) is FunctionType
        and isinstance(_CODE, CodeType)
        and _CODE.co_filename == autograd.__file__
        and _NAMES.issuperset(_CODE.co_names)
        and {"_engine_run_backward", "_are_functorch_transforms_active"} <= {*_CODE.co_names}
        and _OPTIONS in _CODE.co_consts
    )


_KNOWN = _known()


def run_backward(roots: tuple[torch.Tensor, ...], gradients: tuple[torch.Tensor, ...]) -> None:
    """``torch.autograd.backward(roots, gradients)``.

    Args:
        roots: the loss, 0-dim, and what else the pass begins at.
        gradients: of each root, of its shape and type.
    """
    if (
        not _KNOWN
        or autograd.backward is not _BACKWARD
        or _BACKWARD.__code__ is not _CODE
        or has_torch_function(roots)
        or roots[0].dim()
        or _C._are_functorch_transforms_active()
    ):
        if len(roots) == 1:  # as Tensor.backward() gives them: who listens may know no other way
            autograd.backward(roots[0], gradients[0])
        else:
            autograd.backward(roots, gradients)
        return
    # Looked up at every call, as torch's function does.
    autograd._engine_run_backward(  # type: ignore[attr-defined]  # not public
        roots, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
    )
