"""The one place where torch versions differ. Supported: 2.6 (Debian trixie, the local cluster's image) to 2.15 (PyPI).

Below 2.10, ``torch.load(weights_only=True)`` has a known memory-safety flaw (CVE-2026-24747). The floor for production is
2.10; the local cluster's image is older, says so at start (``security_note``), and reads only checkpoints whose sha256
manifest was checked first.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Store, TCPStore
from torch.nn.parallel import DistributedDataParallel

SAFE_LOAD_FLOOR = (2, 10)


def torch_version() -> tuple[int, int]:
    """Major and minor of the running torch."""
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return int(major), int(minor)


def security_note() -> str | None:
    """What a person should know about this torch; None if there is nothing."""
    if torch_version() >= SAFE_LOAD_FLOOR:
        return None
    return (
        f"torch {torch.__version__} is below {SAFE_LOAD_FLOOR[0]}.{SAFE_LOAD_FLOOR[1]} (CVE-2026-24747 in "
        "weights_only loading): use it only with checkpoints this trainer wrote, on a volume nobody else writes; "
        "production images need a newer one"
    )


def wrap_ddp(
    module: torch.nn.Module,
    device: torch.device,
    *,
    find_unused_parameters: bool,
    static_graph: bool,
    broadcast_buffers: bool,
) -> DistributedDataParallel:
    """DDP that averages gradients.

    torch 2.15 renamed ``broadcast_buffers`` to ``forward_sync_buffers`` and warns about the old name.
    """
    name = "broadcast_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters:
        name = "forward_sync_buffers"
    # Any: the keyword's name depends on the version, so no signature fits both.
    options: dict[str, Any] = {
        name: broadcast_buffers,
        "find_unused_parameters": find_unused_parameters,
        "static_graph": static_graph,
    }
    devices = [device.index or 0] if device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True, **options)


def forget_forward(module: DistributedDataParallel) -> None:
    """Make ``no_sync()`` hold for the next backward pass, also after a forward pass that no backward pass followed.

    Such as a validation with gradients: DDP would go on waiting for its gradients, and take the next ones for them. All
    ranks must do it, as DDP lays its buckets out anew.
    """
    reset = getattr(module.reducer, "_reset_state", None)  # not public: since 2.2
    if reset is not None:
        reset()


def prepare_rendezvous() -> None:
    """Let ranks, and torchrun, meet on a torch that was built without libuv (Debian's): its stores would refuse to start.

    Nothing tells beforehand, so a store of our own is tried. USE_LIBUV, where it is set, decides. torch heeds it in some
    places only (not in torchrun's stores, nor in a rank's connection to them), so the class's default is turned too.
    """
    stores = importlib.import_module("torch.distributed"), importlib.import_module("torch.distributed.rendezvous")
    if "USE_LIBUV" not in os.environ:
        try:
            stores[0].TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
        except RuntimeError:
            os.environ["USE_LIBUV"] = "0"
    if os.environ.get("USE_LIBUV") == "0":
        for module in stores:
            vars(module)["TCPStore"] = functools.partial(vars(module)["TCPStore"], use_libuv=False)


def open_store(host: str, port: int, timeout_seconds: float, *, serve: bool) -> Store:
    """The store that ranks meet at: a connection to it, and the store itself where ``serve``. RuntimeError: not possible."""
    return TCPStore(
        host,
        port,
        is_master=serve,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        multi_tenant=serve,
        use_libuv=os.environ.get("USE_LIBUV") != "0",
    )
