"""Corrupted inputs: one wrong element each, in a call that is healthy otherwise, and how validation names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hisparse_ops.testing import samples
from hisparse_ops.testing.tame import tame

Args = dict[str, Any]


@dataclass(frozen=True)
class Corruption:
    """``change`` edits the tamed arguments of a sample; ``error`` is what follows the op's name in the report."""

    op: str
    name: str
    sample: str
    change: Callable[[Args], None]
    error: str

    def args(self) -> Args:
        sample = next(s for s in samples.samples(self.op) if s.name == self.sample)
        args = tame(self.op, sample.args())
        self.change(args)
        return args


Edit = Callable[[Args], None]


def put(argument: str, *index: int, value: Any) -> Edit:
    """``argument[index] = value``; the first index picks the tensor where the argument is a list."""

    def change(args: Args) -> None:
        if isinstance(args[argument], list):
            args[argument][index[0]][index[1:]] = value
        else:
            args[argument][index] = value

    return change


def both(*changes: Edit) -> Edit:
    def change(args: Args) -> None:
        for one in changes:
            one(args)

    return change


def wide(*arguments: str) -> Edit:
    """int64 copies, for values that int32 cannot hold."""

    def change(args: Args) -> None:
        for argument in arguments:
            args[argument] = args[argument].long()

    return change


def _ids(
    op: str, sample: str, argument: str, index: tuple[int, ...], rule: str, high: int
) -> Iterator[Corruption]:
    """The ways an id goes wrong: below -1, one past the end, garbage, beyond 32 bits."""
    place = ", ".join(str(i) for i in index)

    def case(name: str, value: int, before: Edit = lambda args: None) -> Corruption:
        change = both(before, put(argument, *index, value=value))
        error = f"{argument}[{place}] must {rule}, got {value}"
        return Corruption(op, f"{argument}[{place}]: {name}", sample, change, error)

    yield case("below -1", -2)
    yield case("one past the end", high)
    yield case("beyond 32 bits", 2**32, wide(argument))


def _resolve() -> Iterator[Corruption]:
    plain, pages = "plain decode", "stable lengths, resident"

    def case(name: str, change: Edit, error: str, sample: str = plain) -> Corruption:
        return Corruption("resolve", name, sample, change, error)

    request = "be -1 or a request below 3"
    yield from _ids("resolve", plain, "request_ids", (1,), request, 3)
    state = "be -1 or a state row below 4"
    yield from _ids("resolve", plain, "request_state_indices", (1,), state, 4)
    yield case(
        "two requests in one state row",
        put("request_state_indices", 1, value=1),
        "request_state_indices[1] must be a state row of its own, got 1 again",
    )
    position = "be -1 or a position below 48"
    yield from _ids("resolve", plain, "topk_indices", (1, 5), position, 48)
    yield case(
        "a position without host row",
        put("source_block_table", 0, 5, value=0),
        "topk_indices[0, 2] must be a position whose row is on the host or resident, got 21",
    )
    block = "be a host block, below 37, or null (0 or -1)"
    for name, value in (("past the host", 37), ("garbage", 2**31 - 1), ("negative", -5)):
        yield case(
            f"a host block {name}",
            put("source_block_table", 0, 5, value=value),
            f"source_block_table[0, 5] must {block}, got {value}",
        )
    yield case(
        "one host block for two pages",
        put("source_block_table", 0, 5, value=34),
        "source_block_table[0, 5] must be the block of one page only, got 34 again",
    )
    for name, value in (("past the slab", 67), ("null", 0), ("negative", -1)):
        yield case(
            f"a hot block {name}",
            put("hot_block_table", 1, 4, value=value),
            f"hot_block_table[1, 4] must be a device block, 1 to 66, got {value}",
        )
    once = "be the block of one hot buffer column only"
    yield case(
        "one hot block for two columns",
        put("hot_block_table", 1, 4, value=51),
        f"hot_block_table[1, 4] must {once}, got 51 again",
    )
    yield case(
        "one hot block for two requests",
        put("hot_block_table", 1, 4, value=62),
        f"hot_block_table[1, 4] must {once}, got 62",
    )
    for name, value in (("past the host", 146), ("below -1", -9)):
        yield case(
            f"an owner {name}",
            put("hot_owner", 1, 7, value=value),
            f"hot_owner[1, 7] must be -1 or a host row below 146, got {value}",
        )
    yield case(
        "one host row in two slots",
        both(put("hot_owner", 1, 7, value=100), _copy_owner),
        "hot_owner[1, 20] must own a host row that no other slot owns, got 100 again",
    )
    for name, value in (("past the hot buffer", 24), ("negative", -1), ("garbage", 32767)):
        yield case(
            f"an LRU entry {name}",
            put("lru_slots", 0, 3, value=value),
            f"lru_slots[0, 3] must be a slot below 24, got {value}",
        )
    yield case(
        "a slot twice in the LRU",
        _repeat_slot,
        "lru_slots[0, 9] must list every slot once, got 5 again",
    )
    yield case(
        "a run that needs more than the limit",
        _large_union,
        "topk_indices must need at most 8 distinct host rows in a run, got more in the run at row 0",
    )
    yield case(
        "a host row past the host cache",
        put("topk_indices", 3, 2, value=146),
        "topk_indices[3, 2] must be -1 or a host row below 146, got 146",
        "host rows instead of positions",
    )
    yield case(
        "a negative length",
        put("stable_lengths", 0, value=-1),
        "stable_lengths[0] must be a length, at least 0, got -1",
        pages,
    )
    yield case(
        "a resident block past the slab",
        _resident(lambda args: int(args["num_blocks"])),
        "resident_block_table[1, 0] must be a device block, below 127, or null (0 or -1), got 127",
        pages,
    )
    yield case(
        "a resident block that is a hot block",
        _resident(lambda args: int(args["hot_block_table"][0, 1])),
        "resident_block_table[1, 0] must not be a block of a hot buffer, got 98",
        pages,
    )


