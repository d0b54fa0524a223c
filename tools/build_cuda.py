"""Build the CUDA library of the resolver with nvcc: no torch and no driver are needed."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "ops/resolver/simt/resolve_cuda.cu"
ARCHITECTURES = ("80", "90a", "100a")
PTX = "80"
"""Other cards, and younger ones, compile this when the library is first used."""


def nvcc() -> str | None:
    """The compiler: CUDACXX, CUDA_HOME, or on the path."""
    home = os.environ.get("CUDA_HOME")
    candidates = [os.environ.get("CUDACXX"), f"{home}/bin/nvcc" if home else None, "nvcc"]
    found = (shutil.which(c) for c in candidates if c)
    return next((f for f in found if f), None)


def command(
    compiler: str, output: Path, architectures: tuple[str, ...] = ARCHITECTURES
) -> list[str]:
    """What compiles the library."""
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures]
    codes.append(f"-gencode=arch=compute_{PTX},code=compute_{PTX}")
    targets = " ".join([*(f"sm_{a}" for a in architectures), f"compute_{PTX}"])
    return [
        compiler,
        "-std=c++17",
        "-O3",
        "-shared",
        "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra",
        "-Werror=all-warnings",
        f"-I{ROOT / 'ops'}",
        f'-DHISPARSE_CUDA_TARGETS="{targets}"',
        *codes,
        "-o",
        str(output),
        str(SOURCE),
    ]


def build(output: Path) -> None:
    """Compile the library. RuntimeError says what is missing or what nvcc says."""
    compiler = nvcc()
    if compiler is None:
        raise RuntimeError("nvcc is not found: put it on the path, or set CUDA_HOME or CUDACXX")
    output.parent.mkdir(parents=True, exist_ok=True)
    # A library preloaded for this process (a sanitizer's) is none for the compiler, which may not survive it.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        command(compiler, output), capture_output=True, text=True, check=False, env=env
    )
    if done.returncode:
        raise RuntimeError(
            f"{SOURCE.relative_to(ROOT)} does not build:\n{done.stderr}{done.stdout}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/build_cuda.py", description=__doc__)
    parser.add_argument("--output", type=Path, help="the library (beside the installed package)")
    options = parser.parse_args()
    output = options.output
    if output is None:
        package = importlib.util.find_spec("hisparse_ops")
        if package is None or package.origin is None:
            parser.error("this Python has no hisparse_ops to put the library beside; use --output")
        output = Path(package.origin).parent / "libhisparse_cuda.so"
    try:
        build(output)
    except RuntimeError as error:
        print(f"tools/build_cuda.py: {error}", file=sys.stderr)
        return 1
    print(f"built {output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
