"""Transfer ops: the contract (schema, checks, documented function) of what moves rows and slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops.checks import Checker, fail, num_rows
from hisparse_ops.registry import define_op

_pad_slots = define_op(
    "pad_slots(Tensor slots, Tensor valid_count, Tensor(a!) out) -> ()", family="transfer"
)


@_pad_slots.fake
def _check_pad_slots(slots: Tensor, valid_count: Tensor, out: Tensor) -> None:
    check = Checker("pad_slots", slots.device)
    check.ids("slots", slots, 1)
    check.ids("valid_count", valid_count, 1)
    check.size("valid_count", valid_count, 0, "length", 1)
    check.ids("out", out, 1)
    check.size("out", out, 0, "length", slots.shape[0])
    check.distinct("out", out)


@_pad_slots.public
def pad_slots(slots: Tensor, valid_count: Tensor, out: Tensor) -> None:
    """Keep the first ``valid_count`` slots and fill the rest of ``out`` with -1.

    ``out[i] = slots[i] if i < valid_count[0] else -1``. The count is read on the device, so one
    captured graph serves every length.

    Parameters
    ----------
    slots : Tensor
        ``[n]``, int32 or int64, any stride: slot of each token; -1 is kept as it is.
    valid_count : Tensor
        ``[1]``, int32 or int64: tokens that are real. Clamped to ``[0, n]``.
    out : Tensor
        ``[n]``, int32 or int64 (it may differ from ``slots``: a slot that int32 cannot hold becomes
        -1). Written. It may be ``slots`` itself.

    Mutates: ``out``, every element. Graph-safe: yes. Deterministic: bitwise.
    Cost: reads and writes n slots.

    Raises
    ------
    ValueError
        A dtype, dimension or length other than above, or ``out`` shares memory with ``slots``
        without being it.

    Source: the shortened slot prefix of a padded decode graph (vLLM pads ``slot_mapping`` with -1).
    """
    _pad_slots.call(slots, valid_count, out)


INVALID_ROWS = ("row0", "keep")

_copy_resident_rows = define_op(
    "copy_resident_rows(Tensor source, Tensor row_ids, Tensor(a!) staging, *, str invalid) -> ()",
    family="transfer",
)


@_copy_resident_rows.fake
def _check_copy_resident_rows(
    source: Tensor, row_ids: Tensor, staging: Tensor, *, invalid: str
) -> None:
    check = Checker("copy_resident_rows", source.device)
    check.slab("source", source)
    check.ids("row_ids", row_ids, 1)
    check.slab("staging", staging, written=True)
    check.row_bytes("staging", staging, "source", source)
    n = row_ids.shape[0]
    if num_rows(staging) < n:
        fail(check.op, "staging", f"have at least {n} rows like row_ids", str(num_rows(staging)))
    check.choice("invalid", invalid, INVALID_ROWS)
    if invalid == "row0" and n > 0 and num_rows(source) == 0:
        fail(check.op, "source", 'have a row 0 with invalid = "row0"', "0 rows")


@_copy_resident_rows.public
def copy_resident_rows(source: Tensor, row_ids: Tensor, staging: Tensor, *, invalid: str) -> None:
    """Copy the rows that ``row_ids`` names from a slab into consecutive rows of ``staging``.

    ``staging[i] = source[row_ids[i]]`` for ``0 <= i < n``, as bytes: no cast, no temporary, each
    row read once and written once. Rows are counted over pages, ``staging[i]`` being row ``i %
    block_size`` of page ``i // block_size`` where it is paged.

    Parameters
    ----------
    source : Tensor
        ``[rows, width]`` or ``[num_blocks, block_size, width]``, any dtype: where the rows are. The
        block stride may exceed the page (one layer of a slab that several layers share).
    row_ids : Tensor
        ``[n]``, int32 or int64, any stride: row of each staged row. Duplicates are allowed.
    staging : Tensor
        ``[m, width]`` or ``[pages, block_size, width]`` with at least n rows of as many bytes as
        those of ``source``; the dtype may differ (float8 over uint8, bfloat16 over int16). Written
        in rows 0..n-1, gaps between pages and rows from n on keep their bytes.
    invalid : str
        What an id outside ``[0, rows)`` does. ``"row0"``: it reads row 0, so every staged row is
        defined (initial prefill staging, where such rows are masked later). ``"keep"``: the staged
        bytes stay (a patch over rows that are staged already).

    Mutates: ``staging``. Graph-safe: yes. Deterministic: bitwise.
    Cost: reads and writes n rows; one pass.

    Raises
    ------
    ValueError
        A dimension, dtype, row width or stride other than above, fewer than n staging rows, no row
        0 to read with ``invalid="row0"``, or ``staging`` shares memory with ``source`` or
        ``row_ids``.

    Source: prefill staging of resident rows in vLLM's HiSparse runtime (negative id reads row 0).
    """
    _copy_resident_rows.call(source, row_ids, staging, invalid=invalid)


def _device(*tensors: Tensor) -> torch.device:
    """Where an op runs whose slabs may be on the host: the first device that is not the CPU."""
    devices = (t.device for t in tensors if t.device.type != "cpu")
    return next(devices, torch.device("cpu"))


def _check_pairs(
    check: Checker,
    sources: Sequence[Tensor],
    destinations: Sequence[Tensor],
    *,
    paged: bool = False,
) -> None:
    check.length("destinations", destinations, "sources", sources)
    for layer, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
        name, other = f"destinations[{layer}]", f"sources[{layer}]"
        if paged:
            check.dim(other, source, 3)
        check.slab(other, source, host=True)
        if paged:
            check.dim(name, destination, 3)
        check.slab(name, destination, written=True, host=True)
        check.row_bytes(name, destination, other, source)
        if paged:
            check.size(name, destination, 1, "block_size", source.shape[1])


_copy_row_spans = define_op(
    "copy_row_spans(Tensor[] sources, Tensor(a!)[] destinations, Tensor spans) -> ()",
    family="transfer",
)


@_copy_row_spans.fake
def _check_copy_row_spans(
    sources: Sequence[Tensor], destinations: Sequence[Tensor], spans: Tensor
) -> None:
    check = Checker("copy_row_spans", _device(*sources, *destinations, spans))
    _check_pairs(check, sources, destinations)
    check.ids("spans", spans, 2)
    check.size("spans", spans, 1, "columns", 3)


@_copy_row_spans.public
def copy_row_spans(
    sources: Sequence[Tensor], destinations: Sequence[Tensor], spans: Tensor
) -> None:
    """Copy spans of consecutive rows between slabs of any layouts, the same spans for every layer.

    ``destinations[l][d + i] = sources[l][s + i]`` for every layer l, every ``(s, d, rows)`` in
    ``spans`` and ``0 <= i < rows``, spans in order. One call mirrors or spills all layers (device
    to host) or restores them (host to device).

    Parameters
    ----------
    sources : list of Tensor
        Per layer ``[rows, width]`` or ``[num_blocks, block_size, width]``, any dtype. The block
        stride may exceed the page. Layers may differ in everything, the width too.
    destinations : list of Tensor
        One for each source, of the same row bytes; page size, strides and dtype may differ.
        Written.
    spans : Tensor
        ``[n, 3]``, int32 or int64, any strides: (source row, destination row, rows). Rows are
        counted over pages, so a span may cross them. A row that does not exist on both sides is
        skipped, the others of its span are copied; a count of 0 or less copies nothing.

    Mutates: ``destinations``, the rows named and no byte between them. Graph-safe: yes; spans are
    read on the device, so a replay follows what they hold then. Deterministic: bitwise; where two
    spans meet in a destination row, the later one wins.
    On a device, sources or destinations may be host memory that the device can reach (pinned,
    registered).
    Cost: reads and writes the rows named; consecutive rows move as one copy where both sides are
    without gaps.

    Raises
    ------
    ValueError
        Lists of different length, a dimension, dtype, row width or stride other than above, or a
        destination that shares memory with a source, another destination or ``spans``.

    Source: the row mirror and page restore of HiSparse pools (one descriptor list for all layers).
    """
    _copy_row_spans.call(sources, destinations, spans)


_copy_pages = define_op(
    "copy_pages(Tensor[] sources, Tensor(a!)[] destinations, Tensor page_pairs) -> ()",
    family="transfer",
)


@_copy_pages.fake
def _check_copy_pages(
    sources: Sequence[Tensor], destinations: Sequence[Tensor], page_pairs: Tensor
) -> None:
    check = Checker("copy_pages", _device(*sources, *destinations, page_pairs))
    _check_pairs(check, sources, destinations, paged=True)
    check.ids("page_pairs", page_pairs, 2)
    check.size("page_pairs", page_pairs, 1, "columns", 2)


@_copy_pages.public
def copy_pages(
    sources: Sequence[Tensor], destinations: Sequence[Tensor], page_pairs: Tensor
) -> None:
    """Copy whole pages, the same pages for every layer, between slabs with their own page numbers.

    ``destinations[l][d] = sources[l][s]`` for every layer l and every ``(s, d)`` in ``page_pairs``,
    pairs in order. The host and the device number their pages independently: s is a page of the
    source, d one of the destination.

    Parameters
    ----------
    sources : list of Tensor
        Per layer ``[num_blocks, block_size, width]``, any dtype. The block stride may exceed the
        page. Layers may differ in everything.
    destinations : list of Tensor
        One for each source, with its block size and row bytes; the number of pages, strides and
        dtype may differ. Written.
    page_pairs : Tensor
        ``[n, 2]``, int32 or int64, any strides: (source page, destination page). A pair with a page
        that is 0 (the null block), negative or past the end on its side is skipped.

    Mutates: ``destinations``, the pages named and no byte between them. Graph-safe: yes; pairs are
    read on the device. Deterministic: bitwise; where two pairs have the same destination, the later
    one wins.
    On a device, sources or destinations may be host memory that the device can reach (pinned,
    registered).
    Cost: reads and writes the pages named; a page without gaps on both sides is one copy.

    Raises
    ------
    ValueError
        Lists of different length, a dimension, dtype, block size, row width or stride other than
        above, or a destination that shares memory with a source, another destination or
        ``page_pairs``.

    Source: page spill and restore of HiSparse pools, whose host and device pages are allocated
    separately.
    """
    _copy_pages.call(sources, destinations, page_pairs)


_publish_indexer_pages = define_op(
    "publish_indexer_pages(Tensor source, Tensor source_blocks, Tensor logical_blocks,"
    " Tensor(a!) slab, *, Tensor? row_counts=None) -> ()",
    family="transfer",
)


@_publish_indexer_pages.fake
def _check_publish_indexer_pages(
    source: Tensor,
    source_blocks: Tensor,
    logical_blocks: Tensor,
    slab: Tensor,
    *,
    row_counts: Tensor | None = None,
) -> None:
    check = Checker("publish_indexer_pages", source.device)
    check.dim("source", source, 3)
    check.slab("source", source)
    check.ids("source_blocks", source_blocks, 1)
    n = source_blocks.shape[0]
    check.ids("logical_blocks", logical_blocks, 1)
    check.size("logical_blocks", logical_blocks, 0, "length", n)
    check.dim("slab", slab, 3)
    check.slab("slab", slab, written=True)
    check.row_bytes("slab", slab, "source", source)
    check.size("slab", slab, 1, "block_size", source.shape[1])
    if row_counts is not None:
        check.ids("row_counts", row_counts, 1)
        check.size("row_counts", row_counts, 0, "length", n)


@_publish_indexer_pages.public
def publish_indexer_pages(
    source: Tensor,
    source_blocks: Tensor,
    logical_blocks: Tensor,
    slab: Tensor,
    *,
    row_counts: Tensor | None = None,
) -> None:
    """Publish pages of indexer rows into one layer of the shared slab, addressed by logical block.

    ``slab[logical_blocks[i], :r] = source[source_blocks[i], :r]`` with ``r = row_counts[i]`` (the
    whole page without it) for ``0 <= i < n``, in order. ``source`` and ``slab`` number their blocks
    independently.

    Parameters
    ----------
    source : Tensor
        ``[pages, block_size, width]``, any dtype, any page and row stride: the indexer's own dense
        cache.
    source_blocks : Tensor
        ``[n]``, int32 or int64: page of ``source`` that holds the rows.
    logical_blocks : Tensor
        ``[n]``, int32 or int64: block of ``slab`` they are published in.
    slab : Tensor
        ``[num_blocks, block_size, width]``, of the same block size and row bytes: one layer's view
        of the shared slab. Its block stride spans the other layers, whose bytes are not touched.
        Written.
    row_counts : Tensor, optional
        ``[n]``, int32 or int64: rows of each page that hold data, clamped to ``[0, block_size]``.
        Rows past the count keep their bytes.

    An entry is skipped where either block is 0 (the null block, on both sides), negative or past
    the end.

    Mutates: ``slab``, the rows named. Graph-safe: yes. Deterministic: bitwise; where a logical
    block is listed twice, the later entry wins, row by row.
    Cost: reads and writes the rows named; a page without gaps on both sides is one copy.

    Raises
    ------
    ValueError
        A dimension, dtype, length, block size, row width or stride other than above, or ``slab``
        shares memory with another argument.

    Source: a public fault of a BF16 indexer cache, whose dense page numbers were used as logical
    blocks of the slab.
    """
    _publish_indexer_pages.call(source, source_blocks, logical_blocks, slab, row_counts=row_counts)


_scatter_rows = define_op(
    "scatter_rows(Tensor[] rows, Tensor slots, Tensor(a!)[] caches) -> ()", family="transfer"
)


@_scatter_rows.fake
def _check_scatter_rows(rows: list[Tensor], slots: Tensor, caches: list[Tensor]) -> None:
    check = Checker("scatter_rows", slots.device)
    check.ids("slots", slots, 1)
    if not rows:
        fail(check.op, "rows", "hold at least 1 tensor", "0")
    check.length("caches", caches, "rows", rows)
    for j, (source, cache) in enumerate(zip(rows, caches, strict=True)):
        check.on_device(f"rows[{j}]", source)
        check.dim(f"rows[{j}]", source, 2)
        check.size(f"rows[{j}]", source, 0, "tokens", slots.shape[0])
        check.slab(f"rows[{j}]", source)
        check.slab(f"caches[{j}]", cache, written=True)
        check.row_bytes(f"caches[{j}]", cache, f"rows[{j}]", source)
        expected = num_rows(caches[0])
        if num_rows(cache) != expected:
            rule = f"have {expected} rows like caches[0]"
            fail(check.op, f"caches[{j}]", rule, str(num_rows(cache)))


@_scatter_rows.public
def scatter_rows(rows: list[Tensor], slots: Tensor, caches: list[Tensor]) -> None:
    """Write the rows of new tokens to their slots, in one cache or in several that share the slots.

    ``caches[j][slots[i]] = rows[j][i]``, byte for byte, for every j. Token i is skipped in all
    caches where ``slots[i]`` is negative or past their end. One packed BF16 cache is a list of one;
    the latent and rope caches of Ascend are a list of two; the value and scale regions of a page
    are two views of one tensor.

    Parameters
    ----------
    rows : list of Tensor
        At least one; ``rows[j]`` is ``[tokens, w_j]``, any dtype; elements side by side, any row
        stride.
    slots : Tensor
        ``[tokens]``, int32 or int64, any stride: destination row of each token, ``block *
        block_size + offset``;
        -1 for padding.
    caches : list of Tensor
        As many as ``rows``; ``caches[j]`` is ``[n, w]`` or ``[blocks, block_size, w]``, any dtype,
        with rows of as many bytes as those of ``rows[j]``. All have the same number of rows (their
        block sizes and strides may differ). The block stride may exceed the page, and a page may
        start at any byte. They may be columns of one tensor, but may not overlap. Written.

    Mutates: ``caches``, the rows named by ``slots``; every other byte is left as it is. Graph-safe:
    yes. Deterministic: bitwise where slots are unique; of tokens with the same slot the last one
    wins on the CPU, while on devices which one does is undefined. Cost: reads and writes the bytes
    of all rows once.

    Raises
    ------
    ValueError
        Lists of different lengths or empty; a shape, stride or row size other than above; a cache
        overlapping another cache or an input (CPU only).

    Source: ``reshape_and_cache`` of MLA in vLLM and ``npu_scatter_nd_update_`` on Ascend, one call
    for the pair.
    """
    _scatter_rows.call(rows, slots, caches)
