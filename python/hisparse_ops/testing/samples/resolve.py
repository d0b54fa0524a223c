from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.testing.buffers import buffer, poisoned
from hisparse_ops.testing.samples import BadArgument, Sample

OUTPUTS = ("attention_indices", "refill_host_rows", "refill_hot_rows")
OPTIONAL_OUTPUTS = ("physical_rows", "resolved_host_rows", "miss_mask")


def choose(gen: torch.Generator, n: int, count: int) -> Tensor:
    """``count`` distinct numbers of ``range(n)``."""
    return torch.randperm(n, generator=gen)[:count]


def random_topk(
    gen: torch.Generator,
    rows: int,
    top_k: int,
    context: int,
    *,
    unused: float = 0.1,
    past_end: float = 0.05,
    repeat: float = 0.0,
) -> Tensor:
    """``[rows, top_k]`` positions: distinct in a row but for ``repeat``, some -1, some past the context."""
    topk = torch.randint(0, max(context, 1), (rows, top_k), generator=gen)
    for row in topk:
        if context >= top_k:
            row.copy_(choose(gen, context, top_k))
        spread = torch.rand(top_k, generator=gen)
        row[spread < past_end] += context
        if repeat and top_k > 1:
            again = torch.rand(top_k, generator=gen) < repeat
            row[again] = row[torch.randint(0, top_k, (int(again.sum()),), generator=gen)]
        row[torch.rand(top_k, generator=gen) < unused] = -1
    return topk


