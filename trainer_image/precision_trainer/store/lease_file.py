"""The lease file of a checkpoint directory: its format, and the few operations that change it.

Every tenure has a file of its own, ``lease-000000000007.json``; the highest number is in force. A number is taken with
link(2), which fails if the name exists, also on NFS. So two processes never hold one number, and a process that was frozen
writes at most into its own old file, never into that of its successor. A release leaves the file with
``"released": true``: the numbers only grow.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from dataclasses import asdict, dataclass, replace
from pathlib import Path

_NAME = re.compile(r"lease-(\d{12}|[1-9]\d{12,17})\.json")
_TEMPORARY = ".lease-"
_BYTES = 512
"""Of every lease file, padded with spaces: a heartbeat overwrites it in place, which needs no space on a full disk."""
_MAX_HOLDER = 128
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Record:
    """What a lease file says."""

    holder: str
    """The pod's uid, or a name that only this process has."""
    process: str
    """Random; tells two processes of one pod apart."""
    seconds: float
    """Without a heartbeat for this long, the lease is free."""
    heartbeat: int = 0
    """Grows while the holder lives. No clock: the clocks of two nodes need not agree."""
    released: bool = False

    def encode(self) -> bytes:
        """As it stands in the file."""
        shown = replace(self, holder=self.holder[:_MAX_HOLDER])
        return json.dumps(asdict(shown)).encode().ljust(_BYTES - 1) + b"\n"


@dataclass(frozen=True, slots=True)
class Sight:
    """One look at the lease in force."""

    number: int
    record: Record | None
    """None: the file cannot be read as one of ours. Then only its number and its time count."""
    mtime_ns: int

    @property
    def holder(self) -> str | None:
        """Whose it is."""
        return self.record.holder if self.record is not None else None


def newest(root: Path) -> Sight | None:
    """The lease in force; None if there is none. Raises OSError if that cannot be known."""
    try:
        numbers = _numbers(root)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for number in sorted(numbers, reverse=True):
        path = path_of(root, number)
        with contextlib.suppress(FileNotFoundError):  # taken over and removed since the listing
            try:
                # An NFS client asks the server when a file is opened; os.stat may be answered from its cache.
                descriptor = os.open(path, os.O_RDONLY | _OPEN)
            except PermissionError:
                return Sight(number, None, os.lstat(path).st_mtime_ns)
            except OSError as error:
                if error.errno == errno.ELOOP:  # a symlink
                    return Sight(number, None, 0)
                raise
            try:
                return _read(descriptor, number)
            finally:
                os.close(descriptor)
    return None


def path_of(root: Path, number: int) -> Path:
    """Where the lease of ``number`` is, or would be."""
    return root / f"lease-{number:012d}.json"


