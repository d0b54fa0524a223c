"""The Triton kernels at the seams of grids and blocks and far into memory, and what their launchers remember."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from hisparse_ops import reference, triton
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args

interpreter = pytest.importorskip(
    "hisparse_ops.testing.interpreter",
    reason="triton is not installed",
    exc_type=ModuleNotFoundError,
)

TOP_KS = (1, 7, 9, *range(31, 66), 2047, 2048)
ROWS = (1023, 1024, 1025)
MANY_ROWS = (65_535, 65_536, 131_072)


def check(op: str, args: dict[str, Any]) -> None:
    """The kernel against the CPU op, which the suite holds against the oracle at every size."""
    import hisparse_ops

    expected = clone_args(args)
    hisparse_ops.ops()[op].call(**expected)
    interpreter.call(op, args, cores=4)
    assert_same_buffers(args, expected)


def gather(rows: int, top_k: int, width: int, gen: torch.Generator) -> dict[str, Any]:
    """Every hot row at most once; few entries a row, so that many rows take no long time."""
    entries = torch.full((2, rows, top_k), -1, dtype=torch.int32)
    counts = torch.randint(0, min(top_k, 3) + 1, (rows,), generator=gen, dtype=torch.int32)
    if rows > 2000:
        counts[torch.rand(rows, generator=gen) < 0.99] = 0
    else:
        counts[-1] = top_k
    used = torch.arange(top_k) < counts[:, None]
    number = int(used.sum())
    entries[0][used] = torch.randint(0, 64, (number,), generator=gen, dtype=torch.int32)
    entries[1][used] = torch.randperm(number + 5, generator=gen)[:number].int()
    return {
        "host_cache": torch.randint(256, (64, width), dtype=torch.uint8, generator=gen),
        "hot_cache": torch.zeros(number + 5, width, dtype=torch.uint8),
        "host_rows": entries[0],
        "hot_rows": entries[1],
        "counts": counts,
    }


@pytest.mark.parametrize(
    "top_k", [300, *(pytest.param(k, marks=pytest.mark.nightly) for k in TOP_KS)]
)
def test_gather_at_every_top_k(top_k: int) -> None:
    gen = torch.Generator().manual_seed(top_k)
    args = gather(3, top_k, 36, gen)
    check("gather_compact", args)
    counts = args.pop("counts")
    args["miss_mask"] = (torch.arange(top_k) < counts[:, None]).int()
    args["hot_cache"] = torch.zeros_like(args["hot_cache"])
    args["attention_indices"] = torch.full((3, top_k), 7, dtype=torch.int32)
    args["attention_block_stride"] = len(args["hot_cache"])
    check("gather_plan", args)


@pytest.mark.parametrize(
    "rows", [1025, *(pytest.param(n, marks=pytest.mark.nightly) for n in (*ROWS[:2], *MANY_ROWS))]
)
def test_gather_of_many_rows(rows: int) -> None:
    check(
        "gather_compact",
        gather(rows, 2 if rows < 2000 else 1, 20, torch.Generator().manual_seed(rows)),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [*ROWS, *MANY_ROWS])
def test_lists_of_many_rows(rows: int) -> None:
    gen = torch.Generator().manual_seed(rows)
    slots = torch.randint(-1, 2**31 - 1, (rows,), generator=gen, dtype=torch.int64)
    count = torch.tensor([rows - 3])
    check(
        "pad_slots",
        {"slots": slots, "valid_count": count, "out": torch.zeros(rows, dtype=torch.int32)},
    )
    counts = torch.randint(0, 2**31 - 1, (3, rows), generator=gen, dtype=torch.int32)
    names = ("valid_counts", "refill_counts", "resident_counts")
    check(
        "residency_stats",
        {**dict(zip(names, counts, strict=True)), "stats": torch.tensor([5, -(2**62)])},
    )
    few = torch.where(torch.rand(rows, generator=gen) < 0.999, -1, torch.arange(rows) % 50).int()
    cache = torch.zeros(50, 12, dtype=torch.uint8)
    source = torch.randint(256, (rows, 12), dtype=torch.uint8, generator=gen)
    kept = {int(slot): i for i, slot in enumerate(few.tolist()) if slot >= 0}  # the last of each
    once = torch.full((rows,), -1, dtype=torch.int32)
    for slot, i in kept.items():
        once[i] = slot
    check("scatter_rows", {"rows": [source], "slots": once, "caches": [cache]})
    staging = torch.zeros(rows, 12, dtype=torch.uint8)
    check(
        "copy_resident_rows",
        {"source": source, "row_ids": few, "staging": staging, "invalid": "keep"},
    )


@pytest.mark.nightly
@pytest.mark.parametrize("tokens", [*ROWS, 8192])
def test_invalidation_of_many_tokens(tokens: int) -> None:
    gen = torch.Generator().manual_seed(tokens)
    rows = torch.randint(0, 4 * tokens, (3, 2500), generator=gen, dtype=torch.int32)
    slots = torch.randperm(4 * tokens, generator=gen)[:tokens]
    request_ids = (torch.arange(tokens) // 700 % 3).int()
    states = torch.tensor([2, -1, 0], dtype=torch.int32)
    args = {"request_state_indices": states, "request_ids": request_ids, "slots": slots}
    check("invalidate_written", {"owners": [rows.clone(), rows[:, :1025].clone()], **args})
    blocks = (torch.randperm(tokens // 16, generator=gen)[: tokens // 64].sort()[0] * 64)[:, None]
    recycled = torch.cat([(blocks + torch.arange(64)).flatten(), slots[:40] + 4 * tokens]).sort()[0]
    check(
        "invalidate_recycled",
        {"owners": [rows], "state_rows": torch.tensor([1, 0]), "sorted_slots": recycled},
    )


def test_rows_beyond_4_gib() -> None:
    """Offsets pass 2^32 bytes and 2^31 lanes: the debug interpreter raises where one is formed in 32 bits."""
    width = 655  # moves byte by byte, so that offsets in lanes are as large as those in bytes
    rows = (5 << 30) // width
    host = torch.empty(
        rows, width, dtype=torch.uint8
    )  # only the pages that are touched come to exist
    gen = torch.Generator().manual_seed(0)
    wanted = torch.tensor([0, 3_300_000, 6_600_000, rows - 1])
    fresh = torch.randint(256, (4, width), dtype=torch.uint8, generator=gen)
    interpreter.call("scatter_rows", {"rows": [fresh], "slots": wanted, "caches": [host]})
    assert torch.equal(host[wanted], fresh)
    hot = torch.zeros(8, width, dtype=torch.uint8)
    plan = {"host_rows": wanted[None], "hot_rows": torch.tensor([[1, 3, 5, 7]])}
    args = {"host_cache": host, "hot_cache": hot, **plan}
    interpreter.call("gather_compact", {**args, "counts": torch.tensor([4])})
    assert torch.equal(hot[1::2], fresh) and not hot[::2].any()
    hot.zero_()
    interpreter.call("gather_plan", {**args, "miss_mask": torch.ones(1, 4, dtype=torch.int32)})
    assert torch.equal(hot[1::2], fresh)
    staging = torch.zeros(4, width, dtype=torch.uint8)
    interpreter.call(
        "copy_resident_rows",
        {"source": host, "row_ids": wanted, "staging": staging, "invalid": "keep"},
    )
    assert torch.equal(staging, fresh)
    back = torch.zeros(8, width, dtype=torch.uint8)
    spans = torch.tensor([[int(row), to, 1] for to, row in enumerate(wanted)])
    interpreter.call("copy_row_spans", {"sources": [host], "destinations": [back], "spans": spans})
    assert torch.equal(back[:4], fresh)


def far(path: Path, shape: tuple[int, ...], stride: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros in a sparse file, ``stride`` elements from one to the next along the first dimension."""
    size = stride * (shape[0] - 1) + math.prod(shape[1:])
    inner = torch.empty(shape[1:], device="meta").stride()
    t = torch.from_file(str(path), shared=True, size=size, dtype=dtype)
    return t.as_strided(shape, (stride, *inner))


