"""The ops that vLLM Core calls for HiSparse, under Core's names and schemas, through ``torch.ops.hisparse``.

On CUDA they are compiled into vLLM. Elsewhere :func:`register` defines them, so that Core's runtime, worker and
connector run as they are. Where a build of vLLM defines them already, only the missing kernels are added, and a
definition that is neither the known one nor the grouped one is refused by name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

import hisparse_ops

NAMESPACE = "_C_cache_ops"
INVALIDATE_WRITTEN = "hisparse_invalidate_written_slots"

# As compiled into vLLM 0.32.0 and 0.33.0.
SCHEMAS = {
    "hisparse_resolve_residency": (
        "(Tensor host_cache, Tensor! hot_cache, Tensor hot_block_table, Tensor global_indices,"
        " Tensor! hot_indices, Tensor! device_global_indices, Tensor! lru_slots,"
        " Tensor? request_state_indices, int region_stride, int max_union_rows,"
        " Tensor(a!)? miss_mask=None, Tensor(b!)? stats=None, Tensor(c!)? attention_indices=None,"
        " int attention_block_stride=0, Tensor? request_ids=None, Tensor? source_block_table=None,"
        " int source_block_size=0, Tensor(d!)? resolved_global_indices=None,"
        " Tensor(e!)? valid_counts=None, Tensor(f!)? swap_host_physical_rows=None,"
        " Tensor(g!)? swap_device_physical_rows=None, Tensor(h!)? swap_counts=None,"
        " Tensor? resident_block_table=None, int resident_block_size=0,"
        " int resident_null_block=0) -> ()"
    ),
    INVALIDATE_WRITTEN: (
        "(Tensor! device_global_indices, Tensor request_state_indices, Tensor req_id_per_token,"
        " Tensor written_slots) -> ()"
    ),
    "hisparse_gather_plan": (
        "(Tensor host_cache, Tensor! hot_cache, Tensor global_indices, Tensor hot_indices,"
        " Tensor miss_mask, Tensor? request_state_indices, Tensor(a!)? attention_indices=None,"
        " int attention_block_stride=0) -> ()"
    ),
    "hisparse_gather_compact": (
        "(Tensor host_cache, Tensor! hot_cache, Tensor miss_global_indices,"
        " Tensor miss_hot_indices, Tensor miss_counts) -> ()"
    ),
    "swap_blocks_batch": (
        "(Tensor src_ptrs, Tensor dst_ptrs, Tensor sizes, bool is_src_access_order_any=False) -> ()"
    ),
}

# A Core that hands over all index groups at once: the same op with a list of tables in front.
GROUPED_INVALIDATE_WRITTEN = (
    "(Tensor(a!)[] device_global_indices, Tensor request_state_indices, Tensor req_id_per_token,"
    " Tensor written_slots) -> ()"
)


def resolve_residency(
    host_cache: Tensor,
    hot_cache: Tensor,
    hot_block_table: Tensor,
    global_indices: Tensor,
    hot_indices: Tensor,
    device_global_indices: Tensor,
    lru_slots: Tensor,
    request_state_indices: Tensor | None,
    region_stride: int,
    max_union_rows: int,
    miss_mask: Tensor | None = None,
    stats: Tensor | None = None,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
    request_ids: Tensor | None = None,
    source_block_table: Tensor | None = None,
    source_block_size: int = 0,
    resolved_global_indices: Tensor | None = None,
    valid_counts: Tensor | None = None,
    swap_host_physical_rows: Tensor | None = None,
    swap_device_physical_rows: Tensor | None = None,
    swap_counts: Tensor | None = None,
    resident_block_table: Tensor | None = None,
    resident_block_size: int = 0,
    resident_null_block: int = 0,
) -> None:
    """Core's ``hisparse_resolve_residency`` as one ``hisparse::resolve``."""
    op = "hisparse_resolve_residency"
    slots = lru_slots.shape[1]
    if region_stride != slots:
        raise ValueError(
            f"{op}: region_stride must be the {slots} slots of lru_slots, got {region_stride}"
        )
    if resident_null_block != 0:
        raise ValueError(f"{op}: resident_null_block must be 0, got {resident_null_block}")
    rows, top_k = global_indices.shape
    device = global_indices.device
    num_blocks, block_size = hot_cache.shape[:2]
    if attention_indices is None:  # Core wants physical rows only
        attention_indices, attention_block_stride, physical_rows = hot_indices, block_size, None
    else:
        physical_rows = hot_indices
    if request_ids is None:  # every batch row is a request
        request_ids = _row_numbers(rows, device)
    if request_state_indices is None:  # every request is its own state row
        request_state_indices = _row_numbers(device_global_indices.shape[0], device)
    hisparse_ops.resolve(
        global_indices,
        request_ids,
        request_state_indices,
        source_block_table,
        hot_block_table,
        device_global_indices,
        lru_slots,
        attention_indices,
        valid_counts if valid_counts is not None else _unread((rows,), device),
        (
            swap_host_physical_rows
            if swap_host_physical_rows is not None
            else _unread((rows, top_k), device, 1)
        ),
        (
            swap_device_physical_rows
            if swap_device_physical_rows is not None
            else _unread((rows, top_k), device, 2)
        ),
        swap_counts if swap_counts is not None else _unread((rows,), device, 3),
        host_rows=host_cache.shape[0],
        num_blocks=num_blocks,
        block_size=block_size,
        source_block_size=source_block_size or block_size,
        attention_block_stride=attention_block_stride or block_size,
        max_union_rows=max_union_rows,
        resident_block_table=resident_block_table,
        resident_block_size=resident_block_size or block_size,
        physical_rows=physical_rows,
        resolved_host_rows=resolved_global_indices,
        miss_mask=miss_mask,
        stats=None if stats is None else stats.view(torch.int64),
    )


