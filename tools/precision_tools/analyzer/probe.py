"""One forward and backward pass of a person's module, watched from outside: what its numbers ask of a format.

Watched are the outputs of modules without children, and the gradients that flow back into them: under autocast those are
what is 16 bits wide. (Gradients of parameters are FP32 in the end and hide what was lost on the way.) What a function
computes between modules is not seen. The module itself is never touched: a copy runs.
"""

from __future__ import annotations

import copy
import glob
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from precision_trainer.precision.preflight import LastEntered, what_failed, where_failed
from precision_trainer.sentinel.islands import pin_by_name

from .formats import BY_NAME

Loss = Callable[[nn.Module, object], torch.Tensor]
MODES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Modes and what autocast computes in."""
_TRIES = 4
_MOST_KEPT = 8
"""Modules that are kept in FP32 because a mode fails in them. Of more the mode is not worth having."""
_EXPONENTS = 320
_OFFSET = 160
"""Histogram slot ``e + _OFFSET`` counts the numbers with 2^(e-1) <= |x| < 2^e."""


@dataclass(slots=True)
class ModuleProbe:
    """One module's outputs and the gradients of them, as FP32 computed them."""

    name: str
    kind: str
    output_max: float = 0.0
    gradient_max: float = 0.0
    gradient_exponents: torch.Tensor = field(default_factory=lambda: torch.zeros(_EXPONENTS, dtype=torch.int64))
    """Histogram by power of two, zeros left out; see _OFFSET."""
    rows: int | None = None
    """Rows of the matrix product of a linear layer: what batch and sequence come to."""

    def lost_gradients(self, format_name: str, scale: float) -> float | None:
        """Share of non-zero gradients that become 0 in a format after scaling; None if there were none."""
        total = int(self.gradient_exponents.sum())
        if not total:
            return None
        limit = math.log2(BY_NAME[format_name].smallest_subnormal / 2 / scale)
        return int(self.gradient_exponents[: max(0, math.floor(limit) + _OFFSET + 1)].sum()) / total


@dataclass(frozen=True, slots=True)
class KeepFp32:
    """A module to leave out of autocast."""

    module: str
    why: str

    @property
    def pattern(self) -> str:
        """For PRECISION_FP32_MODULES and ``fp32_modules``: a glob of this module and no other."""
        return glob.escape(self.module)


@dataclass(frozen=True, slots=True)
class ModeProbe:
    """The same pass in one mode, beside FP32."""

    mode: str
    loss: float
    loss_error: float
    """|loss - FP32's| / |FP32's|."""
    gradient_cosine: float
    """Between all parameters' gradients here and in FP32; 1 is the same direction."""
    gradient_error: float
    """Norm of the difference of the two, over FP32's norm."""
    finite: bool
    activation_bytes: int
    """Kept for the backward pass, parameters left out, each storage once."""
    failed: str = ""
    """The error of a pass that the model cannot make in this mode, and its module; the numbers are NaN then."""
    keep_fp32: tuple[KeepFp32, ...] = ()
    """Modules that fail in this mode; the pass was made with these in FP32."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What one pass showed."""

    modules: tuple[ModuleProbe, ...]
    modes: tuple[ModeProbe, ...]
    gradient_max: float
    """Largest gradient of any module's output or parameter: autocast computes both in 16 bits."""
    loss_scale: float
    """Recommended for FP16: the power of two that leaves a factor of 8 above the largest gradient, less where a pass with
    it still overflowed."""

    def passed(self, mode: str) -> ModeProbe | None:
        """The pass in ``mode``; None if there was none."""
        return next((item for item in self.modes if item.mode == mode), None)


def probe(model: nn.Module, batch: object, loss: Loss, device: torch.device) -> Probe:
    """Run the pass in FP32 with the watchers on, then once in each mode; the random state is the same every time."""
    model = copy.deepcopy(model).to(device)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        watched: dict[str, ModuleProbe] = {}
        with _watch(model, watched):
            _pass(model, batch, loss, device, mode="fp32")
        value, exact, kept = _pass(model, batch, loss, device, mode="fp32")
        reference = value, exact
        # A weight's gradient sums over all rows, in 16 bits: it can be far above the outputs' gradients.
        gradient_max = max((item.gradient_max for item in watched.values()), default=0.0)
        gradient_max = max(gradient_max, exact.abs().max().item())
        modes = [_compare("fp32", reference, reference, kept)]
        scale = _scale(gradient_max)

        def bf16() -> ModeProbe:
            value, gradients, kept = _pass(model, batch, loss, device, mode="bf16")
            return _compare("bf16", (value, gradients), reference, kept)

        def fp16() -> ModeProbe:
            nonlocal scale
            for _ in range(_TRIES):
                value, gradients, kept = _pass(model, batch, loss, device, mode="fp16", scale=scale)
                # What functions compute between modules was not seen: lower the scale, but only if backward is to blame.
                if bool(gradients.isfinite().all()) or not math.isfinite(value) or scale == 1.0:
                    break
                scale = max(1.0, scale / 4)
            return _compare("fp16", (value, gradients), reference, kept)

        modes += [_tried("bf16", bf16, model, device), _tried("fp16", fp16, model, device)]
    return Probe(tuple(watched.values()), tuple(modes), gradient_max, scale)


