"""A host pool that the tensor-parallel ranks of one machine share: KV of MLA is the same on all of them.

The memory is a file in ``/dev/shm`` that only its user may open (0600) and that has no name any more once every rank
has it: whatever kills a process then, the system takes the memory back with the last of them. A creator that dies
earlier leaves a name without a lock, which the next one recognises and removes.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

from hisparse_vllm import host_pool
from hisparse_vllm.registration import PAGE

FOLDER = Path("/dev/shm")
PREFIX = "hisparse-"


class SharedPoolError(RuntimeError):
    """A shared pool that cannot be made or opened; the message says which and why."""


def open_shared(
    name: str,
    size: int,
    rank: int,
    barrier: Callable[[], None],
    folder: Path = FOLDER,
) -> mmap.mmap:
    """The pool ``name`` of ``size`` bytes, the same memory on every rank.

    Every rank calls it; ``barrier`` returns on all of them when all have called it. Rank 0 makes the file and takes its
    name away when every rank has it open.
    """
    padded = -(-size // PAGE) * PAGE
    if rank == 0:
        fd = _create(folder / (PREFIX + name), padded)
        try:
            barrier()
            memory = mmap.mmap(fd, padded)
            barrier()
        finally:
            _unlink(folder / (PREFIX + name))
            os.close(fd)
        return memory
    barrier()
    fd = _attach(folder / (PREFIX + name), padded)
    try:
        memory = mmap.mmap(fd, padded)
    finally:
        os.close(fd)
    barrier()
    return memory


def remove_stale(folder: Path = FOLDER) -> list[Path]:
    """Remove pools of this user whose creator is dead; returns them."""
    removed = []
    for path in sorted(folder.glob(PREFIX + "*")):
        if _is_mine(path) and _owner_is_dead(path):
            _unlink(path)
            removed.append(path)
    return removed


def _create(path: Path, size: int) -> int:
    host_pool.check_available(size)
    if path.exists() or path.is_symlink():
        if not _is_mine(path):
            raise SharedPoolError(f"HiSparse: {path} must belong to this user, got one of another")
        if not _owner_is_dead(path):
            raise SharedPoolError(
                f"HiSparse: {path} must not be in use, got one whose creator is alive: give each engine its own"
                " instance id"
            )
        _unlink(path)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)  # whatever the umask is
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        _unlink(path)
        if error.errno == errno.ENOSPC:
            room = os.statvfs(path.parent)
            free = room.f_bavail * room.f_frsize
            raise SharedPoolError(
                f"HiSparse: {path.parent} must have room for the shared host pool of {size / 2**30:.1f} GiB,"
                f" got {free / 2**30:.1f} GiB"
            ) from error
        raise
    return fd


def _attach(path: Path, size: int) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise SharedPoolError(
            f"HiSparse: the shared host pool must be there, got {error}"
        ) from error
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o600:
        os.close(fd)
        raise SharedPoolError(
            f"HiSparse: {path} must belong to this user alone (0600), got uid {found.st_uid},"
            f" mode {stat.S_IMODE(found.st_mode):04o}"
        )
    if found.st_size != size:
        os.close(fd)
        raise SharedPoolError(
            f"HiSparse: {path} must have {size} bytes, got {found.st_size}: ranks differ"
        )
    return fd


def _is_mine(path: Path) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _owner_is_dead(path: Path) -> bool:
    """The creator holds a lock for as long as it lives and the file has a name."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
