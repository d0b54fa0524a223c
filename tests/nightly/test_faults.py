"""Faults: random corruption of any index, memory that runs out, sizes whose product overflows."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hisparse_ops as hs
from hisparse_ops import reference, traces
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args, tensors

WILD = (
    -1,
    -2,
    0,
    1,
    2**15 - 1,
    -(2**15),
    2**31 - 1,
    -(2**31),
    2**31,
    2**32,
    2**32 + 1,
    2**63 - 1,
    -(2**63),
)
SLOW_ORACLE = 6000
"""Elements of the index tensors beyond which an oracle is no longer quick."""

PER_OP = int(os.environ.get("HISPARSE_FAULTS", "300"))


def index_tensors(args: dict[str, Any]) -> list[Tensor]:
    """Integer tensors that are no bytes of rows; those that the op writes hold state as well."""
    kinds = (torch.int16, torch.int32, torch.int64)
    rows = ("cache", "host_cache", "hot_cache", "source", "staging", "slab", "rows", "caches")
    rows += ("sources", "destinations", "latent", "rope", "nope", "scales")
    return [
        t
        for name, t in tensors(args)
        if t.dtype in kinds and t.numel() > 0 and name.split("[")[0] not in rows
    ]


def corrupt(args: dict[str, Any], rng: random.Random) -> int:
    """One to four elements become wild; returns how many."""
    choices = index_tensors(args)
    count = rng.randint(1, 4) if choices else 0
    for _ in range(count):
        t = rng.choice(choices)
        limits = torch.iinfo(t.dtype)
        near = rng.randint(-3, 3) + rng.choice((0, t.numel(), t.shape[-1]))
        value = rng.choice([*WILD, near, near, near])
        index = tuple(rng.randrange(n) for n in t.shape)
        if 0 not in t.stride():
            t[index] = min(max(value, limits.min), limits.max)
    return count


def run_like_the_oracle(op: str, args: dict[str, Any]) -> None:
    """The op does to the whole buffers what the oracle does, or refuses in the same words and touches nothing."""
    expected = clone_args(args)
    before = clone_args(args)
    refused = ""
    try:
        reference.load(op)(**expected)
    except ValueError as error:
        refused, expected = str(error), before
    if refused:
        with pytest.raises(ValueError, match=f"^{re.escape(refused)}$"):
            hs.ops()[op].call(**args)
    else:
        hs.ops()[op].call(**args)
    mask = getattr(samples.load(op), "unspecified", None)
    assert_same_buffers(args, expected, mask(expected) if mask else None)


@pytest.mark.parametrize("isa", hs.cpu_isas())
def test_random_faults_write_nothing_outside(op: str, isa: str, tier: str) -> None:
    before = hs.cpu_isa()
    rng = random.Random(f"{op} {isa}")
    small = [
        s
        for s in samples.samples(op)
        if sum(t.numel() for t in index_tensors(s.args())) < SLOW_ORACLE
    ]
    made = [s.args() for s in small]
    try:
        hs.set_cpu_isa(isa)
        for _ in range(PER_OP if tier == "nightly" else 20):
            args = clone_args(rng.choice(made))
            corrupt(args, rng)
            run_like_the_oracle(op, args)
    finally:
        hs.set_cpu_isa(before)


def test_memory_that_runs_out_is_an_error_and_the_state_stays() -> None:
    """resolve needs scratch for a run; under a limit of address space it raises, and works again without."""
    program = """
import resource, torch, hisparse_ops as hs
torch.set_num_threads(1)
top_k, rows, hot = 4096, 8, 32768
def args(topk_rows, k):
    owner, lru = hs.new_hot_state(1, hot)
    out = lambda: torch.zeros(topk_rows, k, dtype=torch.int32)
    return dict(topk_indices=torch.arange(topk_rows * k).view(topk_rows, k),
        request_ids=torch.zeros(topk_rows, dtype=torch.int32), request_state_indices=torch.zeros(1, dtype=torch.int32),
        source_block_table=None, hot_block_table=torch.arange(1, 1 + hot // 64, dtype=torch.int32)[None],
        hot_owner=owner, lru_slots=lru, attention_indices=out(), valid_counts=out()[:, 0].clone(),
        refill_host_rows=out(), refill_hot_rows=out(), refill_counts=out()[:, 0].clone(),
        host_rows=1 << 20, num_blocks=1 + hot // 64, block_size=64)
small, large = args(1, 8), args(rows, top_k)
hs.resolve(**small)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 16), resource.RLIM_INFINITY))
try:
    hs.resolve(**large)
    said = "no error"
except Exception as error:
    said = type(error).__name__
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
untouched = bool((large["hot_owner"] == -1).all() and (large["attention_indices"] == 0).all())
hs.resolve(**large)
print(said, untouched, int(large["valid_counts"].sum()) == rows * top_k)
"""
    env = os.environ | {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    said, untouched, again = done.stdout.split() or (done.stderr[-500:], "", "")
    assert said in ("MemoryError", "RuntimeError"), (done.returncode, said)
    assert (untouched, again) == ("True", "True")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            {"num_blocks": 2**62},
            "num_blocks must be between 0 and 536870911, got 4611686018427387904",
        ),
        (
            {"block_size": 2**62},
            "block_size must be between 1 and 2147483647, got 4611686018427387904",
        ),
        (
            {"host_rows": 2**63 - 1},
            "host_rows must be between 0 and 2147483647, got 9223372036854775807",
        ),
        (
            {"source_block_size": 2**62},
            "source_block_size must be between 1 and 2147483647, got 4611686018427387904",
        ),
        (
            {"attention_block_stride": 2**62},
            "attention_block_stride must be between 4 and 32537630, got 4611686018427387904",
        ),
        (
            {"max_union_rows": 2**62},
            "max_union_rows must be between 8 and 24, got 4611686018427387904",
        ),
    ],
)
def test_sizes_whose_product_overflows_are_named(change: dict[str, int], error: str) -> None:
    args = next(samples.samples("resolve")).args()
    before = clone_args(args)
    with pytest.raises(ValueError, match=f"^resolve: {error}$"):
        hs.resolve(**args | change)
    assert_same_buffers(args, before)


def test_slabs_of_absurd_height_are_addressed_in_64_bits() -> None:
    """2**40 rows of no bytes: row numbers overflow 32 bits, and every op of rows takes them."""
    tall = torch.empty(2**20, 2**20, 0, dtype=torch.uint8)
    ids = torch.tensor([2**40 - 1, 2**40, -1])
    hs.copy_resident_rows(tall, ids, torch.empty(3, 0, dtype=torch.uint8), invalid="keep")
    hs.scatter_rows([torch.empty(3, 0, dtype=torch.uint8)], ids, [tall])
    hs.gather_compact(tall, tall.clone(), ids[None], ids[None], torch.tensor([3]))


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_trace_is_an_error_of_its_own(seed: int, tmp_path: Path, tier: str) -> None:
    """Cut anywhere, or with any byte changed: the trace that was saved, or a TraceError, and never anything else."""
    whole = traces.generate("drift", context=40, top_k=8, steps=3)
    path = tmp_path / "trace.npz"
    traces.save(whole, path)
    data = path.read_bytes()
    rng = np.random.default_rng(seed)
    for _ in range(400 if tier == "nightly" else 40):
        damaged = bytearray(data[: rng.integers(0, len(data) + 1)])
        for _ in range(int(rng.integers(0, 4))):
            if damaged:
                damaged[rng.integers(0, len(damaged))] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            found = traces.load(path)
        except traces.TraceError as error:
            assert str(error).startswith(f"{path}: ")
        else:
            found.check()
