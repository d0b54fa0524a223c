"""Core's op names and schemas, against the oracles of the ops they stand for. Needs no vLLM."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from hisparse_ops import reference
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import Sample
from hisparse_vllm.core import ops as bridge

bridge.register()
CORE = getattr(torch.ops, bridge.NAMESPACE)


def of(op: str) -> list[Any]:
    return [pytest.param(s, id=s.name) for s in samples.samples(op, "default")]


def core_sample(sample: Sample) -> dict[str, Any]:
    """A sample's arguments without what Core's op has no word for."""
    args = sample.args()
    for name in ("layout", "stable_lengths", "resident_counts"):
        args.pop(name, None)
    return args


def core_arguments(args: dict[str, Any]) -> list[Any]:
    """The call as Core makes it, position by position."""
    block_size = args["block_size"]
    host_cache = torch.empty(args["host_rows"], 1)
    hot_cache = torch.empty(args["num_blocks"], block_size, 1)
    stats = args.get("stats")
    return [
        host_cache,
        hot_cache,
        args["hot_block_table"],
        args["topk_indices"],
        args["physical_rows"],
        args["hot_owner"],
        args["lru_slots"],
        args["request_state_indices"],
        args["lru_slots"].shape[1],
        args.get("max_union_rows") or args["lru_slots"].shape[1],
        args.get("miss_mask"),
        None if stats is None else stats.view(torch.uint64),
        args["attention_indices"],
        args.get("attention_block_stride") or block_size,
        args["request_ids"],
        args.get("source_block_table"),
        args.get("source_block_size") or block_size,
        args.get("resolved_host_rows"),
        args["valid_counts"],
        args["refill_host_rows"],
        args["refill_hot_rows"],
        args["refill_counts"],
        args.get("resident_block_table"),
        args.get("resident_block_size") or block_size,
        0,
    ]


RESOLVE = [
    sample
    for sample in samples.samples("resolve", "default")
    if sample.args().get("physical_rows") is not None
]


@pytest.mark.parametrize("case", RESOLVE, ids=lambda s: s.name)
def test_resolve_residency(case: Sample) -> None:
    args = core_sample(case)
    expected = clone_args(args)
    reference.load("resolve")(**expected)
    CORE.hisparse_resolve_residency(*core_arguments(args))
    unspecified = getattr(samples.load("resolve"), "unspecified", None)
    assert_same_buffers(args, expected, unspecified(expected) if unspecified else None)


def test_resolve_residency_without_what_core_may_leave_out() -> None:
    """No attention indices, no counts, no plan: physical rows and state are as with them."""
    full, bare = core_sample(RESOLVE[0]), core_sample(RESOLVE[0])
    CORE.hisparse_resolve_residency(*core_arguments(full))
    call = core_arguments(bare)
    call[12:14] = [None, 0]
    call[18:22] = [None, None, None, None]
    CORE.hisparse_resolve_residency(*call)
    for name in ("physical_rows", "hot_owner", "lru_slots"):
        assert torch.equal(full[name], bare[name]), name


def test_resolve_residency_of_one_request_a_row() -> None:
    """Neither request ids nor state rows: batch row i is request i and state row i."""
    from hisparse_ops import new_hot_state

    owner, lru = new_hot_state(2, 8)
    topk = torch.tensor([[3, 5, -1], [0, 9, 3]], dtype=torch.int32)
    rows = torch.empty_like(topk)
    CORE.hisparse_resolve_residency(
        torch.empty(32, 1),
        torch.empty(5, 4, 1),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.int32),
        topk,
        rows,
        owner,
        lru,
        None,
        8,
        6,
    )
    assert owner[:, :3].tolist() == [[3, 5, -1], [0, 9, 3]]
    assert rows.tolist() == [[4, 5, -1], [12, 13, 14]]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (8, 5, "region_stride must be the 24 slots of lru_slots, got 5"),
        (24, 7, "resident_null_block must be 0, got 7"),
    ],
)
def test_resolve_residency_refuses(position: int, value: int, message: str) -> None:
    args = next(a for a in map(core_sample, RESOLVE) if a["lru_slots"].shape[1] == 24)
    expected = clone_args(args)
    call = core_arguments(args)
    call[position] = value
    with pytest.raises(ValueError, match=message):
        CORE.hisparse_resolve_residency(*call)
    assert_same_buffers(args, expected)


@pytest.mark.parametrize("case", of("gather_compact"))
def test_gather_compact(case: Sample) -> None:
    args = case.args()
    expected = clone_args(args)
    reference.load("gather_compact")(**expected)
    CORE.hisparse_gather_compact(*args.values())
    assert_same_buffers(args, expected)


@pytest.mark.parametrize("case", of("gather_plan"))
def test_gather_plan(case: Sample) -> None:
    args = case.args()
    expected = clone_args(args)
    reference.load("gather_plan")(**expected)
    names = ("host_cache", "hot_cache", "host_rows", "hot_rows", "miss_mask")
    CORE.hisparse_gather_plan(
        *(args[name] for name in names),
        args.get("request_state_indices"),
        args.get("attention_indices"),
        args.get("attention_block_stride") or 0,
    )
    assert_same_buffers(args, expected)


@pytest.mark.parametrize("case", of("invalidate_written"))
def test_invalidate_written_slots(case: Sample) -> None:
    """Group after group, as a Core without the grouped form calls it."""
    args = case.args()
    expected = clone_args(args)
    reference.load("invalidate_written")(**expected)
    for owner in args["owners"]:
        CORE.hisparse_invalidate_written_slots(
            owner, args["request_state_indices"], args["request_ids"], args["slots"]
        )
    assert_same_buffers(args, expected)


def addresses(t: Tensor, offsets: list[int]) -> Tensor:
    return torch.tensor([t.data_ptr() + offset for offset in offsets])


def test_swap_blocks_batch() -> None:
    """Odd addresses and sizes, an empty entry, a repeated destination, whole destination compared."""
    source = torch.randint(0, 256, (5000,), dtype=torch.uint8)
    destination = torch.randint(0, 256, (9000,), dtype=torch.uint8)
    expected = destination.clone()
    entries = [(1, 7, 50), (100, 500, 0), (1000, 4000, 3333), (17, 4001, 16)]
    for s, d, n in entries:
        expected[d : d + n] = source[s : s + n]
    starts, ends, sizes = zip(*entries, strict=True)
    CORE.swap_blocks_batch(
        addresses(source, list(starts)), addresses(destination, list(ends)), torch.tensor(sizes)
    )
    assert torch.equal(destination, expected)


def test_swap_blocks_batch_between_pages_of_one_slab() -> None:
    """Sources and destinations interleave in memory."""
    slab = torch.arange(64, dtype=torch.int32).view(8, 8)
    expected = slab.clone()
    pairs = [(0, 3), (2, 5), (7, 1)]
    for s, d in pairs:
        expected[d] = slab[s]
    CORE.swap_blocks_batch(
        addresses(slab, [32 * s for s, _ in pairs]),
        addresses(slab, [32 * d for _, d in pairs]),
        torch.full((3,), 32),
    )
    assert torch.equal(slab, expected)


def test_swap_blocks_batch_of_nothing() -> None:
    none = torch.empty(0, dtype=torch.int64)
    CORE.swap_blocks_batch(none, none, none)


def int64(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (int64(0), int64(64), int64(8)),
            "every entry must name memory, got 0 -> 64, 8 bytes, in entry 0",
        ),
        ((int64(64), int64(64), int64(-1)), "every entry must name memory, got 64 -> 64, -1 bytes"),
        ((int64(1, 2), int64(1), int64(8)), "src_ptrs must have 1 entries, got 2"),
        ((int64(1).int(), int64(1), int64(8)), "src_ptrs must be a list of int64 on the CPU"),
    ],
)
def test_swap_blocks_batch_refuses(arguments: tuple[Tensor, ...], message: str) -> None:
    with pytest.raises(ValueError, match=f"swap_blocks_batch: {message}"):
        CORE.swap_blocks_batch(*arguments)


@pytest.mark.parametrize("name", list(bridge.SCHEMAS))
def test_schemas_tell_the_truth(name: str) -> None:
    calls: dict[str, list[Any]] = {
        "hisparse_resolve_residency": core_arguments(core_sample(RESOLVE[0])),
        "hisparse_gather_compact": list(of("gather_compact")[0].values[0].args().values()),
        "swap_blocks_batch": [int64(), int64(), int64()],
    }
    if name not in calls:
        op = {"hisparse_gather_plan": "gather_plan"}.get(name, "invalidate_written")
        args = next(iter(samples.samples(op, "default"))).args()
        calls[name] = (
            [args[n] for n in ("host_cache", "hot_cache", "host_rows", "hot_rows", "miss_mask")]
            + [None]
            if op == "gather_plan"
            else [
                args["owners"][0],
                args["request_state_indices"],
                args["request_ids"],
                args["slots"],
            ]
        )
    torch.library.opcheck(
        getattr(CORE, name).default,
        tuple(calls[name]),
        test_utils=("test_schema", "test_faketensor"),
    )


def in_a_fresh_process(code: str) -> subprocess.CompletedProcess[str]:
    import os

    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        check=False,
    )


GROUPED = """
import torch
from hisparse_vllm.core import ops
library = torch.library.Library(ops.NAMESPACE, "FRAGMENT")
library.define(ops.INVALIDATE_WRITTEN + {schema!r})
ops.register()
assert ops.has_grouped_invalidation()
owners = [torch.tensor([[4, 9, 4]], dtype=torch.int32), torch.tensor([[9, 1]], dtype=torch.int32)]
one = torch.zeros(1, dtype=torch.int32)
torch.ops._C_cache_ops.hisparse_invalidate_written_slots(owners, one, one, torch.tensor([9]))
assert [o.tolist() for o in owners] == [[[4, -1, 4]], [[-1, 1]]], owners
"""


def test_a_core_with_grouped_invalidation_uses_it() -> None:
    done = in_a_fresh_process(GROUPED.format(schema=bridge.GROUPED_INVALIDATE_WRITTEN))
    assert done.returncode == 0, done.stderr


def test_an_unknown_schema_is_refused_by_name() -> None:
    unknown = bridge.SCHEMAS["hisparse_gather_compact"].replace(
        "Tensor miss_counts", "int miss_counts"
    )
    done = in_a_fresh_process(
        "import torch\nfrom hisparse_vllm.core import ops\n"
        "library = torch.library.Library(ops.NAMESPACE, 'FRAGMENT')\n"
        f"library.define('hisparse_gather_compact' + {unknown!r})\nops.register()\n"
    )
    assert done.returncode == 1
    assert (
        "_C_cache_ops::hisparse_gather_compact must have the schema of vLLM 0.32 or 0.33"
        in done.stderr
    )
