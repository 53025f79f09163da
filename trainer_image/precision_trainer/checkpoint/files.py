"""One checkpoint on disk: written beside, synced, renamed; checked before anything in it is read.

``step-000000000800/`` holds ``state.pt``, ``manifest.json`` (size and sha256) and, once it has proven itself,
``healthy.json``. A reader sees all of it or none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader, BufferedWriter
from pathlib import Path

import torch

from .. import compat
from ..errors import CheckpointError, UnreadableError
from .format import FORMAT, TrainingState

STATE, MANIFEST, HEALTHY = "state.pt", "manifest.json", "healthy.json"
TEMPORARY = ".tmp-"
_MAX_JSON_BYTES = 1 << 16
_NOT_OURS = (errno.ENOENT, errno.ELOOP)
"""A file that is missing, or a link: what the disk says of it will not change."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``manifest.json`` says."""

    size_bytes: int
    sha256: str
    facts: dict[str, object]
    """All of it, for people."""


def write(final: Path, state: TrainingState, permit: Callable[[], None] = lambda: None) -> None:
    """Write a checkpoint directory, complete on disk when this returns; replaces one that stands there.

    Args:
        final: where.
        state: what.
        permit: asked when all is written, before it is put in place; raises if it must not be.

    Raises:
        OSError: the disk refuses. Nothing is left behind.
    """
    # A name of its own: two pods may have the same process id.
    temporary = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{final.name}-", dir=final.parent))
    try:
        with open(temporary / STATE, "wb") as file:
            _save(state, file)
            _sync(file)
        size, digest = _digest(temporary / STATE)
        manifest = {
            "format": FORMAT, "step": state["step"], "mode": state["mode"], "generation": state["generation"],
            "torch": torch.__version__, "world_size": len(state["rng"]), "time": time.time(),
            "files": {STATE: {"bytes": size, "sha256": digest}},
        }  # fmt: skip
        _write_json(temporary / MANIFEST, manifest)
        os.chmod(temporary, 0o755)
        _sync_directory(temporary)
        permit()
        if final.exists():
            # The same step saved again (resumed and stopped at once). What stands there may be the broken one:
            # replace it.
            shutil.rmtree(final)
        os.rename(temporary, final)
        _sync_directory(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _save(state: TrainingState, file: BufferedWriter) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # On a full disk torch's archive fails once more when it is closed, with an error of its own.
        refused = error.__context__
        raise refused if isinstance(refused, OSError) else OSError(str(error).splitlines()[0]) from error


def write_tag(path: Path, facts: Mapping[str, object]) -> None:
    """Tag the checkpoint ``path`` as healthy, atomically. The tag names the state's sha256: it is of no other state.

    Raises:
        OSError: the disk refuses. CheckpointError: there is no such checkpoint.
    """
    digest = read_manifest(path).sha256
    replace_json(path / HEALTHY, {**facts, "sha256": digest, "time": time.time()})
    _sync_directory(path)


def is_healthy(path: Path) -> bool | None:
    """Whether the checkpoint carries a tag of its own state; None if the disk does not give it out."""
    try:
        return read_json(path / HEALTHY).get("sha256") == read_manifest(path).sha256
    except UnreadableError:
        return None
    except CheckpointError:
        return False


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint ``path``. Raises CheckpointError if there is no good one."""
    manifest = read_json(path / MANIFEST)
    files = manifest.get("files")
    entry = files.get(STATE) if isinstance(files, dict) else None
    size, digest = (entry.get("bytes"), entry.get("sha256")) if isinstance(entry, dict) else (None, None)
    if not isinstance(size, int) or not isinstance(digest, str):
        raise CheckpointError(f"{path / MANIFEST}: bad size {size!r} or sha256 {digest!r}; the checkpoint is damaged")
    return Manifest(size, digest, manifest)


def read(path: Path) -> object:
    """The content of the checkpoint ``path``, after size and sha256 were found right.

    Raises:
        CheckpointError: it is missing or damaged, or the disk does not give it out.
    """
    manifest = read_manifest(path)
    with open_regular(path / STATE) as file, reading(path / STATE):
        # One descriptor for the check and the load: what was checked is what is read.
        size = os.fstat(file.fileno()).st_size
        if size != manifest.size_bytes:
            raise CheckpointError(
                f"{path / STATE}: expected {manifest.size_bytes} bytes, found {size}; the file is damaged"
            )
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != manifest.sha256:
            raise CheckpointError(f"{path / STATE}: expected sha256 {manifest.sha256}, found {digest}; it is damaged")
        return unpickle(file, path / STATE)


def read_plain(path: Path) -> object:
    """The content of a file without a manifest; the archive's own checksums must do.

    Raises:
        CheckpointError: it is damaged, or this torch is too old to open a file that nobody vouches for.
    """
    if compat.security_note() is not None:
        raise CheckpointError(
            f"{path} has no manifest, and {compat.security_note()}; convert it with a newer torch: precision-trainer train "
            "--resume-from there, then take the checkpoint it writes"
        )
    with open_regular(path, follow=True) as file, reading(path):
        return unpickle(file, path, checksums=True)


def unpickle(file: BufferedReader, where: Path, *, checksums: bool = False) -> object:
    """Read what torch.save wrote; tensors and plain values only, nothing is executed.

    Raises:
        CheckpointError: it is something else.
    """
    _check_archive(file, where, checksums=checksums)
    file.seek(0)
    try:
        content: object = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # The unpickler raises many kinds of error; each means "not one of our checkpoints".
        raise CheckpointError(f"{where} cannot be read safely: {error}") from error
    return content


def _check_archive(file: BufferedReader, where: Path, *, checksums: bool) -> None:
    """Only an archive as torch.save writes it: entries as they are, together no larger than the file. No zip bomb."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
            unpacked_bytes = sum(entry.file_size for entry in entries)
            if packed or unpacked_bytes > size:
                raise CheckpointError(
                    f"{where} cannot be read safely: expected entries stored as they are in {size} bytes, found "
                    f"{unpacked_bytes} bytes unpacked, compressed: {packed[:2]}"
                )
            damaged = archive.testzip() if checksums else None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise CheckpointError(
            f"{where} cannot be read safely: expected an archive as torch.save writes it ({error}); if it is an old file, "
            "load it with torch.load(weights_only=True) and save it again"
        ) from error
    if damaged is not None:
        raise CheckpointError(f"{where}: the checksum of {damaged} is wrong; the file is damaged")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the disk refuses in here is an UnreadableError about ``path``."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read ({error}); check the volume") from error


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading. Raises CheckpointError.

    A symlink in a directory of ours is refused: it could point anywhere. ``follow`` it where a person named it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise CheckpointError(f"{path} cannot be opened ({error}); it is missing or damaged") from None
        raise UnreadableError(f"{path} cannot be opened ({error}); check the volume") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file; it is damaged")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> dict[str, object]:
    """The object in a small file. Raises CheckpointError if that is not what it holds, or the disk does not give it out."""
    with open_regular(path) as file, reading(path):
        text = file.read(_MAX_JSON_BYTES)
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON ({error!r}); it is damaged") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected an object, found {type(value).__name__}; it is damaged")
    return value


def replace_json(path: Path, value: Mapping[str, object]) -> None:
    """A small file in place of what stood there, or nothing. Raises OSError where the disk refuses."""
    temporary = path.with_suffix(".tmp")
    try:
        _write_json(temporary, value)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    with open(path, "wb") as file:
        file.write(json.dumps(value, indent=1).encode())
        _sync(file)


def _digest(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, digest


def _sync(file: BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
