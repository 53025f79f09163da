"""Tensors read from, or about to be written to, a file: dense, on the CPU, finite."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

import torch

from ..errors import CheckpointError


def check_dense(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor that is not as large as it says: a stride of 0 makes 4 bytes look like terabytes.

    Raises:
        CheckpointError: it is sparse, without data, or larger than its storage.
    """
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise CheckpointError(f"{what}: expected a dense tensor with data, found {tensor.layout} on {tensor.device}")
    stored, claimed = tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()
    if claimed > stored:
        raise CheckpointError(f"{what}: expected at most {stored} bytes as stored, found a shape of {claimed} bytes")


def nonfinite_buffers(model: torch.nn.Module) -> frozenset[str]:
    """Names of buffers and frozen parameters that hold inf or NaN now: on purpose, as an attention mask of -inf does."""
    # What is shared is saved under each of its names.
    found = (model.named_buffers(remove_duplicate=False), model.named_parameters(remove_duplicate=False))
    return frozenset(name for name, value in itertools.chain(*found) if not value.requires_grad and not _finite(value))


def other_types(model: torch.nn.Module) -> frozenset[str]:
    """Names of the model's floating-point tensors that are not FP32 by its author's choice: frozen weights, buffers."""
    return frozenset(
        name
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float32
    )


def check_finite(tensors: Mapping[str, object], what: str, but: Collection[str] = ()) -> None:
    """Refuse inf and NaN; values that are no floating-point tensors, and the names in ``but``, are left alone.

    Raises:
        CheckpointError: naming the first tensors that are not finite.
    """
    wrong = [
        name
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor) and name not in but and not _finite(value)
    ]
    if wrong:
        raise CheckpointError(
            f"{what}: inf or NaN in {', '.join(map(str, wrong[:3]))} ({len(wrong)} of {len(tensors)}): these weights are "
            "poisoned; go back to a checkpoint tagged healthy"
        )


def _finite(tensor: torch.Tensor) -> bool:
    value = tensor.detach()
    if value.layout is not torch.strided:  # a graph's adjacency, say
        value = value.coalesce().values() if value.layout is torch.sparse_coo else value.values()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point() or not value.numel():
        return True
    # One pass without a temporary of the tensor's size; NaN wins in both.
    low, high = torch.aminmax(value if value.element_size() > 1 else value.float())  # FP8 has no order of its own
    return bool(torch.isfinite(low) & torch.isfinite(high))
