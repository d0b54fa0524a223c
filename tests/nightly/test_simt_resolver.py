"""The portable kernel body of ``resolve`` in the emulation, against the CPU op: whole buffers, bit for bit."""

from __future__ import annotations

import os
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
    return {warp: emulation.build(ROOT, out, warp=warp) for warp in (32, 64)}


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


def test_threads_that_diverge_are_named(tmp_path: Path) -> None:
    """The judge works: a barrier that half of the threads skip is an error and not a result."""
    tree = tmp_path / "tree"
    for source in ("ops/resolver/simt", "tests/stubs/simt"):
        (tree / source).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", ROOT / source, tree / source], check=True)
    body = tree / "ops/resolver/simt/resolve_block.h"
    text = body.read_text()
    place = "    others_ = o_.hot_size - hits;\n    barrier();\n"
    assert place in text
    body.write_text(text.replace(place, place.replace("barrier", "if (thread_ % 2) barrier")))
    machine = emulation.build(tree, tmp_path)
    with pytest.raises(RuntimeError, match="not all"):
        machine.run(SAMPLES["default"][0].args(), threads=64, seed=0, blocks=1)


@pytest.mark.nightly
def test_no_access_is_out_of_bounds(tmp_path: Path) -> None:
    """AddressSanitizer and UBSan over the default samples, in a process that starts with them."""
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g", "-O1")
    emulation_path = emulation_file(tmp_path, flags)
    runtime = subprocess.run(
        [emulation.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True
    ).stdout.strip()
    program = (
        "import sys, pathlib\n"
        "from hisparse_ops.testing import emulation, samples\n"
        "machine = emulation.Emulation(pathlib.Path(sys.argv[1]))\n"
        "for sample in samples.samples('resolve'):\n"
        "    machine.run(sample.args(), threads=128, seed=1, blocks=2)\n"
        "print('done')\n"
    )
    env = os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(emulation_path)],
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "done\n", done.stderr[-3000:]


def emulation_file(out: Path, flags: tuple[str, ...]) -> Path:
    target = out / "libsanitized.so"
    sources = sorted((ROOT / "tests/stubs/simt").glob("*.cpp"))
    command = [emulation.compiler(), "-std=c++17", "-fPIC", "-shared", *flags, f"-I{ROOT / 'ops'}"]
    subprocess.run([*command, *map(str, sources), "-o", str(target)], check=True)
    return target