@cache
def _row_numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, dtype=torch.int32, device=device)


@cache
def _unread(shape: tuple[int, ...], device: torch.device, which: int = 0) -> Tensor:
    """Room for an output that Core did not ask for.

    Kept for good: a captured graph may hold its address.
    """
    return torch.empty(shape, dtype=torch.int32, device=device)


def invalidate_written_slots(
    device_global_indices: Tensor | Sequence[Tensor],
    request_state_indices: Tensor,
    req_id_per_token: Tensor,
    written_slots: Tensor,
) -> None:
    """Core's ``hisparse_invalidate_written_slots``, for one index group or a list of them."""
    owners = (
        [device_global_indices]
        if isinstance(device_global_indices, Tensor)
        else list(device_global_indices)
    )
    hisparse_ops.invalidate_written(owners, request_state_indices, req_id_per_token, written_slots)


def gather_plan(
    host_cache: Tensor,
    hot_cache: Tensor,
    global_indices: Tensor,
    hot_indices: Tensor,
    miss_mask: Tensor,
    request_state_indices: Tensor | None,
    attention_indices: Tensor | None = None,
    attention_block_stride: int = 0,
) -> None:
    """Core's ``hisparse_gather_plan``."""
    hisparse_ops.gather_plan(
        host_cache,
        hot_cache,
        global_indices,
        hot_indices,
        miss_mask,
        attention_indices=attention_indices,
        attention_block_stride=attention_block_stride,
        request_state_indices=request_state_indices,
    )


def gather_compact(
    host_cache: Tensor,
    hot_cache: Tensor,
    miss_global_indices: Tensor,
    miss_hot_indices: Tensor,
    miss_counts: Tensor,
) -> None:
    """Core's ``hisparse_gather_compact``."""
    hisparse_ops.gather_compact(
        host_cache, hot_cache, miss_global_indices, miss_hot_indices, miss_counts
    )


def swap_blocks_batch(
    src_ptrs: Tensor, dst_ptrs: Tensor, sizes: Tensor, is_src_access_order_any: bool = False
) -> None:
    """Core's ``swap_blocks_batch`` on the CPU: copies between addresses, as one ``hisparse::copy_row_spans``.

    The memory between the lowest and the highest address of a side is seen as rows of the greatest width that divides
    every offset and size, and each copy as a span of rows.
    """
    op = "swap_blocks_batch"
    for name, t in (("src_ptrs", src_ptrs), ("dst_ptrs", dst_ptrs), ("sizes", sizes)):
        if t.dtype != torch.int64 or t.device.type != "cpu" or t.dim() != 1:
            got = f"{t.dtype} {list(t.shape)} on {t.device}"
            raise ValueError(f"{op}: {name} must be a list of int64 on the CPU, got {got}")
        if t.numel() != sizes.numel():
            raise ValueError(f"{op}: {name} must have {sizes.numel()} entries, got {t.numel()}")
    sources, destinations, counts = src_ptrs.numpy(), dst_ptrs.numpy(), sizes.numpy()
    wrong = np.flatnonzero((counts < 0) | ((counts > 0) & ((sources <= 0) | (destinations <= 0))))
    if wrong.size:
        i = int(wrong[0])
        entry = f"{sources[i]} -> {destinations[i]}, {counts[i]} bytes, in entry {i}"
        raise ValueError(f"{op}: every entry must name memory, got {entry}")
    keep = np.flatnonzero(counts)
    _copy_spans(sources[keep], destinations[keep], counts[keep])


