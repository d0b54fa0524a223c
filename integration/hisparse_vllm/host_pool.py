"""The host pool: memory for all KV of one rank, registered with its device and given back exactly.

Core asks for it by :func:`allocate` (in place of its pinned CUDA allocation) and lets it go by :func:`release`. A pool
is page-aligned, private to the process, backed by huge pages where the system has them, and checked against the memory
that is really available before it is taken.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from hisparse_vllm import registration
from hisparse_vllm.registration import PAGE, Registrar

_HEADROOM = 0.95  # of the available memory; the rest is for everyone else on the machine


class HostPool:
    """One range of host memory. Close it, or let it be collected, or exit: what was registered is unregistered."""

    def __init__(
        self,
        size: int,
        registrar: Registrar,
        tensors: Sequence[registration.Tensor] = (),
        limit: int = registration.MAX_RANGE,
        memory: mmap.mmap | None = None,
    ) -> None:
        if size <= 0:
            raise ValueError(f"HiSparse: the host pool must have at least one byte, got {size}")
        padded = -(-size // PAGE) * PAGE
        cuts = registration.ranges(padded, tensors, limit)
        if memory is None:
            check_available(padded)
            memory = mmap.mmap(-1, padded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # advice that a kernel need not take
                memory.madvise(mmap.MADV_HUGEPAGE)
        self.tensor: Tensor = torch.frombuffer(memory, dtype=torch.int8)[:size]
        """``[size]`` int8, 4 KiB aligned. Views of it may outlive the pool; they are host memory only then."""
        self.address = self.tensor.data_ptr()
        mapped: list[tuple[int, int, int]] = []
        # Runs once: at close, when the pool is collected, or when the interpreter exits.
        self._release = weakref.finalize(self, _unmap, registrar, mapped)
        try:
            for start, end in cuts:
                device = registrar.map(self.address + start, end - start)
                mapped.append((self.address + start, end - start, device))
        except BaseException:
            self._release()
            raise
        self._mapped = mapped

    def device_address(self, address: int, size: int) -> int | None:
        """What the device calls ``[address, address + size)``; None where no one registration covers it."""
        for start, length, device in self._mapped:
            if start <= address and address + size <= start + length:
                return device + (address - start)
        return None

    @property
    def closed(self) -> bool:
        return not self._release.alive

    def close(self) -> None:
        """Unregister. A second call does nothing."""
        self._release()


def _unmap(registrar: Registrar, mapped: list[tuple[int, int, int]]) -> None:
    """Last in, first out; one that fails does not keep the others."""
    errors = []
    while mapped:
        address, _, _ = mapped.pop()
        try:
            registrar.unmap(address)
        except registration.HostMappingError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def available_memory() -> int:
    """Bytes this process may still take: the system's available memory, or less where a cgroup limits it."""
    available = 1 << 62
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            most = Path(limit).read_text().strip()
            if most.isdigit():
                available = min(available, int(most) - int(Path(used).read_text()))
        except OSError:
            continue
    return max(available, 0)


def check_available(size: int) -> None:
    """Refuse a pool that would not fit the memory there is."""
    available = available_memory()
    if size > available * _HEADROOM:
        raise ValueError(
            f"HiSparse: host_pool_gib must fit the {available / 2**30:.1f} GiB of memory that is available"
            f" on this host, got {size / 2**30:.1f} GiB"
        )


# The pools that Core holds, by address: it lets one go by address only.
_pools: dict[int, HostPool] = {}
_registrar: Registrar = registration.Unmapped()


def use(registrar: Registrar) -> None:
    """Register pools made from now on with this device."""
    global _registrar
    _registrar = registrar


def allocate(size: int) -> tuple[Tensor, Tensor]:
    """Core's ``allocate_pinned_host_pool``: the pool, and the range that is registered."""
    pool = HostPool(size, _registrar)
    _pools[pool.address] = pool
    return pool.tensor, pool.tensor


def release(address: int) -> int:
    """Core's ``cudaHostUnregister``: 0, or 1 where there is no such pool."""
    pool = _pools.pop(address, None)
    if pool is None:
        return 1
    pool.close()
    return 0


def device_address(address: int, size: int, device: torch.device) -> int | None:
    """For ``hisparse_ops.triton.host_memory.add_mapping``: device addresses of rows in these pools."""
    for pool in _pools.values():
        found = pool.device_address(address, size)
        if found is not None:
            return found
    return None