PAGES_APART = 720_000_001
"""Bytes; odd, so that lanes are bytes. Page 3 of 4 begins beyond 2^31 of them."""


def test_pages_beyond_2_gib(tmp_path: Path) -> None:
    """Offsets pass 2^31 lanes on both sides."""
    gen = torch.Generator().manual_seed(0)
    source, slab = (
        far(tmp_path / side, (4, 2, 5), PAGES_APART, torch.uint8) for side in ("source", "slab")
    )
    source.copy_(torch.randint(1, 256, (4, 2, 5), dtype=torch.uint8, generator=gen))
    args = {"sources": [source], "destinations": [slab]}
    interpreter.call("copy_pages", {**args, "page_pairs": torch.tensor([[3, 2], [1, 3]])})
    assert torch.equal(slab[2:], source[[3, 1]]) and not slab[:2].any()
    slab.zero_()
    ids = {"source_blocks": torch.tensor([3, 2]), "logical_blocks": torch.tensor([1, 3])}
    interpreter.call("publish_indexer_pages", {"source": source, "slab": slab, **ids})
    assert torch.equal(slab[[1, 3]], source[[3, 2]]) and not slab[[0, 2]].any()


def test_state_rows_beyond_2_to_the_31(tmp_path: Path) -> None:
    """Owner tables whose last row begins beyond 2^31 elements; only the rows that are touched come to exist."""
    owners = far(tmp_path / "owners", (4, 6), 720_000_000, torch.int32)
    lru = far(tmp_path / "lru", (4, 6), 720_000_000, torch.int16)
    interpreter.call(
        "reset_requests",
        {"hot_owner": owners, "lru_slots": lru, "state_rows": torch.tensor([3])},
    )
    assert owners[3].tolist() == [-1] * 6 and not owners[:3].any()
    assert lru[3].tolist() == list(range(6)) and not lru[:3].any()
    held = torch.tensor([5, 6, 7, 8, 9, 10], dtype=torch.int32)
    owners.copy_(held.expand(4, 6))
    interpreter.call(
        "invalidate_written",
        {
            "owners": [owners],
            "request_state_indices": torch.tensor([3]),
            "request_ids": torch.tensor([0, 0]),
            "slots": torch.tensor([6, 9]),
        },
    )
    assert owners[3].tolist() == [5, -1, 7, 8, -1, 10] and torch.equal(
        owners[:3], held.expand(3, 6)
    )
    interpreter.call(
        "invalidate_recycled",
        {
            "owners": [owners],
            "state_rows": torch.tensor([3]),
            "sorted_slots": torch.tensor([7, 10]),
        },
    )
    assert owners[3].tolist() == [5, -1, -1, 8, -1, -1]
    assert torch.equal(owners[:3], held.expand(3, 6))


