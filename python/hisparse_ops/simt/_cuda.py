"""The resolver's CUDA library: found, loaded and called through ctypes, so that it needs no CUDA torch to build."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, NoReturn

import torch

from hisparse_ops.simt import _launch

LIBRARY = "libhisparse_cuda.so"
VARIABLE = "HISPARSE_CUDA_LIBRARY"


class Call(ctypes.Structure):
    """``ResolveCall`` of ``ops/resolver/simt/slots.h``."""

    _fields_ = (
        ("pointers", ctypes.c_void_p * len(_launch.OPERANDS)),
        ("sizes", ctypes.c_int64 * len(_launch.SIZES)),
        ("strides", ctypes.c_int64 * (2 * len(_launch.OPERANDS))),
    )


def pack(args: dict[str, Any]) -> Call:
    """The call as the library takes it."""
    call = Call()
    for i, name in enumerate(_launch.OPERANDS):
        t = args.get(name)
        if t is None:
            continue
        call.pointers[i] = t.data_ptr()
        strides = t.stride()
        call.strides[2 * i] = strides[0]
        if len(strides) > 1:
            call.strides[2 * i + 1] = strides[1]
    numbers = _launch.sizes(args)
    for i, name in enumerate(_launch.SIZES):
        call.sizes[i] = numbers[name]
    return call


def path() -> Path:
    """Where the library is looked for."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(__file__).parents[1] / LIBRARY


class Library:
    """The loaded library; loading needs no driver, a launch does."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._library = library = ctypes.CDLL(str(file))
        library.hisparse_resolve_slots.restype = ctypes.c_char_p
        library.hisparse_cuda_error.restype = ctypes.c_char_p
        library.hisparse_cuda_targets.restype = ctypes.c_char_p
        library.hisparse_cuda_shared_bytes.restype = ctypes.c_int64
        self._shared_bytes: dict[int, int] = {}
        library.hisparse_resolve_cuda.argtypes = (ctypes.POINTER(Call), ctypes.c_void_p)
        self._check_layout()

    def _check_layout(self) -> None:
        names = self._library.hisparse_resolve_slots().decode().split()
        if names != [*_launch.OPERANDS, *_launch.SIZES] or self.layout() != layout():
            raise OSError(f"{self.file} is of another version of hisparse-ops; build it again")

    def layout(self) -> list[int]:
        """Size and offsets of the library's ``ResolveCall``."""
        found = (ctypes.c_int64 * 4)()
        self._library.hisparse_resolve_layout(found)
        return list(found)

    def targets(self) -> str:
        """What the library was built for."""
        return str(self._library.hisparse_cuda_targets().decode())

    def shared_bytes(self, device: int) -> int:
        """Shared memory that a block may have on a device."""
        if device not in self._shared_bytes:
            found = self._library.hisparse_cuda_shared_bytes(device)
            if found < 0:
                self._fail(-found)
            self._shared_bytes[device] = found
        return self._shared_bytes[device]

    def _fail(self, code: int) -> NoReturn:
        reason = self._library.hisparse_cuda_error(code).decode()
        raise RuntimeError(f"resolve: the CUDA kernel cannot be launched: {reason}")

    def launch(self, call: Call, stream: int) -> None:
        """Put the kernel on a stream. RuntimeError with CUDA's words if it cannot."""
        code = self._library.hisparse_resolve_cuda(ctypes.byref(call), stream)
        if code:
            self._fail(code)


def layout() -> list[int]:
    """Size and offsets of ``Call``."""
    return [ctypes.sizeof(Call), Call.pointers.offset, Call.sizes.offset, Call.strides.offset]


def launcher(library: Library) -> Any:
    """``hisparse::resolve`` for CUDA tensors."""

    def resolve(*positional: Any, **keywords: Any) -> None:
        args = _launch.by_name(positional, keywords)
        _launch.check(args)
        topk = args["topk_indices"]
        if topk.shape[0] == 0:
            return
        call = pack(args)
        device = topk.device.index or 0
        _launch.check_budget(
            dict(zip(_launch.SIZES, call.sizes, strict=True)), library.shared_bytes(device)
        )
        with torch.cuda.device(device):
            library.launch(call, torch.cuda.current_stream().cuda_stream)

    return resolve
