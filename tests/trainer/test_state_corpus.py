"""Broken and hostile checkpoints: each is refused with a clear error, and none executes anything.

Every one comes with a manifest that vouches for it (size and sha256 are right), except where the damage is to be found by
the manifest: whoever can write the volume can write the manifest too.
"""

from __future__ import annotations

import collections
import hashlib
import io
import json
import os
import pickle
import random
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from precision_trainer.checkpoint import plain
from precision_trainer.checkpoint.format import TrainingState
from precision_trainer.errors import CheckpointError
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model, small_state

STEP = 10


class Run:
    """Pickles to a call of ``function``."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._call


def _saved(value: object, **options: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def _good(**changes: object) -> dict[str, object]:
    return {**small_state(STEP, small_model()), **changes}


def _archive(pickled: bytes, storages: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    """What torch.save writes, with a pickle of our choice."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", "little")
        for name, data in (storages or {}).items():
            archive.writestr(f"archive/data/{name}", data)
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


class _Rebuilt:
    """A tensor of two floats that claims another size, offset or stride."""

    def __init__(self, numel: int, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.numel = numel
        self.arguments: tuple[object, ...] = (offset, size, stride, False, collections.OrderedDict())

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return torch._utils._rebuild_tensor_v2, (_Storage(self.numel), *self.arguments)


class _Storage:
    def __init__(self, numel: int) -> None:
        self.numel = numel


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        if isinstance(value, _Storage):
            return ("storage", torch.FloatStorage, "0", "cpu", value.numel)
        return ("module", Run(os.mkdir, "executed")) if isinstance(value, _Persistent) else None


class _Persistent:
    """Saved as a persistent id that holds code."""


def _forged(value: object, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol).dump(value)
    return _archive(buffer.getvalue(), {"0": struct.pack("2f", 1.0, 2.0)})


def _weights(tensor: object) -> dict[str, object]:
    return _good(model_state_dict={"weight": tensor, "bias": torch.zeros(2)})


def _tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            data = pickle.dumps(Run(os.mkdir, "executed"))
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _optimizer(value: object) -> dict[str, object]:
    groups = torch.optim.AdamW(small_model().parameters()).state_dict()["param_groups"]
    return {"state": {0: {"exp_avg": value}}, "param_groups": groups}


_NAN, _INF = torch.full((2, 3), float("nan")), torch.tensor([[0.0, 1.0, float("inf")], [0.0, 0.0, 0.0]])
# SETITEM on a number instead of a dictionary; the class of CVE-2026-24747.
_SETITEM = b"\x80\x02K\x01K\x02K\x03s."

CORPUS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "wrong magic": lambda: b"\x89PNG" + _saved(_good())[4:],
    "text": lambda: b"not a checkpoint\n" * 100,
    "legacy tar": _tar,
    "legacy format of torch.save": lambda: _saved(_good(), _use_new_zipfile_serialization=False),
    "zip bomb": lambda: _archive(pickle.dumps({"x": b"\0" * (64 << 20)}), compression=zipfile.ZIP_DEFLATED),
    "an archive of something else": lambda: _saved([1, 2]),
    "no pickle": lambda: _archive(b""),
    "a pickle that ends early": lambda: _archive(pickle.dumps({"a": 1}, 2)[:-3]),
    "os.system": lambda: _saved({"x": Run(os.system, "mkdir executed")}),
    "builtins.eval": lambda: _saved({"x": Run(eval, "__import__('os').mkdir('executed')")}),
    "builtins.getattr": lambda: _saved({"x": Run(getattr, "executed", "mkdir")}),
    "torch.load in a checkpoint": lambda: _saved({"x": Run(torch.load, "executed")}),
    "code in a persistent id": lambda: _forged({"x": _Persistent()}),
    **{
        f"code, protocol {protocol}": (lambda p: lambda: _forged({"x": Run(os.mkdir, "executed")}, p))(protocol)
        for protocol in range(6)
    },
    "setitem on a number": lambda: _archive(_SETITEM),
    "storage smaller than said": lambda: _forged(_weights(_Rebuilt(6, 0, (2, 3), (3, 1)))),
    "shape beyond the storage": lambda: _forged(_weights(_Rebuilt(2, 0, (2, 3), (3, 1)))),
    "offset beyond the storage": lambda: _forged(_weights(_Rebuilt(2, 1 << 40, (2, 3), (0, 0)))),
    "huge shape, stride 0": lambda: _forged(_good(optimizer_state_dict=_optimizer(_Rebuilt(2, 0, (1 << 40,), (0,))))),
    "stride 0 weights": lambda: _forged(_weights(_Rebuilt(2, 0, (2, 3), (0, 0)))),
    "negative strides": lambda: _forged(_weights(_Rebuilt(2, 0, (2, 3), (-3, -1)))),
    "negative shape": lambda: _forged(_weights(_Rebuilt(2, 0, (-2, 3), (3, 1)))),
    "sparse weights": lambda: _saved(_weights(torch.zeros(2, 3).to_sparse())),
    "weights without data": lambda: _saved(_weights(torch.empty(2, 3, device="meta"))),
    "NaN weights": lambda: _saved(_weights(_NAN)),
    "inf weights": lambda: _saved(_weights(_INF)),
    "FP16 weights": lambda: _saved(_weights(torch.zeros(2, 3).half())),
    "FP64 weights": lambda: _saved(_weights(torch.zeros(2, 3).double())),
    "another shape": lambda: _saved(_weights(torch.zeros(3, 2))),
    "a weight that is a list": lambda: _saved(_weights([[0.0] * 3] * 2)),
    "a weight too few": lambda: _saved(_good(model_state_dict={"weight": torch.zeros(2, 3)})),
    "a weight too many": lambda: _saved(_good(model_state_dict={**small_model().state_dict(), "x": torch.zeros(1)})),
    "NaN moments": lambda: _saved(_good(optimizer_state_dict=_optimizer(_NAN))),
    "moments of another shape": lambda: _saved(_good(optimizer_state_dict=_optimizer(torch.zeros(7)))),
    "another optimizer": lambda: _saved(_good(optimizer_state_dict={"state": {}, "param_groups": [{"params": [0]}]})),
    "no optimizer": lambda: _saved(_good(optimizer_state_dict={})),
    "scaler state missing": lambda: _saved(_good(scaler={})),
    "scale 0": lambda: _saved(_good(scaler={"scale": 0.0, "growth_tracker": 0.0})),
    "scale inf": lambda: _saved(_good(scaler={"scale": float("inf"), "growth_tracker": 0.0})),
    "step -1": lambda: _saved(_good(step=-1)),
    "step 2^63": lambda: _saved(_good(step=2**63)),
    "step of another checkpoint": lambda: _saved(_good(step=STEP + 1)),
    "samples -1": lambda: _saved(_good(samples=-1)),
    "a mode there is not": lambda: _saved(_good(mode="int8")),
    "random state that is none": lambda: _saved(_good(rng=[{"cpu": "zz"}])),
    "random state too short": lambda: _saved(_good(rng=[{"cpu": "00"}])),
    "history of something else": lambda: _saved(_good(mode_history=[{"step": "1"}])),
    "part that is a list": lambda: _saved(_good(parts={"sentinel": []})),
}