@pytest.mark.parametrize("layers", [1, 2, 5])
def test_long_spans_are_shared_out(layers: int) -> None:
    """More rows than one owner has in a row, several owners or one, and rows that are written twice."""
    gen = torch.Generator().manual_seed(layers)
    sources = [
        torch.randint(256, (700, 3), dtype=torch.uint8, generator=gen) for _ in range(layers)
    ]
    spans = torch.tensor([[5, 0, 640], [100, 590, 200], [-30, 20, 300], [300, 64, 64]])
    args = {"sources": sources, "destinations": [torch.zeros_like(s) for s in sources]}
    check("copy_row_spans", {**args, "spans": spans})


def test_a_list_is_copied_to_the_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from hisparse_ops.triton import _table

    cpu = torch.device("cpu")
    items = [(11, 2, 3), (12, 2, 3)]
    first = _table.device_table("copy_pages", "sources", items, cpu)
    assert first.tolist() == [list(item) for item in items]
    assert _table.device_table("copy_pages", "sources", list(items), cpu) is first
    assert _table.device_table("copy_pages", "sources", items[:1], cpu) is not first
    monkeypatch.setattr(_table, "_is_capturing", lambda device: True)
    assert _table.device_table("copy_pages", "sources", items, cpu) is first
    with pytest.raises(
        RuntimeError,
        match=r"^copy_pages: sources must be a list that was used before the graph is captured, got a new one$",
    ):
        _table.device_table("copy_pages", "sources", [(13, 2, 3)], cpu)


