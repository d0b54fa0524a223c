"""Host memory a device may read: how it is told of it, and by which address it then knows it.

On Ascend a pool is registered with the runtime (``aclrtHostRegister``), which maps it for the AI cores. Whether a card
and a CANN can do that is not written down reliably, so it is probed, and refused with the runtime's own words where it
cannot. The CPU reads its memory without being told.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

PAGE = 4096  # Ascend registers whole pages of this size, whatever the system's page is
MAPPED = 0x2  # flag of aclrtHostRegisterV2
REGISTER_MAPPED = 0  # type of aclrtHostRegister

# No range larger than this is registered at once: drivers keep one table entry for each.
MAX_RANGE = 256 << 30


class HostMappingError(RuntimeError):
    """The device cannot map host memory; the message names the call and its code."""


class Registrar(Protocol):
    """Makes ranges of host memory known to a device."""

    name: str

    def map(self, address: int, size: int) -> int:
        """Register a range of whole pages; returns the device's address of it."""

    def unmap(self, address: int) -> None:
        """Undo :meth:`map`."""


class Unmapped:
    """The CPU's: nothing to register, and its own address."""

    name = "cpu"

    def map(self, address: int, size: int) -> int:
        return address

    def unmap(self, address: int) -> None:
        pass


class Acl:
    """Ascend's, through ``libascendcl``.

    Takes ``aclrtHostRegisterV2`` and ``aclrtHostGetDevicePointer`` where the runtime has them, the older
    ``aclrtHostRegister`` with its four arguments otherwise.
    """

    name = "acl"

    def __init__(self, library: str | None = None) -> None:
        path = library or ctypes.util.find_library("ascendcl") or "libascendcl.so"
        try:
            self._lib = ctypes.CDLL(path)
        except OSError as error:
            raise HostMappingError(
                f"HiSparse: Ascend's runtime must be loadable to register the host pool, got {error}"
            ) from error
        self._v2 = _function(self._lib, "aclrtHostRegisterV2", 3)
        self._pointer = _function(self._lib, "aclrtHostGetDevicePointer", 3)
        self._v1 = _function(self._lib, "aclrtHostRegister", 4)
        self._unregister = _function(self._lib, "aclrtHostUnregister", 1)
        if self._unregister is None or (
            self._v1 is None and (self._v2 is None or self._pointer is None)
        ):
            raise HostMappingError(
                "HiSparse: Ascend's runtime must have aclrtHostUnregister and aclrtHostRegister, or"
                f" aclrtHostRegisterV2 with aclrtHostGetDevicePointer; {path} has not"
            )

    def map(self, address: int, size: int) -> int:
        if address % PAGE or size % PAGE or size <= 0:
            raise ValueError(
                f"HiSparse: a registered range must be whole pages of {PAGE} bytes, got {size} bytes at {address:#x}"
            )
        device = ctypes.c_void_p()
        if self._v2 is None or self._pointer is None:
            assert self._v1 is not None
            code = self._v1(
                ctypes.c_void_p(address),
                ctypes.c_uint64(size),
                ctypes.c_int(REGISTER_MAPPED),
                ctypes.byref(device),
            )
            self._check("aclrtHostRegister", code, size)
        else:
            code = self._v2(
                ctypes.c_void_p(address), ctypes.c_uint64(size), ctypes.c_uint32(MAPPED)
            )
            self._check("aclrtHostRegisterV2", code, size)
            code = self._pointer(ctypes.c_void_p(address), ctypes.byref(device), ctypes.c_uint32(0))
            if code:
                self._unregister(ctypes.c_void_p(address))
            self._check("aclrtHostGetDevicePointer", code, size)
        if not device.value:
            self._unregister(ctypes.c_void_p(address))
            raise HostMappingError(
                "HiSparse: the runtime must map the host pool, got a null device address"
            )
        return device.value

    def unmap(self, address: int) -> None:
        assert self._unregister is not None
        self._check("aclrtHostUnregister", self._unregister(ctypes.c_void_p(address)), 0)

    def probe(self) -> None:
        """Register one page and let it go again: raises :class:`HostMappingError` where that is refused."""
        page = mmap.mmap(-1, PAGE)
        holder = ctypes.c_char.from_buffer(page)
        address = ctypes.addressof(holder)
        try:
            self.map(address, PAGE)
            self.unmap(address)
        finally:
            del holder
            page.close()

    @staticmethod
    def _check(call: str, code: int, size: int) -> None:
        if code:
            what = f" for {size} bytes" if size else ""
            raise HostMappingError(f"HiSparse: {call} must succeed, got error {code}{what}")


def _function(library: ctypes.CDLL, name: str, arguments: int) -> ctypes._NamedFuncPointer | None:
    try:
        function = getattr(library, name)
    except AttributeError:
        return None
    function.restype = ctypes.c_int
    return function


@dataclass(frozen=True)
class Tensor:
    """Where a layer's blocks lie in a pool, in bytes."""

    offset: int
    num_blocks: int
    block_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.num_blocks * self.block_bytes


def ranges(
    size: int, tensors: Sequence[Tensor], limit: int = MAX_RANGE, page: int = PAGE
) -> list[tuple[int, int]]:
    """Cut ``[0, size)`` into ranges of at most ``limit`` bytes to register, none through a block.

    A copy of one block must not straddle two registrations. Cuts are multiples of ``page``.
    """
    if size % page:
        raise ValueError(
            f"HiSparse: the host pool must be whole pages of {page} bytes, got {size} bytes"
        )
    cut: list[tuple[int, int]] = []
    start = 0
    while size - start > limit:
        end = max((_last_cut(t, start, start + limit, page) for t in tensors), default=0)
        end = max(end, _gap_cut(tensors, start, start + limit, page))
        if end <= start:
            raise ValueError(
                f"HiSparse: a host block must fit a registration of {limit} bytes, got one that does not"
                f" after {start} bytes"
            )
        cut.append((start, end))
        start = end
    cut.append((start, size))
    return cut


def _last_cut(tensor: Tensor, start: int, most: int, page: int) -> int:
    """Last block boundary of the tensor in ``(start, most]`` that is a multiple of ``page``; 0 if none."""
    common = math.gcd(tensor.block_bytes, page)
    if tensor.offset % common or most < tensor.offset:
        return 0
    period = page // common
    first = (-(tensor.offset // common) * pow(tensor.block_bytes // common, -1, period)) % period
    block = min(tensor.num_blocks, (most - tensor.offset) // tensor.block_bytes)
    block -= (block - first) % period
    boundary = tensor.offset + block * tensor.block_bytes
    return boundary if block >= 0 and boundary > start else 0


def _gap_cut(tensors: Sequence[Tensor], start: int, most: int, page: int) -> int:
    """Last multiple of ``page`` in ``(start, most]`` that no tensor covers; 0 if none."""
    candidate = most // page * page
    while candidate > start:
        over = [t for t in tensors if t.offset < candidate < t.end]
        if not over:
            return candidate
        candidate = min(t.offset for t in over) // page * page
    return 0
