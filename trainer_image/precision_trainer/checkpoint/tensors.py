"""Tensors read from, or about to be written to, a file: dense, with data, finite."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

import torch

from ..errors import CheckpointError


def check_dense(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor that is not as large as it says: a stride of 0 makes 4 bytes look like terabytes.

    Raises:
        CheckpointError: it is sparse, without data, or larger than its storage.
    """
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise CheckpointError(f"{what}: expected a dense tensor with data, found {tensor.layout} on {tensor.device}")
    stored, claimed = _sizes_bytes(tensor)
    if claimed > stored:
        raise CheckpointError(f"{what}: expected at most {stored} bytes as stored, found a shape of {claimed} bytes")


def is_larger_than_stored(tensor: torch.Tensor) -> bool:
    """Whether some of its numbers lie in memory once for several, as in one made by ``expand()``."""
    if tensor.layout is not torch.strided or tensor.is_meta:
        return False
    stored, claimed = _sizes_bytes(tensor)
    return claimed > stored


def _sizes_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """What its storage has, and what its shape asks for."""
    return tensor.untyped_storage().nbytes(), tensor.numel() * tensor.element_size()


def load_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Put into ``model`` what ``format.check_model`` found good, also where ``expand()`` shows one number many times.

    Into such a buffer torch writes nothing: it is the number itself that is written here.
    """
    expanded: dict[str, torch.Tensor] = {
        name: value
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor) and is_expanded(value)
    }
    plain = {name: value for name, value in weights.items() if name not in expanded} if expanded else weights
    model.load_state_dict(plain, strict=not expanded)
    with torch.no_grad():
        for name, value in expanded.items():
            once(value, value).copy_(once(weights[name], value))


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether one number in memory is several in it."""
    return tensor.layout is torch.strided and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def once(tensor: torch.Tensor, expanded: torch.Tensor) -> torch.Tensor:
    """``tensor`` without what ``expanded``, of its shape, only repeats."""
    for dimension, stride in enumerate(expanded.stride()):
        if stride == 0 and expanded.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def nonfinite_buffers(model: torch.nn.Module) -> frozenset[str]:
    """Names of buffers and frozen parameters that hold inf or NaN now: on purpose, as an attention mask of -inf does."""
    return frozenset(name for name, value in _untrained(model) if not _finite(value))


def untrained(model: torch.nn.Module) -> frozenset[str]:
    """Names of buffers and frozen parameters: inf may be put there on purpose, also in the middle of training."""
    return frozenset(name for name, _ in _untrained(model))


def _untrained(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # What is shared is saved under each of its names.
    found = (model.named_buffers(remove_duplicate=False), model.named_parameters(remove_duplicate=False))
    return ((name, value) for name, value in itertools.chain(*found) if not value.requires_grad)


def other_types(model: torch.nn.Module) -> frozenset[str]:
    """Names of the model's floating-point tensors that are not FP32 by its author's choice: frozen weights, buffers."""
    return frozenset(
        name
        for name, value in model.state_dict().items()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float32
    )


def check_finite(
    tensors: Mapping[str, object], what: str, but: Collection[str] = (), infinite: Collection[str] = ()
) -> list[str]:
    """Refuse inf and NaN; values that are no floating-point tensors, and the names in ``but``, are left alone.

    Returns:
        Those of the names in ``infinite`` that hold inf, without NaN: that is not refused there.

    Raises:
        CheckpointError: naming the first tensors that are not finite.
    """
    found = [
        name
        for name, value in tensors.items()
        if isinstance(value, torch.Tensor) and name not in but and not _finite(value)
    ]
    wrong = [name for name in found if name not in infinite or _has_nan(tensors[name])]
    if wrong:
        raise CheckpointError(
            f"{what}: inf or NaN in {', '.join(map(str, wrong[:3]))} ({len(wrong)} of {len(tensors)}): these weights are "
            "poisoned; go back to a checkpoint tagged healthy"
        )
    return found


def _finite(tensor: torch.Tensor) -> bool:
    low, high = _extremes(tensor)
    return bool(torch.isfinite(low) & torch.isfinite(high))


def is_mask(tensor: object) -> bool:
    """Whether the only numbers in it that are not finite are -inf: no overflow leaves these alone."""
    return isinstance(tensor, torch.Tensor) and bool(torch.isfinite(_extremes(tensor)[1]))


def _has_nan(tensor: object) -> bool:
    return isinstance(tensor, torch.Tensor) and bool(torch.isnan(_extremes(tensor)[0]))


def _extremes(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest number, NaN where there is one; two zeros of what cannot hold any of these."""
    value = tensor.detach()
    if value.layout is not torch.strided:  # a graph's adjacency, say
        value = value.coalesce().values() if value.layout is torch.sparse_coo else value.values()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point() or not value.numel():
        return torch.zeros(()), torch.zeros(())
    # One pass without a temporary of the tensor's size; NaN wins in both.
    return torch.aminmax(value if value.element_size() > 1 else value.float())  # FP8 has no order of its own