def _put(path: Path, data: bytes) -> None:
    (path / "state.pt").write_bytes(data)
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / "manifest.json").write_text(json.dumps({"files": {"state.pt": entry}}))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good checkpoint, in the working directory that hostile code would leave its mark in."""
    monkeypatch.chdir(tmp_path)
    state: TrainingState = small_state(STEP, small_model())
    return CheckpointStore(str(tmp_path / "checkpoints"), JsonLog()).save(state)


def _refused(path: Path) -> str:
    model = small_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        CheckpointStore(str(path.parent), JsonLog()).load(STEP, model, torch.optim.AdamW(model.parameters()))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not Path("executed").exists()
    return str(caught.value)


@pytest.mark.parametrize("name", CORPUS)
def test_broken_checkpoint_is_refused_though_its_manifest_is_right(name: str, path: Path) -> None:
    _put(path, CORPUS[name]())
    message = _refused(path)
    assert "step-000000000010" in message
    assert len(message) > len(str(path)) + 20


def _matters_in_a_plain_file(name: str) -> bool:
    # Of a plain file weights and optimizer are read, nothing else; 16-bit and FP64 weights are welcome there.
    ours = ("scal", "step", "random", "samples", "a mode", "history", "part", "FP16", "FP64")
    return not name.startswith(ours)


@pytest.mark.parametrize("name", [name for name in CORPUS if _matters_in_a_plain_file(name)])
def test_broken_plain_file_is_refused(name: str, path: Path) -> None:
    plain_file = Path("old.pt")
    plain_file.write_bytes(CORPUS[name]())
    model = small_model()
    with pytest.raises(CheckpointError):
        plain.load(plain_file, model, torch.optim.AdamW(model.parameters()))
    assert not Path("executed").exists()


def test_truncated_at_every_sixteenth(path: Path) -> None:
    whole = (path / "state.pt").read_bytes()
    for part in range(16):
        torn = whole[: len(whole) * part // 16]
        (path / "state.pt").write_bytes(torn)
        assert "damaged" in _refused(path)
        _put(path, torn)  # and if the manifest were of the torn file
        assert "cannot be read safely" in _refused(path)
        _put(path, whole)


def test_bit_flips_of_200_seeds_are_found(path: Path) -> None:
    whole = (path / "state.pt").read_bytes()
    store, model = CheckpointStore(str(path.parent), JsonLog()), small_model()
    for seed in range(200):
        dice = random.Random(seed)
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        (path / "state.pt").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="sha256"):
            store.load(STEP, model)


@pytest.mark.parametrize("target", ["state.pt", "manifest.json"])
def test_link_pipe_and_directory_in_place_of_a_file_are_refused(path: Path, target: str) -> None:
    (path / target).unlink()
    (path / target).symlink_to("/etc/passwd")
    assert "cannot be opened" in _refused(path)
    (path / target).unlink()
    os.mkfifo(path / target)
    assert "not a regular file" in _refused(path)
    (path / target).unlink()
    (path / target).mkdir()
    assert "not a regular file" in _refused(path)


def test_disk_full_in_the_middle_leaves_the_older_one_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store = CheckpointStore(str(path.parent), JsonLog())
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(small_state(STEP + 10, small_model()))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
