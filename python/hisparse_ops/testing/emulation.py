"""The SIMT kernel body of ``resolve``, compiled for this host over an emulated machine (``tests/stubs/simt``)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
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


def build(
    root: Path, out: Path, *, warp: int = 32, machine: str = "fibers", options: tuple[str, ...] = ()
) -> Path:
    """Compile the body of the tree at ``root`` into ``out``; RuntimeError with the compiler's words.

    ``machine`` is "fibers" (deterministic, one thread at a time) or "threads" (side by side).
    """
    target = out / f"libemulated_{machine}{warp}.so"
    stubs = root / "tests/stubs/simt"
    command = [compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", "-pthread"]
    command += ["-Wall", "-Wextra", "-Werror", f"-DHISPARSE_EMULATED_WARP={warp}", *options]
    command += [
        f"-I{root / 'ops'}",
        str(stubs / "library.cpp"),
        str(stubs / machine / "emulator.cpp"),
    ]
    done = subprocess.run(
        [*command, "-o", str(target)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return target


def sanitize(root: Path, out: Path, sanitizer: str, machine: str) -> str:
    """Run the default samples under "address,undefined" or "thread"; what the sanitizer says, "" if nothing.

    In a process of its own, since a sanitizer must be there from the start.
    """
    options = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-O1")
    library = build(root, out, machine=machine, options=options)
    runtime = f"lib{'tsan' if sanitizer == 'thread' else 'asan'}.so"
    named = [compiler(), f"-print-file-name={runtime}"]
    found = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    return run_samples(
        library,
        LD_PRELOAD=found,
        ASAN_OPTIONS="detect_leaks=0",
        TSAN_OPTIONS="halt_on_error=1",
    )


def run_samples(library: Path, **environment: str) -> str:
    """Run the default samples in a process of their own, which may die of it; what went wrong, "" if nothing."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(library)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    if done.stdout == "done\n":
        return ""
    return done.stdout + done.stderr or f"the process died ({done.returncode})"


_PROGRAM = """
import sys, pathlib
import hisparse_ops
from hisparse_ops.testing import emulation, samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
machine = emulation.Emulation(pathlib.Path(sys.argv[1]))
for sample in samples.samples("resolve"):
    for seed in (1, 2):
        args = sample.args()
        expected = clone_args(args)
        hisparse_ops.ops()["resolve"].call(**expected)
        machine.run(args, threads=64, seed=seed, blocks=2)
        assert_same_buffers(args, expected)
print("done")
"""