def _copy_spans(sources: np.ndarray, destinations: np.ndarray, counts: np.ndarray) -> None:
    if not counts.size:
        return
    source, destination = int(sources.min()), int(destinations.min())
    source_end, destination_end = int((sources + counts).max()), int((destinations + counts).max())
    if source < destination_end and destination < source_end and counts.size > 1:
        # The ranges interleave, which the op takes for aliasing: fewer copies have narrower ranges.
        half = counts.size // 2
        _copy_spans(sources[:half], destinations[:half], counts[:half])
        _copy_spans(sources[half:], destinations[half:], counts[half:])
        return
    spans = np.stack((sources - source, destinations - destination, counts), axis=1)
    width = int(np.gcd.reduce(spans, axis=None))
    hisparse_ops.copy_row_spans(
        [_memory(source, source_end, width)],
        [_memory(destination, destination_end, width)],
        torch.from_numpy(spans // width),
    )


def _memory(start: int, end: int, width: int) -> Tensor:
    """``[start, end)`` as rows of ``width`` bytes; owned by nobody, valid while the caller's copies are."""
    memory = (ctypes.c_uint8 * (end - start)).from_address(start)
    return torch.frombuffer(memory, dtype=torch.uint8).view(-1, width)


KERNELS: dict[str, Callable[..., None]] = {
    "hisparse_resolve_residency": resolve_residency,
    INVALIDATE_WRITTEN: invalidate_written_slots,
    "hisparse_gather_plan": gather_plan,
    "hisparse_gather_compact": gather_compact,
    "swap_blocks_batch": swap_blocks_batch,
}

# Its tensors are lists of addresses and always on the CPU, whatever the addresses belong to.
_ON_CPU_ONLY = ("swap_blocks_batch",)

_library: torch.library.Library | None = None


def register() -> None:
    """Define what is missing of Core's HiSparse ops, and give each its kernels. A second call does nothing."""
    global _library
    if _library is not None:
        return
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    for name, arguments in SCHEMAS.items():
        _define(library, name, arguments)
        torch.library.register_fake(f"{NAMESPACE}::{name}", _nothing, lib=library)
        keys = ("CPU",) if name in _ON_CPU_ONLY else ("CPU", "PrivateUse1")
        for key in keys:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"{NAMESPACE}::{name}", key):
                library.impl(name, KERNELS[name], key)
    _library = library


def _nothing(*args: object, **kwargs: object) -> None:
    """The fake of an op that returns nothing."""


def has_grouped_invalidation() -> bool:
    """Whether this Core's ``hisparse_invalidate_written_slots`` takes all index groups in one call."""
    defined = _defined(INVALIDATE_WRITTEN)
    return defined is not None and _same(INVALIDATE_WRITTEN, defined, GROUPED_INVALIDATE_WRITTEN)


def _define(library: torch.library.Library, name: str, arguments: str) -> None:
    defined = _defined(name)
    if defined is None:
        library.define(name + arguments)
        return
    known = [arguments, GROUPED_INVALIDATE_WRITTEN] if name == INVALIDATE_WRITTEN else [arguments]
    if not any(_same(name, defined, k) for k in known):
        raise RuntimeError(
            f"hisparse_vllm: {NAMESPACE}::{name} must have the schema of vLLM 0.32 or 0.33"
            f" ({name}{arguments}), got {defined}"
        )


def _defined(name: str) -> torch._C.FunctionSchema | None:
    packet = getattr(torch.ops, NAMESPACE)
    return getattr(packet, name).default._schema if hasattr(packet, name) else None


def _same(name: str, defined: torch._C.FunctionSchema, arguments: str) -> bool:
    """Equal types, mutability and order; argument names and defaults may differ."""
    known = torch._C.parse_schema(f"{NAMESPACE}::{name}{arguments}")

    def shape(schema: torch._C.FunctionSchema) -> list[tuple[str, bool]]:
        return [
            (str(a.type), bool(a.alias_info and a.alias_info.is_write)) for a in schema.arguments
        ]

    return shape(known) == shape(defined)