def scene(
    gen: torch.Generator,
    *,
    runs: Sequence[tuple[int, int]] = ((0, 1), (1, 1)),
    num_requests: int = 3,
    num_states: int = 4,
    top_k: int = 8,
    hot_size: int = 24,
    block_size: int = 4,
    source_block_size: int | None = None,
    resident_block_size: int | None = None,
    pages: int = 12,
    resident: float | None = None,
    cached: float = 0.7,
    null: float = 0.1,
    repeat: float = 0.0,
    ids: torch.dtype = torch.int32,
    gap: int = 0,
    translated: bool = False,
    optional: bool = True,
    stable: bool = False,
    attention_block_stride: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Arguments of one call; ``runs`` lists (request id, rows).

    ``cached`` of the slots own a row of their request, ``null`` of the source pages are missing, ``resident`` of the
    pages are on the device; tables have ``gap`` spare columns between their rows.
    """
    source_size = source_block_size or block_size
    resident_size = resident_block_size or block_size
    rows = sum(n for _, n in runs)
    context = pages * source_size
    host_blocks = 1 + num_requests * pages
    # The last block is cut short, so that some rows of it lie past the host cache.
    host_rows = host_blocks * source_size - source_size // 2
    hot_blocks = -(-hot_size // block_size)
    resident_pages = -(-context // resident_size)
    num_blocks = 1 + num_requests * hot_blocks + num_states * resident_pages

    def table(values: Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
        strides = (values.shape[1] + gap, 1)
        return buffer(values.shape, dtype, gen=gen, strides=strides, values=values)

    def vector(values: Any, dtype: torch.dtype) -> Tensor:
        return buffer((len(values),), dtype, gen=gen, strides=(1 + gap,), values=values)

    source = 1 + choose(gen, host_blocks - 1, num_requests * pages).view(num_requests, pages)
    rows_of = (source[..., None] * source_size + torch.arange(source_size)).view(num_requests, -1)
    source[torch.rand(source.shape, generator=gen) < null] = 0
    device_blocks = 1 + choose(gen, num_blocks - 1, num_blocks - 1)
    hot_table = device_blocks[: num_requests * hot_blocks].view(num_requests, hot_blocks)
    states = choose(gen, num_states, num_requests)

    owner = torch.full((num_states, hot_size), -1)
    for request, state in enumerate(states.tolist()):
        owned = rows_of[request][choose(gen, context, min(context, hot_size))]
        owner[state, choose(gen, hot_size, len(owned))] = owned
    owner[torch.rand(owner.shape, generator=gen) > cached] = -1
    lru = torch.stack([choose(gen, hot_size, hot_size) for _ in range(num_states)])

    topk = random_topk(gen, rows, top_k, context, repeat=repeat)
    if translated:
        at = 0
        for request, count in runs:
            part = topk[at : at + count]
            known = (part >= 0) & (part < context)
            part[known] = rows_of[max(0, min(request, num_requests - 1))][part[known]]
            at += count

    args: dict[str, Any] = {
        "topk_indices": table(topk, ids),
        "request_ids": vector([r for r, n in runs for _ in range(n)], ids),
        "request_state_indices": vector(states, ids),
        "source_block_table": None if translated else table(source),
        "hot_block_table": table(hot_table),
        "hot_owner": table(owner),
        "lru_slots": table(lru, torch.int16),
    }
    entries = ((rows, top_k), torch.int32)
    for name in OUTPUTS + (OPTIONAL_OUTPUTS if optional else ()):
        args[name] = poisoned(*entries, gen=gen, strides=(top_k + gap, 1))
    for name in ("valid_counts", "refill_counts", *(["resident_counts"] if optional else [])):
        args[name] = poisoned((rows,), torch.int32, gen=gen, strides=(1 + gap,))
    if optional:
        args["stats"] = vector([5, 7], torch.int64)
    args.update(host_rows=host_rows, num_blocks=num_blocks, block_size=block_size)
    if source_block_size:
        args["source_block_size"] = source_block_size
    if attention_block_stride:
        args["attention_block_stride"] = attention_block_stride
    if resident is not None:
        blocks = torch.randint(1, num_blocks + 2, (num_states, resident_pages), generator=gen)
        absent = torch.rand(blocks.shape, generator=gen) >= resident
        blocks[absent] = torch.randint(-1, 1, blocks.shape, generator=gen)[absent]
        args["resident_block_table"] = table(blocks)
        if resident_block_size:
            args["resident_block_size"] = resident_block_size
    if stable:
        args["stable_lengths"] = vector(
            torch.randint(-1, context + 2, (num_requests,), generator=gen), ids
        )
    args.update(options)
    return args


def corrupt_lru(args: dict[str, Any], gen: torch.Generator) -> dict[str, Any]:
    """Slots out of range, negative slots and repeated slots in every LRU row."""
    lru = args["lru_slots"]
    for row in lru:
        row[choose(gen, len(row), max(1, len(row) // 5))] = torch.tensor(
            [-1, 32767, min(len(row), 32767), int(row[0])], dtype=torch.int16
        ).repeat(len(row))[: max(1, len(row) // 5)]
    return args


def lru_out_of_range(args: dict[str, Any], gen: torch.Generator) -> dict[str, Any]:
    """The oldest slots of every LRU row are no slots; no slot stands twice."""
    args["lru_slots"][:, :2] = torch.tensor([-3, args["lru_slots"].shape[1]], dtype=torch.int16)
    return args


def corrupt_owners(args: dict[str, Any], gen: torch.Generator) -> dict[str, Any]:
    """Rows owned by several slots, rows that do not exist."""
    for row in args["hot_owner"]:
        half = choose(gen, len(row), len(row) // 2)
        row[half] = row[half.roll(1)]
        row[half[:2]] = torch.tensor([2**31 - 1, -7], dtype=torch.int32)[: len(half[:2])]
    return args


def foreign_owners(args: dict[str, Any], gen: torch.Generator) -> dict[str, Any]:
    """A host cache that has shrunk: rows of the unstable tail lie past it."""
    args["host_rows"] //= 2
    args["stable_lengths"].fill_(9)
    return args


def unmapped(args: dict[str, Any], gen: torch.Generator) -> dict[str, Any]:
    """Hot blocks that are null or outside the slab."""
    table = args["hot_block_table"]
    table[:, 0] = 0
    table[:, -1] = args["num_blocks"]
    return args


def samples(tier: str) -> Iterator[Sample]:
    def sample(name: str, then: Callable[..., Any] | None = None, **options: Any) -> Sample:
        def make(gen: torch.Generator) -> dict[str, Any]:
            args = scene(gen, **options)
            return then(args, gen) if then else args

        return Sample(name, make)

    mtp: dict[str, Any] = {"runs": ((0, 4), (2, 4), (1, 2)), "hot_size": 40}
    yield sample("plain decode")
    yield sample("mtp", **mtp)
    yield sample("mtp, prefix", **mtp, layout="prefix")
    yield sample("mtp, duplicates", **mtp, repeat=0.5)
    yield sample("outputs only", **mtp, optional=False)
    yield sample("hot buffer of exactly the union", runs=((0, 3), (1, 3)), hot_size=24, cached=0.3)
    yield sample("cold", runs=((0, 2), (1, 2)), cached=0.0, null=0.0)
    yield sample("int64 ids, gaps", **mtp, ids=torch.int64, gap=3)
    yield sample("resident mix", **mtp, resident=0.5)
    yield sample("resident mix, prefix", **mtp, resident=0.5, layout="prefix")
    yield sample("all resident", **mtp, resident=1.0, null=0.0)
    yield sample(
        "page sizes differ", **mtp, resident=0.4, source_block_size=6, resident_block_size=8
    )
    yield sample("page size not a power of two", block_size=6, hot_size=32)
    yield sample("attention stride", **mtp, attention_block_stride=10)
    yield sample("host rows instead of positions", **mtp, translated=True)
    yield sample("stable lengths", **mtp, stable=True)
    yield sample("stable lengths, resident", **mtp, stable=True, resident=0.3, pages=24)
    yield sample("padding", runs=((0, 2), (-1, 3), (1, 1), (7, 2), (2, 1)), hot_size=32)
    yield sample("only padding", runs=((-1, 2), (9, 1)))
    yield sample("one state in three runs", runs=((0, 1), (1, 2), (0, 2), (-1, 1), (0, 1)))
    yield sample(
        "no source pages", lambda a, g: a | {"source_block_table": a["source_block_table"][:, :0]}
    )
    yield sample(
        "no resident pages",
        lambda a, g: a | {"resident_block_table": a["resident_block_table"][:, :0]},
        resident=0.5,
    )
    yield sample("owners past the host cache", foreign_owners, **mtp, stable=True)
    yield sample("no rows", runs=())
    yield sample("top_k 0", top_k=0)
    yield sample("top_k 1", top_k=1, hot_size=1)
    yield sample("limit", runs=((0, 2), (1, 2)), hot_size=40, max_union_rows=16)
    yield sample("corrupted lru", corrupt_lru, **mtp)
    yield sample("lru entries out of range", lru_out_of_range, **mtp)
    yield sample("corrupted owners", corrupt_owners, **mtp)
    yield sample(
        "corrupted owners and lru", lambda a, g: corrupt_lru(corrupt_owners(a, g), g), **mtp
    )
    yield sample("unmapped hot blocks", unmapped, **mtp)
    yield sample("vectors of slots", runs=((0, 2), (1, 1)), top_k=65, hot_size=203, pages=70)
    if tier != "nightly":
        return
    for top_k in (1, 7, 31, 32, 33, 63, 64, 65, 128):
        for rows in (1, 2, 3, 4):
            for layout in ("column", "prefix"):
                yield sample(
                    f"top_k {top_k}, {rows} rows, {layout}",
                    runs=((1, rows), (0, rows), (2, rows)),
                    top_k=top_k,
                    hot_size=rows * top_k,
                    pages=max(3, top_k // 2),
                    repeat=0.1,
                    resident=0.2,
                    layout=layout,
                )
    big: dict[str, Any] = {"block_size": 64, "top_k": 2048, "null": 0.02}
    yield sample("glm52 mtp3", runs=((0, 4), (2, 4)), hot_size=10240, pages=200, **big)
    yield sample("32768 slots", runs=((0, 4),), hot_size=32768, pages=600, **big)


def _wrong(**changes: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def change(args: dict[str, Any]) -> None:
        for name, edit in changes.items():
            args[name] = edit(args.get(name))

    return change


def _bad(name: str, error: str, **changes: Callable[[Any], Any]) -> BadArgument:
    return BadArgument(name, _wrong(**changes), f"resolve: {error}")


def _bad_entries(argument: str) -> Iterator[BadArgument]:
    yield _bad(
        f"{argument} dtype",
        f"{argument} must be int32, got int64",
        **{argument: lambda t: t.long()},
    )
    yield _bad(
        f"{argument} rows",
        f"{argument} must have rows = 2 in dimension 0, got shape (1, 8)",
        **{argument: lambda t: t[:1]},
    )
    yield _bad(
        f"{argument} columns",
        f"{argument} must have top_k = 8 in dimension 1, got shape (2, 7)",
        **{argument: lambda t: t[:, :7]},
    )
    yield _bad(
        f"{argument} overlapping rows",
        f"{argument} must have row-major strides without overlap, got strides (0, 1)",
        **{argument: lambda t: t[:1].expand(2, 8)},
    )


def _bad_counts(argument: str) -> Iterator[BadArgument]:
    yield _bad(
        f"{argument} dtype",
        f"{argument} must be int32, got int16",
        **{argument: lambda t: t.short()},
    )
    yield _bad(
        f"{argument} length",
        f"{argument} must have rows = 2 in dimension 0, got shape (1)",
        **{argument: lambda t: t[:1]},
    )


def _overlap(args: dict[str, Any]) -> None:
    args["attention_indices"] = args["topk_indices"]


def _interleaved_overlap(args: dict[str, Any]) -> None:
    both = torch.zeros(2, 12, dtype=torch.int32)
    args["refill_host_rows"], args["refill_hot_rows"] = both[:, :8], both[:, 4:]


def _shared_state(args: dict[str, Any]) -> None:
    args["valid_counts"] = args["request_ids"]


def _too_large_union(args: dict[str, Any]) -> None:
    args["request_ids"].fill_(0)
    args["topk_indices"].copy_(torch.arange(16).view(2, 8))
    args["source_block_table"].copy_(torch.arange(1, 13).expand(3, 12))
    args["max_union_rows"] = 12


BAD_ARGUMENTS = [
    _bad(
        "topk dtype",
        "topk_indices must be int32 or int64, got int16",
        topk_indices=lambda t: t.short(),
    ),
    _bad("topk dimension", "topk_indices must be 2-D, got 1-D", topk_indices=lambda t: t[0]),
    _bad(
        "request ids length",
        "request_ids must have rows = 2 in dimension 0, got shape (1)",
        request_ids=lambda t: t[:1],
    ),
    _bad(
        "request states dimension",
        "request_state_indices must be 1-D, got 2-D",
        request_state_indices=lambda t: t[None],
    ),
    _bad(
        "source dtype",
        "source_block_table must be int32, got int64",
        source_block_table=lambda t: t.long(),
    ),
    _bad(
        "hot table layout",
        "hot_block_table must have stride 1 in its last dimension, got strides (1, 3)",
        hot_block_table=lambda t: t.t().contiguous().t(),
    ),
    _bad(
        "hot table narrow",
        "hot_block_table must have at least 6 columns for hot_size = 24, got 5",
        hot_block_table=lambda t: t[:, :5],
    ),
    _bad("owner dtype", "hot_owner must be int32, got int64", hot_owner=lambda t: t.long()),
    _bad("lru dtype", "lru_slots must be int16, got int32", lru_slots=lambda t: t.int()),
    _bad(
        "lru states",
        "lru_slots must have states = 4 in dimension 0, got shape (3, 24)",
        lru_slots=lambda t: t[:3],
    ),
    _bad(
        "lru slots",
        "lru_slots must have hot_size = 24 in dimension 1, got shape (4, 23)",
        lru_slots=lambda t: t[:, :23],
    ),
    *(bad for name in OUTPUTS + OPTIONAL_OUTPUTS for bad in _bad_entries(name)),
    *(
        bad
        for name in ("valid_counts", "refill_counts", "resident_counts")
        for bad in _bad_counts(name)
    ),
    _bad("stats dtype", "stats must be int64, got int32", stats=lambda t: t.int()),
    _bad(
        "stats length",
        "stats must have length = 2 in dimension 0, got shape (1)",
        stats=lambda t: t[:1],
    ),
    _bad("layout", 'layout must be "column" or "prefix", got "row"', layout=lambda _: "row"),
    _bad(
        "resident without source",
        "resident_block_table must be None without source_block_table, got a tensor",
        source_block_table=lambda _: None,
        resident_block_table=lambda _: torch.zeros(4, 2, dtype=torch.int32),
    ),
    _bad(
        "stable lengths without source",
        "stable_lengths must be None without source_block_table, got a tensor",
        source_block_table=lambda _: None,
        stable_lengths=lambda _: torch.zeros(3, dtype=torch.int32),
    ),
    _bad(
        "resident dtype",
        "resident_block_table must be int32, got int64",
        resident_block_table=lambda _: torch.zeros(4, 2, dtype=torch.int64),
    ),
    _bad(
        "stable lengths dtype",
        "stable_lengths must be int32 or int64, got float32",
        stable_lengths=lambda _: torch.zeros(3),
    ),
    _bad(
        "host rows negative",
        "host_rows must be between 0 and 2147483647, got -1",
        host_rows=lambda _: -1,
    ),
    _bad(
        "block size zero",
        "block_size must be between 1 and 2147483647, got 0",
        block_size=lambda _: 0,
    ),
    _bad(
        "slab past int32",
        "num_blocks must be between 0 and 536870911, got 536870912",
        num_blocks=lambda _: 536870912,
    ),
    _bad(
        "source block size",
        "source_block_size must be between 1 and 2147483647, got 0",
        source_block_size=lambda _: 0,
    ),
    _bad(
        "resident block size",
        "resident_block_size must be between 1 and 2147483647, got -4",
        resident_block_size=lambda _: -4,
    ),
    _bad(
        "attention stride below the page",
        "attention_block_stride must be between 4 and 2147483644, got 3",
        attention_block_stride=lambda _: 3,
        num_blocks=lambda _: 2,
    ),
    _bad(
        "attention indices past int32",
        "attention_block_stride must be between 4 and 2147483, got 2147484",
        attention_block_stride=lambda _: 2147484,
        num_blocks=lambda _: 1001,
    ),
    _bad(
        "hot buffer below top_k",
        "hot_owner must have at least top_k = 8 slots, got 7",
        hot_owner=lambda t: t[:, :7],
        lru_slots=lambda t: t[:, :7],
    ),
    _bad(
        "slots past int16",
        "hot_owner must have at most 32768 slots, got 32769",
        hot_owner=lambda _: torch.zeros(4, 32769, dtype=torch.int32),
        lru_slots=lambda _: torch.zeros(4, 32769, dtype=torch.int16),
    ),
    _bad(
        "limit above the hot buffer",
        "max_union_rows must be between 8 and 24, got 25",
        max_union_rows=lambda _: 25,
    ),
    _bad(
        "limit below top_k",
        "max_union_rows must be between 8 and 24, got 7",
        max_union_rows=lambda _: 7,
    ),
    BadArgument(
        "output over its input",
        _overlap,
        "resolve: attention_indices must not overlap topk_indices, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "outputs that share columns",
        _interleaved_overlap,
        "resolve: refill_hot_rows must not overlap refill_host_rows, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "counts over request ids",
        _shared_state,
        "resolve: valid_counts must not overlap request_ids, got shared memory",
        by_value=True,
    ),
    BadArgument(
        "run larger than the limit",
        _too_large_union,
        "resolve: topk_indices must need at most 12 distinct host rows in a run,"
        " got more in the run at row 0",
        by_value=True,
    ),
]