def process_lives(root: Path, number: int) -> bool:
    """Whether a process on this machine holds this lease for certain. False also where that cannot be known."""
    try:
        descriptor = os.open(path_of(root, number), os.O_RDWR | _OPEN)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class OwnFile:
    """The lease file that this process made. One thread at a time."""

    def __init__(self, path: Path, number: int, record: Record, descriptor: int) -> None:
        """Of ``path``, which :func:`claim` has just made. ``descriptor`` stays open: its inode is not used again."""
        self.path, self.number = path, number
        self._record = record
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self._identity = status.st_dev, status.st_ino

    @property
    def device(self) -> int:
        """The volume's, as stat(2) has it."""
        return self._identity[0]

    def superseded(self) -> bool:
        """Whether another process took the lease, or somebody removed it. Raises OSError if that cannot be known."""
        try:
            numbers = _numbers(self.path.parent)
        except FileNotFoundError:
            return True
        return any(number > self.number for number in numbers) or not self._in_place()

    def beat(self, *, released: bool = False) -> None:
        """Show that the holder lives, or, ``released``, that it gives the lease back.

        Raises:
            OSError: the file cannot be written; FileNotFoundError: it is not there any more.
        """
        following = replace(self._record, heartbeat=self._record.heartbeat + 1, released=released)
        descriptor = os.open(self.path, os.O_WRONLY | _OPEN)
        try:
            if not self._same(descriptor):
                raise FileNotFoundError(errno.ENOENT, "the lease file was replaced", str(self.path))
            try:
                os.pwrite(descriptor, following.encode(), 0)
            except OSError as error:
                if released or error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                os.utime(descriptor)  # where overwriting takes new space, the time alone must do
        finally:
            os.close(descriptor)  # an NFS client writes here, at the latest
        self._record = following

    def close(self) -> None:
        """Close it; on disk nothing changes."""
        os.close(self._descriptor)

    def _in_place(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | _OPEN)
        except FileNotFoundError:
            return False
        try:
            return self._same(descriptor)
        finally:
            os.close(descriptor)

    def _same(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        return (status.st_dev, status.st_ino) == self._identity


def claim(root: Path, number: int, record: Record) -> OwnFile | None:
    """Take the lease under ``number``, the one above the number in force; None if another process was faster.

    Raises:
        OSError: the directory takes no file.
    """
    path = path_of(root, number)
    temporary = root / f"{_TEMPORARY}{record.process}.tmp"
    try:
        descriptor = _place(temporary, path, record)
    except FileNotFoundError:
        return None  # who was faster has tidied up
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    if descriptor is None:
        return None
    own = OwnFile(path, number, record, descriptor)
    # Numbers below the one in force are free again once their files were removed: one of those is no lease. The
    # directory was changed just now, so that an NFS client lists it anew.
    if any(other > number for other in _numbers(root)):
        own.close()
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None
    _remove_older(root, number)
    return own


def _create(path: Path, record: Record) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o644)
    try:
        os.write(descriptor, record.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """For :func:`process_lives`; closed, and so unlocked, by the kernel when this process ends in whatever way."""
    descriptor = os.open(path, os.O_RDONLY | _OPEN)
    with contextlib.suppress(OSError):
        # Shared: an NFS client locks exclusively only what is open for writing.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _place(temporary: Path, path: Path, record: Record) -> int | None:
    """Make ``path``; returns it open and locked, or None if it is there already."""
    _create(temporary, record)
    descriptor = _open_locked(temporary)  # before others can see it
    try:
        os.link(temporary, path)
    except FileExistsError:
        # Over NFS the first answer may be lost, and the client's second try finds its own link.
        if _holds(path, record):
            return descriptor
        os.close(descriptor)
        return None
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _NO_LINKS:
            raise
        # No links on this volume. A reader may see the file before its content: it waits then.
        try:
            _create(path, record)
        except FileExistsError:
            return None
        return _open_locked(path)
    return descriptor


def _holds(path: Path, record: Record) -> bool:
    try:
        return bool(json.loads(path.read_bytes())["process"] == record.process)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _remove_older(root: Path, number: int) -> None:
    """The former holder finds its file gone; also what claimers that were killed have left."""
    with contextlib.suppress(OSError):
        for other in _numbers(root):
            if other < number:
                with contextlib.suppress(OSError):
                    os.unlink(path_of(root, other))
        for name in os.listdir(root):
            if name.startswith(_TEMPORARY):
                with contextlib.suppress(OSError):
                    os.unlink(root / name)


def _numbers(root: Path) -> list[int]:
    return [int(match[1]) for match in map(_NAME.fullmatch, os.listdir(root)) if match]


def _read(descriptor: int, number: int) -> Sight:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        return Sight(number, None, status.st_mtime_ns)
    return Sight(number, _decode(os.read(descriptor, _BYTES)), status.st_mtime_ns)


def _decode(text: bytes) -> Record | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    holder, process, heartbeat = value.get("holder"), value.get("process"), value.get("heartbeat")
    seconds = value.get("seconds")
    if not (isinstance(holder, str) and isinstance(process, str) and isinstance(heartbeat, int)):
        return None
    known = float(seconds) if isinstance(seconds, (int, float)) and seconds == seconds else 0.0
    return Record(holder[:_MAX_HOLDER], process, known, heartbeat, value.get("released") is True)