def test_lists_that_were_used_least_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from hisparse_ops.triton import _table

    monkeypatch.setattr(_table, "MAX_TABLES", 2)
    monkeypatch.setattr(_table, "_TABLES", type(_table._TABLES)())
    tables = [_table.device_table("op", "list", [(i,)], torch.device("cpu")) for i in range(2)]
    _table.device_table("op", "list", [(0,)], torch.device("cpu"))
    _table.device_table("op", "list", [(2,)], torch.device("cpu"))
    assert _table.device_table("op", "list", [(0,)], torch.device("cpu")) is tables[0]
    assert _table.device_table("op", "list", [(1,)], torch.device("cpu")) is not tables[1]


def test_lists_that_a_graph_reads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay reads the table at the address that it was captured with, however many lists came after."""
    from hisparse_ops.triton import _table

    monkeypatch.setattr(_table, "MAX_TABLES", 2)
    monkeypatch.setattr(_table, "_TABLES", type(_table._TABLES)())
    monkeypatch.setattr(_table, "_CAPTURED", {})
    cpu = torch.device("cpu")
    address = _table.device_table("op", "list", [(0,)], cpu).data_ptr()
    with monkeypatch.context() as capture:
        capture.setattr(_table, "_is_capturing", lambda device: True)
        table = weakref.ref(_table.device_table("op", "list", [(0,)], cpu))
    for i in range(1, 9):
        _table.device_table("op", "list", [(i,)], cpu)
    assert len(_table._TABLES) == 2
    kept = table()
    assert kept is not None and kept.data_ptr() == address and kept.tolist() == [[0]]
    assert _table.device_table("op", "list", [(0,)], cpu) is kept


def test_host_memory_must_be_known_to_the_device() -> None:
    from hisparse_ops.triton import host_memory

    host, device = torch.zeros(4, 8), torch.device("meta")
    with pytest.raises(
        ValueError,
        match=r"^gather_compact: host_cache must be on meta, or pinned or registered host memory, "
        r"got pageable memory$",
    ):
        host_memory.address("gather_compact", "host_cache", host, device)

    def mapping(address: int, size: int, where: torch.device) -> int | None:
        assert size == 4 * 8 * 4 and where == device
        return address + 4096 if address == host.data_ptr() else None

    host_memory.add_mapping(mapping)
    try:
        assert host_memory.address("op", "host_cache", host, device) == host.data_ptr() + 4096
        with pytest.raises(ValueError, match="pageable"):
            host_memory.address("op", "host_cache", torch.ones(4, 8), device)
    finally:
        host_memory.remove_mapping(mapping)
    assert host_memory.address("op", "host_cache", host[:0], device) == host[:0].data_ptr()


def test_importing_the_package_does_not_import_triton() -> None:
    import subprocess
    import sys

    code = "import sys, hisparse_ops; print(any(m == 'triton' or m.startswith('triton.') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_without_triton_nothing_is_registered_and_info_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "triton" else find(name, *a)
    )
    assert triton.why_missing().startswith("triton is not installed")
    calls: list[Any] = []
    monkeypatch.setattr("hisparse_ops.registry.LIB.impl", lambda *a: calls.append(a))
    triton.register()
    assert calls == []


def test_oracles_exist_for_every_kernel() -> None:
    for op in triton.OPS:
        assert callable(reference.load(op))