def _tried(mode: str, passes: Callable[[], ModeProbe], model: nn.Module, device: torch.device) -> ModeProbe:
    """What came of a mode; a kernel that does not exist for it is a finding, and its module stays in FP32."""
    keep: dict[str, KeepFp32] = {}
    # A list of names is cut at commas.
    keepable = {name for name, _ in model.named_modules() if name and "," not in name}
    with _pins_undone(model):
        while True:
            try:
                return replace(passes(), keep_fp32=tuple(keep.values()))
            except Exception as error:  # noqa: BLE001  (whatever a model raises in a mode that it was not written for)
                layer, failed = _failure(passes, model, error)
            if layer is None or layer not in keepable or layer in keep or len(keep) == _MOST_KEPT:
                nan = math.nan
                return ModeProbe(mode, nan, nan, nan, nan, finite=False, activation_bytes=0, failed=failed)
            keep[layer] = KeepFp32(layer, f"the model fails in {mode}: {failed}")
            pin_by_name(model, (keep[layer].pattern,), device)


def _failure(passes: Callable[[], object], model: nn.Module, error: Exception) -> tuple[str | None, str]:
    """The module that failed, and what failed. The backward pass leaves no trace of its modules: then it fails once more."""
    layer = where_failed(model, error)
    if layer is not None:
        return layer, what_failed(model, error)
    with LastEntered(model) as entered:
        try:
            passes()
        except Exception as again:  # noqa: BLE001  (the same one)
            layer = where_failed(model, again, entered)
            if layer is not None:
                return layer, what_failed(model, again, "backward", entered)
    return None, what_failed(model, error)


@contextmanager
def _pins_undone(model: nn.Module) -> Iterator[None]:
    """Leaves the modules' ways forward as they were."""
    own = [(vars(module), vars(module).get("forward")) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, forward in own:
            attributes.pop("forward", None)
            if forward is not None:
                attributes["forward"] = forward


def _pass(
    model: nn.Module, batch: object, loss: Loss, device: torch.device, *, mode: str, scale: float = 1.0
) -> tuple[float, torch.Tensor, int]:
    """Loss, all gradients in one FP64 vector on the CPU, and bytes kept for backward."""
    torch.manual_seed(0)
    model.zero_grad(set_to_none=True)
    dtype = MODES[mode]
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # holds them, so that no address is given out twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            value = loss(model, batch)
        size = sum(storage.nbytes() for storage in kept.values())
        kept.clear()
        torch.autograd.backward(value.float() * scale)
    gradients = [
        parameter.grad.flatten().double().cpu() / scale
        for parameter in model.parameters()
        if parameter.grad is not None
    ]
    return value.item(), torch.cat(gradients), size


def _compare(
    mode: str, found: tuple[float, torch.Tensor], reference: tuple[float, torch.Tensor], kept: int
) -> ModeProbe:
    (value, gradients), (expected, exact) = found, reference
    finite = math.isfinite(value) and bool(gradients.isfinite().all())
    cosine = error = math.nan
    if finite and exact.norm() > 0:
        cosine = (gradients @ exact / (gradients.norm() * exact.norm())).item() if gradients.norm() > 0 else 0.0
        error = ((gradients - exact).norm() / exact.norm()).item()
    return ModeProbe(mode, value, abs(value - expected) / max(abs(expected), 1e-12), cosine, error, finite, kept)


def _scale(gradient_max: float) -> float:
    if not 0.0 < gradient_max < math.inf:
        return 65536.0
    return 2.0 ** min(24, max(0, math.floor(math.log2(BY_NAME["fp16"].max / (8 * gradient_max)))))


@contextmanager
def _watch(model: nn.Module, found: dict[str, ModuleProbe]) -> Iterator[None]:
    handles = []
    for name, module in model.named_modules():
        if next(module.children(), None) is None:
            handles.append(module.register_forward_hook(_watcher(name, found)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _watcher(name: str, found: dict[str, ModuleProbe]) -> Callable[[nn.Module, tuple[object, ...], object], None]:
    def gradient_seen(item: ModuleProbe, gradient: torch.Tensor) -> None:
        magnitude = gradient.detach().abs().float()
        item.gradient_max = max(item.gradient_max, magnitude.max().item())
        exponents = torch.frexp(magnitude[magnitude > 0]).exponent.flatten() + _OFFSET
        item.gradient_exponents += torch.bincount(exponents, minlength=_EXPONENTS)[:_EXPONENTS].cpu()

    def seen(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        if not isinstance(output, torch.Tensor) or not output.is_floating_point() or not output.numel():
            return
        item = found.setdefault(name, ModuleProbe(name, type(module).__name__))
        item.output_max = max(item.output_max, output.detach().abs().max().item())
        if isinstance(module, nn.Linear) and isinstance(inputs[0], torch.Tensor):
            item.rows = inputs[0].numel() // module.in_features
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient_seen(item, gradient))  # type: ignore[no-untyped-call]

    return seen
