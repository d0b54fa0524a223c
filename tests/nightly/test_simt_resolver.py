"""The portable kernel body of ``resolve`` in the emulation, against the CPU op: whole buffers, bit for bit."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hisparse_ops
from hisparse_ops.simt import _launch
from hisparse_ops.testing import emulation
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import Sample, load, samples

ROOT = Path(__file__).parents[2]
RESOLVE = hisparse_ops.ops()["resolve"].call
SAMPLES = {tier: list(samples("resolve", tier)) for tier in ("default", "nightly")}


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> dict[int, emulation.Emulation]:
    out = tmp_path_factory.mktemp("emulation")
    return {w: emulation.Emulation(emulation.build(ROOT, out, warp=w)) for w in (32, 64)}


def check(
    machine: emulation.Emulation, sample: Sample, *, threads: int, seed: int, blocks: int
) -> None:
    args = sample.args()
    expected = clone_args(args)
    RESOLVE(**expected)
    machine.run(args, threads=threads, seed=seed, blocks=blocks)
    assert_same_buffers(args, expected)


@pytest.mark.parametrize("case", SAMPLES["default"], ids=lambda s: s.name)
@pytest.mark.parametrize("warp", [32, 64])
def test_equals_the_cpu_op(
    machines: dict[int, emulation.Emulation], warp: int, case: Sample
) -> None:
    for threads, seed, blocks in ((64, 0, 3), (256, 1, 1), (128, 2, 100)):
        check(machines[warp], case, threads=threads, seed=seed, blocks=blocks)


@pytest.mark.nightly
@pytest.mark.parametrize("warp", [32, 64])
@pytest.mark.parametrize("threads", [256, 512, 1024])
def test_equals_the_cpu_op_at_every_size(
    machines: dict[int, emulation.Emulation], warp: int, threads: int
) -> None:
    for sample in SAMPLES["nightly"]:
        check(machines[warp], sample, threads=threads, seed=threads + warp, blocks=2)


@pytest.mark.nightly
def test_equals_the_cpu_op_in_any_order_of_threads(
    machines: dict[int, emulation.Emulation],
) -> None:
    for sample in SAMPLES["default"]:
        for seed in range(1, 21):
            check(machines[32], sample, threads=128, seed=seed, blocks=1 + seed % 4)


@pytest.mark.parametrize("sizes", [(1, 8, 8, 24), (128, 2048, 8192, 10240), (4, 2048, 99, 32767)])
def test_shared_memory_is_the_same_number_everywhere(
    machines: dict[int, emulation.Emulation], sizes: tuple[int, int, int, int]
) -> None:
    assert machines[32].raw.hisparse_resolve_shared_bytes(*sizes) == _launch.shared_bytes(*sizes)


def test_the_sizes_of_real_models_fit() -> None:
    """GLM-5.2 with MTP 3: a run needs at most 8192 rows; 32 requests in a batch, hot buffer of 10240 or 32768."""
    ascend950, h200, a100 = 216 << 10, 227 << 10, 163 << 10
    assert _launch.shared_bytes(128, 2048, 8192, 10240) == 153_120 <= a100
    assert _launch.shared_bytes(128, 2048, 8192, 32768) == 200_992 <= min(ascend950, h200)


def test_what_does_not_fit_is_refused_with_both_numbers() -> None:
    args = next(samples("resolve")).args()
    numbers = _launch.sizes(args) | {"rows": 128, "top_k": 2048, "union_limit": 16384}
    _launch.check_budget(numbers, 1 << 20)
    needed = _launch.shared_bytes(128, 2048, 16384, numbers["hot_size"])
    error = (
        "^resolve: max_union_rows must leave a block at most 221184 bytes of shared memory to use,"
        f" got {needed} bytes for 16384 rows$"
    )
    with pytest.raises(ValueError, match=error):
        _launch.check_budget(numbers, 216 << 10)


def test_a_run_above_its_limit_touches_nothing(machines: dict[int, emulation.Emulation]) -> None:
    """The CPU op refuses it by value; a device answers it like padding, and the other runs as ever."""
    scene = load("resolve").scene
    args = scene(torch.Generator().manual_seed(1), runs=((0, 2), (1, 2)), hot_size=40, null=0.0)
    args["topk_indices"][:2] = torch.arange(16).view(2, 8)
    expected = clone_args(args)
    expected["request_ids"][:2] = -1
    RESOLVE(**expected)
    expected["request_ids"][:2] = 0
    for limit in (12, 15):
        actual = clone_args(args)
        actual["topk_indices"][2:] = expected["topk_indices"][2:] = args["topk_indices"][2:] % 12
        actual["topk_indices"][3] = expected["topk_indices"][3] = actual["topk_indices"][2]
        machines[32].run(actual | {"max_union_rows": limit}, threads=64, seed=3, blocks=2)
        again = clone_args(args)
        again["topk_indices"][2:] = actual["topk_indices"][2:]
        again["request_ids"][:2] = -1
        RESOLVE(**again)
        again["request_ids"][:2] = 0
        assert_same_buffers(actual, again)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sanitizer", "machine"), [("address,undefined", "fibers"), ("thread", "threads")]
)
def test_sanitizers_have_nothing_to_say(tmp_path: Path, sanitizer: str, machine: str) -> None:
    """No access out of bounds, nothing undefined; no two threads that meet without a barrier between."""
    assert emulation.sanitize(ROOT, tmp_path, sanitizer, machine) == ""


@pytest.mark.nightly
def test_every_fault_of_the_body_is_noticed() -> None:
    spec = importlib.util.spec_from_file_location("device_faults", ROOT / "tools/device_faults.py")
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    sys.modules["device_faults"] = tool
    spec.loader.exec_module(tool)
    count, unnoticed = tool.run_body(report=False)
    assert count >= 12 and unnoticed == []


# --- address spaces -----------------------------------------------------------------------------

KERNEL = "ops/resolver/ascend950/op_kernel/hisparse_resolve.cpp"


def type_check(root: Path, out: Path) -> str:
    """What clang says of the Ascend kernel, with global and shared memory as address spaces."""
    device = root / "ops/resolver/ascend950"
    command = [sys.executable, "-m", "ziglang", "c++", "-std=c++17", "-c", "-o", str(out / "x.o")]
    command += ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-D__NPU_ARCH__=3510"]
    includes = [root / "ops", device, device / "op_kernel", root / "tests/stubs/spaces"]
    command += [f"-I{path}" for path in includes]
    return subprocess.run([*command, str(root / KERNEL)], capture_output=True, text=True).stderr


needs_clang = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="ziglang, which brings clang, is missing"
)


@needs_clang
def test_pointers_keep_their_memory_space(tmp_path: Path) -> None:
    assert type_check(ROOT, tmp_path) == ""


@needs_clang
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("shared_min(values_ + place, kHit", "shared_min(owner() + place, kHit"),
        ("keys_(shared + operands.shared.keys)", "keys_(operands.hot_owner.base)"),
        (
            "global_add(o_.stats.base, references",
            "global_add((HISPARSE_SHARED int64_t*)keys_, references",
        ),
        ("const int32_t* base;", ""),
    ],
)
def test_pointers_that_change_their_space_are_refused(tmp_path: Path, old: str, new: str) -> None:
    tree = copy(tmp_path)
    file = tree / "ops/resolver/simt/resolve_block.h"
    if not new:
        file, old, new = tree / "ops/resolver/simt/operands.h", f"HISPARSE_GLOBAL {old}", old
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    assert "error:" in type_check(tree, tmp_path)


def copy(out: Path) -> Path:
    for source in ("ops/resolver", "tests/stubs"):
        shutil.copytree(ROOT / source, out / "tree" / source)
    return out / "tree"
