"""What every launch of the SIMT resolver has in common: the checks, and the numbers that go with the tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hisparse_ops.checks import Overlaps, fail
from hisparse_ops.registry import ops

OPERANDS = (
    "topk_indices",
    "request_ids",
    "request_state_indices",
    "source_block_table",
    "hot_block_table",
    "hot_owner",
    "lru_slots",
    "attention_indices",
    "valid_counts",
    "refill_host_rows",
    "refill_hot_rows",
    "refill_counts",
    "resident_block_table",
    "stable_lengths",
    "physical_rows",
    "resolved_host_rows",
    "miss_mask",
    "resident_counts",
    "stats",
)
"""Every tensor, in the order of the schema and of ``ops/resolver/simt/slots.h``."""

SIZES = (
    "rows",
    "top_k",
    "num_requests",
    "num_states",
    "hot_size",
    "source_columns",
    "resident_columns",
    "host_rows",
    "num_blocks",
    "block_size",
    "source_block_size",
    "resident_block_size",
    "attention_block_stride",
    "union_limit",
    "prefix",
    "given",
    "wide",
)
"""The numbers of a call, in the order of ``ops/resolver/simt/slots.h``."""


def check(args: dict[str, Any]) -> None:
    """Raise what the CPU op raises for wrong arguments; only metadata and addresses are read."""
    op = ops()["resolve"]
    op.check(**args)
    overlaps = Overlaps("resolve")
    # In the order in which the CPU op names them.
    for name in _OVERLAP_ORDER:
        overlaps.add(name, args.get(name), written=name in op.mutates)
    overlaps.check()


def shared_bytes(rows: int, top_k: int, union_limit: int, hot_size: int) -> int:
    """Shared memory of a block of the kernel, as ``ops/resolver/simt/budget.h`` lays it out."""
    capacity = max(1, min(rows * top_k, union_limit))
    table = 2 * (2 * capacity)
    order, seen = (hot_size + 1) // 2, (hot_size + 31) // 32
    return 4 * (table + order + seen + 2 * 32 + 8)


def check_budget(numbers: dict[str, int], limit: int) -> None:
    """Refuse what a block's shared memory of ``limit`` bytes cannot hold."""
    needed = shared_bytes(*(numbers[n] for n in ("rows", "top_k", "union_limit", "hot_size")))
    if needed > limit:
        rule = f"leave a block at most {limit} bytes of shared memory to use"
        fail("resolve", "max_union_rows", rule, f"{needed} bytes for {numbers['union_limit']} rows")


_OVERLAP_ORDER = (
    "topk_indices",
    "request_ids",
    "request_state_indices",
    "hot_block_table",
    "hot_owner",
    "lru_slots",
    "attention_indices",
    "refill_host_rows",
    "refill_hot_rows",
    "physical_rows",
    "resolved_host_rows",
    "miss_mask",
    "valid_counts",
    "refill_counts",
    "resident_counts",
    "stats",
    "source_block_table",
    "resident_block_table",
    "stable_lengths",
)


def sizes(args: dict[str, Any]) -> dict[str, int]:
    """The numbers of a call that passed ``check``."""
    tensors: dict[str, Tensor] = {n: args[n] for n in OPERANDS if args.get(n) is not None}
    topk, owner = tensors["topk_indices"], tensors["hot_owner"]
    by_request = (
        "request_state_indices",
        "hot_block_table",
        "source_block_table",
        "stable_lengths",
    )
    by_state = ("hot_owner", "resident_block_table")
    block_size = args["block_size"]

    def columns(table: str) -> int:
        return tensors[table].shape[1] if table in tensors else 0

    def optional(name: str, otherwise: int) -> int:
        value = args.get(name)
        return otherwise if value is None else int(value)

    return {
        "rows": topk.shape[0],
        "top_k": topk.shape[1],
        "num_requests": min(tensors[n].shape[0] for n in by_request if n in tensors),
        "num_states": min(tensors[n].shape[0] for n in by_state if n in tensors),
        "hot_size": owner.shape[1],
        "source_columns": columns("source_block_table"),
        "resident_columns": columns("resident_block_table"),
        "host_rows": args["host_rows"],
        "num_blocks": args["num_blocks"],
        "block_size": block_size,
        "source_block_size": optional("source_block_size", block_size),
        "resident_block_size": optional("resident_block_size", block_size),
        "attention_block_stride": optional("attention_block_stride", block_size),
        "union_limit": optional("max_union_rows", owner.shape[1]),
        "prefix": int(args.get("layout") == "prefix"),
        "given": sum(1 << i for i, n in enumerate(OPERANDS) if n in tensors),
        "wide": sum(
            1 << i
            for i, n in enumerate(OPERANDS)
            if n in tensors and tensors[n].dtype is torch.int64
        ),
    }


def by_name(positional: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a kernel call by name; the dispatcher leaves out those at their default."""
    arguments = ops()["resolve"].call._schema.arguments
    names = [a.name for a in arguments[: len(positional)]]
    return dict(zip(names, positional, strict=True)) | keywords