def _copy_owner(args: Args) -> None:
    row = args["hot_owner"][1]
    row[row == 100] = -1
    row[7] = row[20] = 100


def _repeat_slot(args: Args) -> None:
    row = args["lru_slots"][0]
    at = int((row == 5).nonzero()[0])
    row[at] = row[2]
    row[2] = row[9] = 5


def _large_union(args: Args) -> None:
    args["request_ids"].fill_(0)
    args["max_union_rows"] = 8
    args["source_block_table"][0] = torch.arange(1, 13)
    args["topk_indices"].copy_(torch.arange(16).view(2, 8))


def _resident(block: Callable[[Args], int]) -> Edit:
    """A wrong block for page 0 of request 0, which then is selected together with page 1, which is not resident."""

    def change(args: Args) -> None:
        state = 1
        args["request_state_indices"][0] = state
        args["request_state_indices"][1:] = torch.tensor([0, 2])
        args["resident_block_table"][state] = 0
        args["topk_indices"][args["request_ids"] == 0] = -1
        args["topk_indices"][0, :2] = torch.tensor([1, args["block_size"]])
        args["source_block_table"][0, :2] = torch.tensor([1, 2])
        args["source_block_table"][0, 2:] = 0
        args["resident_block_table"][state, 0] = block(args)

    return change


def _gather() -> Iterator[Corruption]:
    host = "be -1 or a row of host_cache, below 24"
    hot = "be -1 or a row of hot_cache, below 20"
    for op in ("gather_compact", "gather_plan"):
        yield from _ids(op, "random", "host_rows", (0, 0), host, 24)
        yield from _ids(op, "random", "hot_rows", (0, 0), hot, 20)
        yield Corruption(
            op,
            "one hot row for two host rows",
            "random",
            both(put("hot_rows", 0, 2, value=10), put("host_rows", 0, 2, value=3)),
            "hot_rows[0, 2] must take one host row only, got 10 for another host row",
        )
    for value in (-1, 6, 123456):
        yield Corruption(
            "gather_compact",
            f"a count of {value}",
            "random",
            put("counts", 1, value=value),
            f"counts[1] must be between 0 and top_k = 5, got {value}",
        )
    for value in (-1, 2, 123456):
        yield Corruption(
            "gather_plan",
            f"a mask of {value}",
            "random",
            put("miss_mask", 1, 3, value=value),
            f"miss_mask[1, 3] must be 0 or 1, got {value}",
        )
    yield Corruption(
        "gather_plan",
        "an attention index of no row",
        "random",
        put("hot_rows", 2, 4, value=20),
        f"hot_rows[2, 4] must {hot}, got 20",
    )
    yield Corruption(
        "gather_plan",
        "a state row below -1",
        "random",
        put("request_state_indices", 2, value=-7),
        "request_state_indices[2] must be -1 (padding) or a state row, got -7",
    )


