"""The SIMT kernel body of ``resolve``, compiled for this host over an emulated machine (``tests/stubs/simt``)."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

from hisparse_ops.simt import _cuda


def compiler() -> str:
    """The C++ compiler: CXX, or g++."""
    return os.environ.get("CXX", "g++")


class Emulation(_cuda.Library):
    """The CUDA library's C interface over the emulation."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.raw = raw = ctypes.CDLL(str(file))
        raw.emulate.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64)
        raw.emulated_warp.restype = ctypes.c_int64
        raw.hisparse_resolve_shared_bytes.restype = ctypes.c_int64
        raw.hisparse_resolve_shared_bytes.argtypes = (ctypes.c_int64,) * 4

    def run(self, args: dict[str, Any], *, threads: int, seed: int, blocks: int) -> None:
        """One call; ``seed`` orders the threads (0: by number)."""
        self.raw.emulate(threads, seed, blocks)
        self.launch(_cuda.pack(args), 0)


def build(root: Path, out: Path, *, warp: int = 32, options: tuple[str, ...] = ()) -> Emulation:
    """Compile the body of the tree at ``root`` into ``out``; RuntimeError with the compiler's words."""
    target = out / f"libemulated{warp}.so"
    sources = sorted((root / "tests/stubs/simt").glob("*.cpp"))
    command = [compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility-inlines-hidden"]
    command += ["-Wall", "-Wextra", "-Werror", f"-DHISPARSE_EMULATED_WARP={warp}", *options]
    command += [f"-I{root / 'ops'}", *map(str, sources), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Emulation(target)
