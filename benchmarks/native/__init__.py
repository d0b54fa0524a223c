"""Builds and loads the C++ side of the benchmarks: same flags and same thread pool as the kernels."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths

HERE = Path(__file__).parent
FLAGS = ["-std=c++17", "-O3", "-fno-strict-aliasing", "-fPIC", "-shared"]
"""What setup.py compiles the kernels with. The baselines may use every instruction of this machine."""

TUNING = ["-march=native"]


@functools.cache
def library(stem: str) -> ctypes.CDLL:
    """``<stem>.cpp`` as a library, built when it is not there yet."""
    source = HERE / f"{stem}.cpp"
    tuning = [] if stem == "bare_ops" else TUNING
    key = source.read_bytes() + torch.__version__.encode() + " ".join(FLAGS + tuning).encode()
    folder = HERE.parents[1] / "build" / "benchmarks"
    target = folder / f"{stem}-{hashlib.sha256(key).hexdigest()[:12]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"building {source.name}", file=sys.stderr, flush=True)
        libraries = Path(torch.__file__).parent / "lib"
        command = ["g++", *FLAGS, *tuning, str(source), "-o", str(target)]
        command += [f"-isystem{path}" for path in include_paths()]
        command += ["-DTORCH_TARGET_VERSION=0x020a000000000000ULL"] if tuning else ["-std=c++20"]
        command += [f"-L{libraries}", "-ltorch", "-ltorch_cpu", "-lc10"]
        subprocess.run(command, check=True)
    return ctypes.CDLL(str(target))