def _invalidate() -> Iterator[Corruption]:
    written, recycled = "invalidate_written", "invalidate_recycled"
    yield from _ids(written, "random", "request_ids", (4,), "be -1 or a request below 3", 3)
    row = "be -1 or a row below 2147483648"
    for value in (-3, 2**31):
        yield Corruption(
            written,
            f"a written slot of {value}",
            "random",
            both(wide("slots"), put("slots", 3, value=value)),
            f"slots[3] must {row}, got {value}",
        )
    yield Corruption(
        written,
        "two tokens in one slot",
        "random",
        both(put("slots", 1, value=1000), put("slots", 5, value=1000)),
        "slots[5] must name each row once, got 1000 again",
    )
    for value in (-2, 4):
        yield Corruption(
            written,
            f"a state row of {value}",
            "random",
            put("request_state_indices", 2, value=value),
            f"request_state_indices[2] must be -1 or a state row of owners[0], below 4, got {value}",
        )
    state = "be -1 or a state row below 4"
    yield from _ids(recycled, "two runs", "state_rows", (1,), state, 4)
    for value in (-3, 2**31):
        yield Corruption(
            recycled,
            f"a recycled slot of {value}",
            "two runs",
            both(wide("sorted_slots"), put("sorted_slots", 3, value=value)),
            f"sorted_slots[3] must be -1 or a host row below 2147483648, got {value}",
        )
    yield Corruption(
        recycled,
        "slots out of order",
        "two runs",
        put("sorted_slots", 5, value=-1),
        "sorted_slots[5] must be at least the slot before it, got -1",
    )
    for op, sample in ((written, "random"), (recycled, "two runs")):
        yield Corruption(
            op,
            "an owner below -1",
            sample,
            put("owners", 1, 2, 30, value=-4),
            "owners[1][2, 30] must be -1 or a host row, got -4",
        )
        yield Corruption(
            op,
            "one host row in two slots",
            sample,
            both(put("owners", 1, 2, 3, value=5000), put("owners", 1, 2, 30, value=5000)),
            "owners[1][2, 30] must own a host row that no other slot owns, got 5000 again",
        )


def _counts() -> Iterator[Corruption]:
    states = "be -1 or a state row below 4"
    yield from _ids("reset_requests", "two rows", "state_rows", (1,), states, 4)
    yield Corruption(
        "reset_requests",
        "a state row twice",
        "two rows",
        put("state_rows", 1, value=2),
        "state_rows[1] must be listed once, got 2 again",
    )
    for argument in ("valid_counts", "refill_counts", "resident_counts"):
        yield Corruption(
            "residency_stats",
            f"negative {argument}",
            "128 rows",
            put(argument, 77, value=-1),
            f"{argument}[77] must be at least 0, got -1",
        )
    yield Corruption(
        "residency_stats",
        "more resident than valid",
        "128 rows",
        both(put("valid_counts", 5, value=3), put("resident_counts", 5, value=4)),
        "resident_counts[5] must be at most valid_counts of its row, got 4",
    )
    yield Corruption(
        "residency_stats",
        "more loads than references",
        "128 rows",
        _more_loads,
        "refill_counts must sum up to at most the 128 entries that the hot buffer answers, got 129",
    )
    for value in (-1, 9):
        yield Corruption(
            "pad_slots",
            f"a count of {value}",
            "5 of 8",
            put("valid_count", 0, value=value),
            f"valid_count[0] must be between 0 and 8, got {value}",
        )
    yield Corruption(
        "pad_slots",
        "a slot that int32 cannot hold",
        "5 of 8",
        both(wide("slots"), put("slots", 2, value=2**31)),
        "slots[2] must be -1 or a slot that int32 holds, got 2147483648",
    )
    yield Corruption(
        "pad_slots",
        "two tokens in one slot",
        "5 of 8",
        both(put("slots", 1, value=7), put("slots", 4, value=7)),
        "slots[4] must name each row once, got 7 again",
    )


def _more_loads(args: Args) -> None:
    args["valid_counts"].fill_(1)
    args["resident_counts"].fill_(0)
    args["refill_counts"].fill_(1)
    args["refill_counts"][0] = 2


