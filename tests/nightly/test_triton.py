"""The Triton kernels, interpreted: every sample against the oracle, whole buffers, and one launch a call."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from hisparse_ops import reference, triton
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import Sample

interpreter = pytest.importorskip(
    "hisparse_ops.testing.interpreter",
    reason="triton is not installed",
    exc_type=ModuleNotFoundError,
)


ROOT = Path(__file__).parents[2]


def cases(tier: str) -> list[tuple[str, Sample]]:
    return [(op, sample) for op in triton.OPS for sample in samples.samples(op, tier)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    tier = metafunc.config.getoption("--tier")
    if "kernel_sample" in metafunc.fixturenames:
        found = cases(tier)
        ids = [f"{name}-{s.name}" for name, s in found]
        metafunc.parametrize("name,kernel_sample", found, ids=ids)


def test_matches_oracle(name: str, kernel_sample: Sample) -> None:
    args = kernel_sample.args()
    expected = clone_args(args)
    reference.load(name)(**expected)
    launches = interpreter.call(name, args)
    assert_same_buffers(args, expected, samples.device_masks(name, expected))
    assert len(launches.kernels) <= 1


@pytest.mark.nightly
@pytest.mark.parametrize("cores", [1, 48])
def test_does_not_depend_on_the_number_of_cores(cores: int) -> None:
    for name, sample in cases("default"):
        args, other = sample.args(), sample.args()
        interpreter.call(name, args, cores=cores)
        interpreter.call(name, other)
        assert_same_buffers(args, other, samples.device_masks(name, args))


def test_refuses_what_the_op_refuses() -> None:
    for name in triton.OPS:
        for bad in samples.load(name).BAD_ARGUMENTS:
            if bad.by_value:
                continue
            args = next(samples.samples(name)).args()
            bad.change(args)
            before = clone_args(args)
            with pytest.raises(ValueError, match=f"^{re.escape(bad.error)}$"):
                interpreter.call(name, args)
            assert_same_buffers(args, before)


def test_one_launch_a_call_and_none_without_work() -> None:
    from benchmarks.bare import empty_args

    for name in triton.OPS:
        args = next(samples.samples(name)).args()
        assert len(interpreter.call(name, args).kernels) == 1, name
        empty = empty_args(name)
        before = clone_args(empty)
        assert interpreter.call(name, empty).kernels == [], name
        assert_same_buffers(empty, before)


def test_programs_do_not_exceed_the_work_or_the_cores() -> None:
    for name in triton.OPS:
        args = next(samples.samples(name)).args()
        (launch,) = interpreter.call(name, args, cores=10**9).kernels
        assert 1 <= launch[1] <= triton._launch.MAX_PROGRAMS
        (launch,) = interpreter.call(name, clone_args(args), cores=2).kernels
        assert launch[1] <= 2


def specialisation(kernel: Any, args: tuple[Any, ...]) -> dict[str, str]:
    """Types of pointer arguments, as variants name them."""
    short = {torch.int8: "i8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64"}
    short |= {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    names = list(kernel.arg_names)
    return {
        name: f"*{short[value.dtype]}"
        for name, value in zip(names, args, strict=False)
        if isinstance(value, torch.Tensor)
    }


def test_variants_cover_what_launchers_ask_for(tier: str) -> None:
    """Every pointer type and every constant of a launch stands in a variant of its kernel."""
    for name, sample in cases(tier):
        for kernel, args, constants in interpreter.call(name, sample.args()).specialisations:
            variants = [v for v in triton.variants(name) if v.kernel is kernel]
            for argument, pointer in specialisation(kernel, args).items():
                assert pointer in {v.signature[argument] for v in variants}, (
                    name,
                    argument,
                    pointer,
                )
            for constant, value in constants.items():
                assert int(value) in {v.constants[constant] for v in variants}, (name, constant)


def test_variants_say_everything_about_a_kernel() -> None:
    for name in triton.OPS:
        names = [v.name for v in triton.variants(name)]
        assert names and len(names) == len(set(names))
        for v in triton.variants(name):
            assert list(v.signature) + list(v.constants) == list(v.kernel.arg_names), v.name
            assert len(v.kernel.fn.__name__) < 50
            assert v.ub_bytes <= 128 << 10


def test_kernels_are_registered_for_both_devices() -> None:
    for name in triton.OPS:
        for key in triton.DISPATCH_KEYS:
            assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hisparse::{name}", key)


def test_overflow_raises_in_the_interpreter() -> None:
    """Else the tests would not see an index that is multiplied in 32 bit."""
    import triton as upstream
    import triton.language as tl

    def multiply(out, a, b):  # type: ignore[no-untyped-def]
        tl.store(out, a * b)

    kernel = upstream.runtime.interpreter.InterpretedFunction(multiply)
    with pytest.raises(Exception, match="int32 overflow"):
        kernel[(1,)](torch.zeros(1, dtype=torch.int32), 100_000, 100_000)


WARM_UP = """
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from hisparse_ops import triton


class CompileOnly:
    # A driver of a device that is not there: Triton compiles for it and starts nothing.
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


driver.set_active(CompileOnly())
compiled = triton.warm_up()


def number():
    caches = [v.kernel.device_caches[0][0] for op in triton.OPS for v in triton.variants(op)]
    return sum(len(cache) for cache in {id(cache): cache for cache in caches}.values())


assert number() == compiled, (number(), compiled)
# Other strides, counts and addresses; pointers that are not aligned; counts of 1 and beyond 2^31.
for op in triton.OPS:
    for v in triton.variants(op):
        for value in (1, 7, 16, 2**31 - 1):
            arguments = [
                torch.empty(9, dtype=triton._DTYPES[t])[1:] if t in triton._DTYPES
                else value + (2**33 if t == "i64" else 0)
                for t in v.signature.values()
            ]
            v.kernel.warmup(*arguments, grid=(1,), **v.constants)
assert number() == compiled, (number(), compiled)
print("compiled", compiled)
"""


@pytest.mark.nightly
def test_nothing_compiles_after_warm_up() -> None:
    """In a process of its own: here the kernels are interpreted."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", WARM_UP]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[-1]) == sum(len(triton.variants(op)) for op in triton.OPS)
