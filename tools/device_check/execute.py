"""The kernels as Ascend's compiler sees them, run on this CPU with the samples, oracles and launchers of the tests.

A launcher asks for a specialisation of a kernel. Its linalg, as the front end for Ascend made it, becomes a library
for this CPU (``ascend.py build``), and the launch calls that.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hisparse_ops import reference, triton
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import Sample
from hisparse_ops.triton import _launch

ASCEND = Path(__file__).parent / "ascend.py"
_SHORT = {
    torch.int8: "i8",
    torch.uint8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
_WORDS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}


@dataclass
class Result:
    """What became of an op's samples."""

    op: str
    target: str
    passed: int = 0
    failures: list[str] = field(default_factory=list)


def spec_of(
    op: str, kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]
) -> dict[str, Any]:
    """The specialisation that a launch asks for."""
    types = triton.variants(op)[0].signature
    signature = {
        name: f"*{_SHORT[value.dtype]}" if isinstance(value, torch.Tensor) else types[name]
        for name, value in zip(types, args, strict=True)
    }
    numbers = {name: int(value) for name, value in constants.items()}
    text = json.dumps([op, kernel.__name__, signature, numbers])
    key = f"{op}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return {"key": key, "op": op, "signature": signature, "constants": numbers}


def with_launcher(op: str, args: dict[str, Any], start: _launch.Launch) -> None:
    """The op's launcher with something else to start its kernels."""
    before, _launch.launcher = _launch.launcher, start
    try:
        triton.launcher(op)(**args)
    finally:
        _launch.launcher = before


def wanted(op: str, cases: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """The specialisations that the samples of an op need, by key."""
    found: dict[str, dict[str, Any]] = {}

    def record(
        kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        spec = spec_of(op, kernel, args, constants)
        found[spec["key"]] = spec

    for sample in cases:
        with_launcher(op, sample.args(), record)
    return found


def build(
    python: Path, specs: Sequence[dict[str, Any]], target: str, folder: Path
) -> Iterator[dict[str, Any]]:
    """A library for every specialisation, from the environment of triton-ascend."""
    command = [str(python), str(ASCEND), "build", "--target", target, "--folder", str(folder)]
    lines = "".join(json.dumps(spec) + "\n" for spec in specs)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{ASCEND.name} stopped: {done.stderr[-800:]}")
    yield from (json.loads(line) for line in done.stdout.splitlines())


class Libraries:
    """Starts kernels by calling their libraries, one program after another."""

    def __init__(self, op: str, folder: Path) -> None:
        self.op, self.folder = op, folder
        self._functions: dict[str, Callable[..., None]] = {}

    def start(
        self, kernel: Any, programs: int, args: tuple[Any, ...], constants: dict[str, Any]
    ) -> None:
        spec = spec_of(self.op, kernel, args, constants)
        words = [word for _ in range(2) for word in _memref(0)]  # a lock and a workspace
        for value, kind in zip(args, spec["signature"].values(), strict=True):
            words += _memref(value.data_ptr()) if kind[0] == "*" else [_WORDS[kind](value)]
        function = self._function(spec["key"], kernel.__name__)
        for program in range(programs):
            function(*words, *(ctypes.c_int32(n) for n in (programs, 1, 1, program, 0, 0)))

    def _function(self, key: str, name: str) -> Callable[..., None]:
        if key not in self._functions:
            function = getattr(ctypes.CDLL(str(self.folder / f"{key}.so")), name)
            function.restype = None
            self._functions[key] = function
        return self._functions[key]


def _memref(address: int) -> list[Any]:
    """Allocation, aligned start, offset, size, stride."""
    start = ctypes.c_void_p(address)
    return [start, start, ctypes.c_int64(0), ctypes.c_int64(1 << 62), ctypes.c_int64(1)]


def run(op: str, target: str, cases: Sequence[Sample], folder: Path) -> Result:
    """Every sample through the launcher and the libraries, whole buffers against the oracle."""
    result, libraries = Result(op, target), Libraries(op, folder)
    for sample in cases:
        args = sample.args()
        expected = clone_args(args)
        reference.load(op)(**expected)
        try:
            with_launcher(op, args, libraries.start)
            assert_same_buffers(args, expected, samples.device_masks(op, expected))
            result.passed += 1
        except (AssertionError, OSError) as error:
            result.failures.append(f"{sample.name}: {error}")
    return result


def main() -> int:
    """``execute.py OP FOLDER``: run the samples with the libraries of a folder; 1 where one differs."""
    op, folder = sys.argv[1], Path(sys.argv[2])
    return 1 if run(op, "", list(samples.samples(op)), folder).failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