def _transfer() -> Iterator[Corruption]:
    rows = "be -1 or a row of source below 20"
    yield from _ids("copy_resident_rows", "paged to flat", "row_ids", (3,), rows, 20)
    spans = "copy_row_spans", "paged to flat"
    within = "start a span that ends within the 20 rows of sources[0]"
    into = "start a span that ends within the 30 rows of destinations[0]"
    for name, index, value, rule in (
        ("a count below 0", (1, 2), -1, "be a count of rows, at least 0"),
        ("a start below 0", (1, 0), -1, within),
        ("a span past the source", (1, 0), 19, within),
        ("a source start of garbage", (2, 0), 2**62, within),
        ("a destination below 0", (0, 1), -4, into),
        ("a span past the destination", (1, 1), 29, into),
        ("two spans in one row", (1, 1), 4, "start past the rows that other spans write"),
    ):
        place = ", ".join(str(i) for i in index)
        change = put("spans", *index, value=value)
        yield Corruption(
            spans[0], name, spans[1], change, f"spans[{place}] must {rule}, got {value}"
        )
    pages = "copy_pages", "two layers"
    null = "or null (0 or -1)"
    for column, name, count in ((0, "sources[0]", 6), (1, "destinations[0]", 8)):
        rule = f"be a page of {name}, below {count}, {null}"
        yield from _ids(*pages, "page_pairs", (1, column), rule, count)
    yield Corruption(
        pages[0],
        "a page written twice",
        pages[1],
        put("page_pairs", 2, 1, value=7),
        "page_pairs[2, 1] must write each page once, got 7 again",
    )
    publish = "publish_indexer_pages", "partial pages"
    for argument, name, count in (("source_blocks", "source", 6), ("logical_blocks", "slab", 9)):
        rule = f"be a block of {name}, below {count}, {null}"
        yield from _ids(*publish, argument, (1,), rule, count)
    yield Corruption(
        publish[0],
        "a block published twice",
        publish[1],
        put("logical_blocks", 2, value=2),
        "logical_blocks[2] must name each block once, got 2 again",
    )
    for value in (-1, 5):
        yield Corruption(
            publish[0],
            f"{value} rows of a page",
            publish[1],
            put("row_counts", 1, value=value),
            f"row_counts[1] must be between 0 and block_size = 4, got {value}",
        )


def _scatter() -> Iterator[Corruption]:
    for op, sample in (
        ("scatter_rows", "packed"),
        ("scatter_c8", "ascend"),
        ("quantize_scatter_c8", "ascend amax"),
    ):
        yield from _ids(op, sample, "slots", (3,), "be -1 or a row below 12", 12)
        yield Corruption(
            op,
            "two tokens in one slot",
            sample,
            both(put("slots", 3, value=0), put("slots", 7, value=0)),
            "slots[7] must name each row once, got 0 again",
        )
    for value in (0.0, -1.0, float("nan"), float("inf")):
        yield Corruption(
            "scatter_c8",
            f"a scale of {value}",
            "ascend",
            put("scales", 3, 2, value=value),
            f"scales[3, 2] must be a finite scale above 0, got {value}",
        )
    for argument, value in (("latent", float("nan")), ("latent", float("-inf"))):
        yield Corruption(
            "quantize_scatter_c8",
            f"{argument} of {value}",
            "ascend amax",
            put(argument, 4, 300, value=value),
            f"{argument}[4, 300] must be finite, got {value}",
        )
    yield Corruption(
        "quantize_scatter_c8",
        "rope of nan",
        "ascend amax",
        put("rope", 4, 63, value=float("nan")),
        "rope[4, 63] must be finite, got nan",
    )
    ids = "be -1 or a row of cache below 12"
    yield from _ids("dequantize_c8", "ascend", "row_ids", (2,), ids, 12)
    yield Corruption(
        "dequantize_c8",
        "a row that was never written",
        "ascend",
        _unwritten_row,
        "row_ids[3] must name a row whose tiles have finite scales above 0, got 4, scale 0.0 in tile 0",
    )


def _unwritten_row(args: Args) -> None:
    args["cache"][1, 0] = 0
    args["row_ids"][3] = 4


CORRUPTIONS = [
    *_resolve(),
    *_gather(),
    *_invalidate(),
    *_counts(),
    *_transfer(),
    *_scatter(),
]
