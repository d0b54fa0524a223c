"""The resolver: public faults as named tests, and long random runs against the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops import reference
from hisparse_ops.testing.buffers import POISON, assert_same_buffers, clone_args
from hisparse_ops.testing.samples.resolve import corrupt_lru, random_topk, scene

RESOLVE = hisparse_ops.ops()["resolve"].call
ORACLE = reference.load("resolve")


def int32(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def call(topk: Any, hot_size: int, **changes: Any) -> dict[str, Any]:
    """One request a row by default, source block b = page b + 1, an empty hot buffer, outputs poisoned."""
    topk = int32(topk)
    rows, top_k = topk.shape
    block_size = changes.get("block_size", 4)
    hot_blocks = -(-hot_size // block_size)
    args: dict[str, Any] = {
        "topk_indices": topk,
        "request_ids": torch.arange(rows, dtype=torch.int32),
        "request_state_indices": torch.arange(rows, dtype=torch.int32),
        "source_block_table": torch.arange(1, 33, dtype=torch.int32).repeat(rows, 1),
        "hot_block_table": 1
        + torch.arange(rows * hot_blocks, dtype=torch.int32).view(rows, hot_blocks),
        "hot_owner": torch.full((rows, hot_size), -1, dtype=torch.int32),
        "lru_slots": torch.arange(hot_size, dtype=torch.int16).repeat(rows, 1),
        "host_rows": 1 << 20,
        "num_blocks": 1 + rows * hot_blocks,
        "block_size": block_size,
        "stats": torch.zeros(2, dtype=torch.int64),
        **changes,
    }
    for name in ("attention_indices", "refill_host_rows", "refill_hot_rows", "physical_rows"):
        args.setdefault(name, torch.full((rows, top_k), POISON, dtype=torch.int32))
    for name in ("resolved_host_rows", "miss_mask"):
        args.setdefault(name, torch.full((rows, top_k), POISON, dtype=torch.int32))
    for name in ("valid_counts", "refill_counts", "resident_counts"):
        args.setdefault(name, torch.full((rows,), POISON, dtype=torch.int32))
    return args


def run(args: dict[str, Any]) -> dict[str, Any]:
    """The op on the arguments, held against the oracle."""
    expected = clone_args(args)
    ORACLE(**expected)
    RESOLVE(**args)
    assert_same_buffers(args, expected)
    return args


def again(args: dict[str, Any], topk: Any, **changes: Any) -> dict[str, Any]:
    """The next step on the same state."""
    return run({**args, "topk_indices": int32(topk), **changes})


# --- indices ------------------------------------------------------------------------------------


def test_unused_entry_inside_a_long_row_is_masked() -> None:
    """sglang #32771: the producer pads with -1, and only the short path filtered it."""
    args = run(call([[9, -1, 30, -1, 2]], hot_size=8))
    assert args["attention_indices"][0, [1, 3]].tolist() == [-1, -1]
    assert args["valid_counts"].tolist() == [3] and args["refill_counts"].tolist() == [3]
    assert args["stats"].tolist() == [0, 3]
    assert (args["hot_owner"] >= 0).sum() == 3
    assert args["lru_slots"][0, -3:].tolist() == [0, 1, 2]


def test_short_and_padded_rows_are_written_whole() -> None:
    """sglang #32483: unused entries kept the value that stood there before."""
    args = call([[4, 3, 2, 1, 0, -1, -1, -1], [7] * 8], hot_size=8)
    args["request_ids"] = int32([0, -1])
    run(args)
    assert args["attention_indices"][0, 5:].tolist() == [-1] * 3
    assert args["attention_indices"][1].tolist() == [-1] * 8
    for name in ("attention_indices", "physical_rows", "resolved_host_rows", "miss_mask"):
        assert not (args[name] == POISON).any()


def test_stale_tail_of_the_last_step() -> None:
    """vllm #51323: in-range leftovers resolve like any id, ids past the table become -1."""
    args = run(call([[3, 8, 127, 128, 10_000]], hot_size=8))
    assert args["valid_counts"].tolist() == [3]
    assert args["attention_indices"][0, 3:].tolist() == [-1, -1]


def test_source_block_zero_is_the_null_page() -> None:
    args = run(call([[0, 3, 4]], hot_size=4, source_block_table=int32([[0, 5]])))
    assert args["attention_indices"][0, :2].tolist() == [-1, -1]
    assert args["resolved_host_rows"][0].tolist() == [-1, -1, 20]
    assert args["valid_counts"].tolist() == [1] and args["refill_counts"].tolist() == [1]


def test_resident_null_and_negative_blocks_fall_through() -> None:
    args = call([[0, 4, 9]], hot_size=4, resident_block_table=int32([[0, -1, 3]]), num_blocks=8)
    args["lru_slots"] = torch.tensor([[2, 0, 3, 1]], dtype=torch.int16)
    run(args)
    assert args["physical_rows"][0, 2] == 3 * 4 + 1
    assert args["resident_counts"].tolist() == [1] and args["refill_counts"].tolist() == [2]
    assert args["lru_slots"][0].tolist() == [3, 1, 2, 0]
    assert args["stats"].tolist() == [0, 2]


def test_resident_row_without_host_backing_is_valid() -> None:
    args = call(
        [[2]],
        hot_size=1,
        num_blocks=8,
        source_block_table=int32([[0]]),
        resident_block_table=int32([[3]]),
    )
    run(args)
    assert args["physical_rows"].tolist() == [[14]] and args["valid_counts"].tolist() == [1]
    assert args["resolved_host_rows"].tolist() == [[-1]] and args["refill_counts"].tolist() == [0]


def test_resident_row_whose_host_row_is_past_the_pool_is_kept() -> None:
    """Two public versions differ here; a page that is on the device needs no host row."""
    args = call([[2]], hot_size=1, num_blocks=8, host_rows=3, resident_block_table=int32([[3]]))
    run(args)
    assert args["physical_rows"].tolist() == [[14]] and args["resolved_host_rows"].tolist() == [
        [-1]
    ]


def test_prefix_layout_packs_around_an_interior_unused_entry() -> None:
    """A kernel that reads the first valid_count entries would drop the 9 of [7, -1, 9]."""
    column = run(call([[7, -1, 9]], hot_size=4))
    prefix = run(call([[7, -1, 9]], hot_size=4, layout="prefix"))
    kept = column["attention_indices"][0, [0, 2]].tolist()
    assert prefix["attention_indices"].tolist() == [[*kept, -1]]
    assert prefix["resolved_host_rows"][0, :2].tolist() == [11, 13]
    assert prefix["valid_counts"].tolist() == column["valid_counts"].tolist() == [2]


def test_duplicates_share_one_slot_and_one_load() -> None:
    """The per-row form gives the duplicate a slot of its own and then loses a copy of the next step."""
    args = run(call([[5, 5, 7, 9]], hot_size=6))
    assert args["attention_indices"][0, 0] == args["attention_indices"][0, 1]
    assert args["refill_counts"].tolist() == [3] and args["stats"].tolist() == [1, 3]
    assert args["miss_mask"].tolist() == [[1, 0, 1, 1]]
    again(args, [[5, 11, 12, 13]])
    assert args["refill_counts"].tolist() == [3]
    assert args["refill_host_rows"][0, :3].tolist() == [15, 16, 17]


def test_rows_of_one_verification_are_one_transaction() -> None:
    """vLLM 2798f66860, sglang #32162: row by row, a later row evicts what an earlier one needs."""
    k = 8
    args = call([list(range(k)), list(range(k, 2 * k))], hot_size=2 * k)
    args["request_ids"] = int32([0, 0])
    run(args)
    assert args["attention_indices"].unique().numel() == 2 * k
    assert args["refill_counts"].tolist() == [k, k]
    overlapping = [list(range(4, 4 + k)), list(range(6, 6 + k))]
    again(args, overlapping)
    assert args["refill_counts"].tolist() == [0, 0]
    again(args, [list(range(20, 20 + k)), list(range(20, 20 + k))])
    assert args["refill_counts"].tolist() == [k, 0]


def test_padding_rows_that_alias_request_zero() -> None:
    """vLLM 4056c8ac1f: graph padding maps to request 0; the tail is a second run that must not disturb it."""
    args = call([[i, i + 9] for i in range(9)], hot_size=8)
    args["request_ids"] = int32([0, 0, 0, 0, 1, 1, 1, 1, 0])
    args["topk_indices"][8] = -1
    run(args)
    owner, lru = args["hot_owner"][0].clone(), args["lru_slots"][0].clone()
    args["request_ids"] = int32([2, 2, 2, 2, 1, 1, 1, 1, 0])
    run(args)
    assert torch.equal(args["hot_owner"][0], owner) and torch.equal(args["lru_slots"][0], lru)
    assert args["attention_indices"][8].tolist() == [-1, -1] and args["valid_counts"][8] == 0


def test_padding_rows_by_state_index() -> None:
    args = call([[1], [2], [3], [4]], hot_size=2)
    args["request_state_indices"] = int32([0, -1, 2, -1])
    run(args)
    for row in (1, 3):
        assert args["attention_indices"][row] == args["resolved_host_rows"][row] == -1
        assert args["valid_counts"][row] == args["refill_counts"][row] == 0
        assert (args["hot_owner"][row] == -1).all()


@pytest.mark.parametrize("request_id", [-1, -(2**31), 1, 2**31 - 1])
def test_request_ids_outside_the_tables(request_id: int) -> None:
    args = run(call([[1, 2]], hot_size=2, request_ids=int32([request_id])))
    assert args["attention_indices"].tolist() == [[-1, -1]]
    assert (args["hot_owner"] == -1).all()


@pytest.mark.parametrize("position", [128, 2**31 - 1, 2**31, 2**62])
def test_position_past_the_table(position: int) -> None:
    topk = torch.tensor([[position, 5]])
    args = run({**call([[0, 5]], hot_size=2), "topk_indices": topk})
    assert args["attention_indices"][0, 0] == -1 and args["valid_counts"].tolist() == [1]


@pytest.mark.parametrize("past", [0, 7])
def test_host_row_past_the_pool(past: int) -> None:
    """vLLM: older versions let it pass and gather zero-filled; resolve answers -1 first."""
    args = run(call([[20 + past, 1]], hot_size=2, host_rows=24))
    assert args["resolved_host_rows"].tolist() == [[-1, 5]]
    assert args["refill_counts"].tolist() == [1]


def test_block_number_whose_rows_pass_int32() -> None:
    args = call([[1, 5]], hot_size=2, source_block_table=int32([[2**31 - 1, 1]]))
    run(args)
    assert args["resolved_host_rows"].tolist() == [[-1, 5]]


def test_position_past_int32_inside_a_wide_table() -> None:
    """Pages of a million rows: the offset inside the page is formed from 64-bit numbers."""
    page = 2**20
    source = torch.zeros(1, 2100, dtype=torch.int32)
    source[0, 2049] = 1
    args = call([[0]], hot_size=1, source_block_table=source, source_block_size=page)
    args["topk_indices"] = torch.tensor([[2049 * page + 5]])
    args["host_rows"] = 2 * page
    run(args)
    assert args["resolved_host_rows"].tolist() == [[page + 5]]


@pytest.mark.parametrize("slot", [13, -1, -32768, 8])
def test_corrupted_lru_entry_degrades(slot: int) -> None:
    """LRU state was overwritten in the field; the entry is masked, owned by nobody, and misses again."""
    args = call([[3, 4]], hot_size=8)
    args["lru_slots"][0, 0] = slot
    run(args)
    assert args["attention_indices"][0, 0] == -1 and args["miss_mask"].tolist() == [[0, 1]]
    assert args["refill_hot_rows"][0, 0] == -1 and args["refill_counts"].tolist() == [2]
    assert 3 + 4 not in args["hot_owner"]
    again(args, [[3, 4]])
    assert args["attention_indices"][0, 0] >= 0 and args["refill_counts"].tolist() == [1]


@pytest.mark.parametrize("oldest", [1, 18])
def test_the_oldest_of_two_slots_with_one_owner_answers(oldest: int) -> None:
    """Whichever has the higher number: a look at the owners in slot order must not decide."""
    args = call([[9, 2]], hot_size=20)
    args["hot_owner"][0, [1, 18]] = 4 + 9  # the host row of position 9
    rest = [slot for slot in range(20) if slot not in (1, 18)]
    args["lru_slots"] = torch.tensor([[oldest, *rest, 19 - oldest]], dtype=torch.int16)
    run(args)
    assert args["physical_rows"][0, 0] == 4 + oldest


def test_a_slot_that_stands_twice_is_not_given_twice() -> None:
    args = call([[3, 4]], hot_size=4)
    args["lru_slots"][0] = torch.tensor([2, 2, 1, 0], dtype=torch.int16)
    run(args)
    assert args["attention_indices"][0, 1] == -1 and args["valid_counts"].tolist() == [1]


def test_largest_hot_buffer() -> None:
    """int16 slots: 32768 are accepted, slot 32767 is itself and not negative."""
    hot_size = 32768
    args = call([[11]], hot_size=hot_size, block_size=64)
    args["lru_slots"] = args["lru_slots"].roll(1)
    assert args["lru_slots"][0, 0] == 32767
    run(args)
    assert args["hot_owner"][0, 32767] == 64 + 11
    again(args, [[11]])
    assert args["refill_counts"].tolist() == [0]


def test_hot_buffer_of_exactly_top_k() -> None:
    args = run(call([[1, 2, 3, 4]], hot_size=4))
    assert args["refill_counts"].tolist() == [4] and args["valid_counts"].tolist() == [4]
    again(args, [[5, 6, 7, 8]])
    assert args["refill_counts"].tolist() == [4]


@pytest.mark.parametrize("isa", hisparse_ops.cpu_isas())
@pytest.mark.parametrize("top_k", [1, 31, 32, 33, 63, 64, 65, 128])
def test_order_of_the_lru(top_k: int, isa: str) -> None:
    """sglang #23970: a compaction of the wrong width keeps the set of slots and loses their order."""
    before = hisparse_ops.cpu_isa()
    hisparse_ops.set_cpu_isa(isa)
    try:
        hot_size = 2 * top_k
        args = run(call([list(range(top_k))], hot_size=hot_size, block_size=64))
        assert args["hot_owner"][0, :top_k].tolist() == list(range(64, 64 + top_k))
        rotated = [*range(top_k, hot_size), *range(top_k)]
        assert args["lru_slots"][0].tolist() == rotated
        again(args, [list(range(top_k))])
        assert args["lru_slots"][0].tolist() == rotated
    finally:
        hisparse_ops.set_cpu_isa(before)


@pytest.mark.parametrize("hot_size", [4096, 10240])
def test_lru_stays_a_permutation_at_production_size(hot_size: int) -> None:
    """sglang #23970: at 2048 of 4096 the LRU was written back as zeros."""
    gen = torch.Generator().manual_seed(hot_size)
    args = scene(gen, top_k=2048, hot_size=hot_size, block_size=64, pages=200)
    for _ in range(3):
        args["topk_indices"].copy_(random_topk(gen, 2, 2048, 12800))
        run(args)
        assert torch.equal(
            args["lru_slots"].sort()[0], torch.arange(hot_size).short().expand(4, -1)
        )


def test_fully_resident_run_leaves_the_state_alone() -> None:
    args = call([[1, 5, 9]], hot_size=4, num_blocks=9, resident_block_table=int32([[4, 5, 6]]))
    args["lru_slots"] = torch.tensor([[3, 1, 0, 2]], dtype=torch.int16)
    args["hot_owner"] = int32([[8, 5, -1, 13]])
    state = args["hot_owner"].clone(), args["lru_slots"].clone()
    run(args)
    assert torch.equal(args["hot_owner"], state[0]) and torch.equal(args["lru_slots"], state[1])
    assert args["refill_counts"].tolist() == [0] and args["stats"].tolist() == [0, 0]


def test_hot_blocks_belong_to_the_request_not_to_the_batch_row() -> None:
    args = call([[i] for i in range(8)], hot_size=4, block_size=2)
    args["request_ids"] = int32([1, 1, 1, 1, 0, 0, 0, 0])
    args["hot_block_table"] = int32([[9, 4], [3, 7]])
    args["num_blocks"] = 10
    run(args)
    assert args["physical_rows"][:4, 0].tolist() == [6, 7, 14, 15]
    assert args["physical_rows"][4:, 0].tolist() == [18, 19, 8, 9]


def test_attention_index_uses_the_stride_of_the_slab() -> None:
    """vllm #57602: row 65 of 64-row pages that stand 640 rows apart."""
    args = call([[1]], hot_size=1, block_size=64, attention_block_stride=640)
    args["hot_block_table"] = int32([[1]])
    args["num_blocks"] = 2
    args["hot_owner"] = int32([[-1]])
    run(args)
    assert args["physical_rows"].tolist() == [[64]] and args["attention_indices"].tolist() == [
        [640]
    ]


def test_a_reused_state_row_must_be_reset() -> None:
    """sglang #23239: a row that still owned the last request's rows served its bytes."""
    args = run(call([[1, 2]], hot_size=4))
    hisparse_ops.reset_requests(args["hot_owner"], args["lru_slots"], int32([0]))
    again(args, [[1, 2]])
    assert args["refill_counts"].tolist() == [2] and args["stats"].tolist() == [0, 4]


def test_rewritten_positions_are_loaded_again() -> None:
    """sglang #24086: a rejected draft's row is rewritten, so a hot copy at or past the stable length is stale."""
    args = run(call([[100, 99]], hot_size=4, block_size=16, source_block_size=16))
    assert args["stats"].tolist() == [0, 2]
    again(args, [[100, 99]], stable_lengths=int32([100]))
    assert args["stats"].tolist() == [1, 3] and args["refill_host_rows"][0, 0] == 116
    assert (args["hot_owner"] == 116).sum() == 1


def test_rewritten_positions_are_forgotten_even_if_not_selected() -> None:
    """Otherwise the stale copy would be a hit once the stable length has moved past it."""
    args = run(call([[100, 99]], hot_size=4, block_size=16, source_block_size=16))
    again(args, [[3, 99]], stable_lengths=int32([100]))
    assert not (args["hot_owner"] == 116).any()
    again(args, [[100, 99]], stable_lengths=int32([103]))
    assert args["refill_counts"].tolist() == [1]


def test_a_table_without_columns_is_not_a_missing_table() -> None:
    """Torch gives a tensor without elements no address; positions must not pass for host rows then."""
    args = run(call([[5, 7]], hot_size=4, source_block_table=torch.empty(1, 0, dtype=torch.int32)))
    assert args["attention_indices"].tolist() == [[-1, -1]]
    assert (args["hot_owner"] == -1).all()


def test_rewritten_positions_are_forgotten_past_the_host_cache_too() -> None:
    args = call([[0]], hot_size=2, source_block_table=int32([[1, 2]]), host_rows=8)
    args["hot_owner"][0] = int32([-1, 9])
    run({**args, "stable_lengths": int32([4])})
    assert not (args["hot_owner"] == 9).any()


def test_stable_lengths_reach_the_hot_buffer_of_a_resident_run() -> None:
    """Nothing is matched, but the copy would be a hit once the stable length has moved past its position."""
    args = call(
        [[0, 1]],
        hot_size=4,
        resident_block_table=int32([[1, 0]]),
        stable_lengths=int32([4]),
    )
    args["hot_owner"][0] = int32([8, 9, 4, 11])
    lru = args["lru_slots"].clone()
    run(args)
    assert args["hot_owner"].tolist() == [[-1, -1, 4, -1]] and torch.equal(args["lru_slots"], lru)


def test_two_runs_of_one_state_are_transactions_in_row_order() -> None:
    args = call([[1, 2], [3, 4], [1, 2]], hot_size=2, request_state_indices=int32([0, 0, 0]))
    run(args)
    assert args["refill_counts"].tolist() == [2, 2, 2]
    assert sorted(args["hot_owner"][0].tolist()) == [5, 6]


# --- long random runs -----------------------------------------------------------------------------

SHAPES = [
    # top_k, hot slots for each entry of the union, MTP rows
    *((k, 1.0, r) for k in (1, 7, 31, 32, 33) for r in (1, 2, 3, 4)),
    *((k, 2.5, r) for k in (1, 7, 63, 64, 65) for r in (1, 4)),
    (128, 1.0, 3),
    (128, 4.0, 1),
]


def random_steps(
    top_k: int, hot_size: int, rows: int, steps: int, seed: int, **options: Any
) -> int:
    """Steps on one evolving state, everything compared with the oracle after each; returns row-steps."""
    gen = torch.Generator().manual_seed(seed)
    runs = [(r, rows) for r in range(3)]
    pages = -(-max(8, 3 * hot_size // 2) // 16)
    args = scene(
        gen,
        runs=runs,
        num_states=5,
        top_k=top_k,
        hot_size=hot_size,
        block_size=16,
        pages=pages,
        cached=0.0,
        **options,
    )
    expected = clone_args(args)
    isas = hisparse_ops.cpu_isas()
    before = hisparse_ops.cpu_isa()
    context = pages * 16
    recent = random_topk(gen, 3 * rows, top_k, context)
    for step in range(steps):
        topk = random_topk(gen, 3 * rows, top_k, context, repeat=0.05 * (step % 3))
        keep = torch.rand(topk.shape, generator=gen) < 0.7
        recent = torch.where(keep, recent, topk)  # hits: most of the last step is asked for again
        ids = torch.tensor([r for r, n in runs for _ in range(n)])
        ids[torch.rand(len(ids), generator=gen) < 0.05] = (-1, 3, 9)[
            step % 3
        ]  # padding splits runs
        for side in (args, expected):
            side["topk_indices"].copy_(recent)
            side["request_ids"].copy_(ids)
            if step % 50 == 49:
                corrupt_lru(side, torch.Generator().manual_seed(step))
            elif step % 50 == 0:
                hisparse_ops.reset_requests(
                    side["hot_owner"], side["lru_slots"], torch.arange(5, dtype=torch.int32)
                )
        hisparse_ops.set_cpu_isa(isas[step % len(isas)])
        RESOLVE(**args)
        ORACLE(**expected)
        assert_same_buffers(args, expected)
    hisparse_ops.set_cpu_isa(before)
    return steps * 3 * rows


@pytest.mark.parametrize("top_k,share,rows", SHAPES)
def test_random_steps(top_k: int, share: float, rows: int) -> None:
    random_steps(top_k, max(1, int(share * rows * top_k)), rows, 200, seed=top_k, resident=0.1)


def test_random_steps_with_prefix_layout_and_stable_lengths() -> None:
    random_steps(33, 99, 3, 200, seed=5, layout="prefix", stable=True, ids=torch.int64, gap=2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "top_k,hot_size,rows", [(2048, 2048, 1), (2048, 10240, 4), (2048, 32768, 2)]
)
def test_random_steps_at_production_size(top_k: int, hot_size: int, rows: int) -> None:
    random_steps(top_k, hot_size, rows, 200, seed=hot_size, resident=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(8))
def test_a_million_random_row_steps(seed: int, record_property: Any) -> None:
    """Eight parts of at least 125,000 rows each, small enough that every path is taken thousands of times."""
    done = 0
    for top_k, rows in ((1, 4), (7, 4), (5, 3), (3, 4)):
        hot_size = rows * top_k + seed
        layout = ("column", "prefix")[seed % 2]
        done += random_steps(top_k, hot_size, rows, 2900, seed, layout=layout, resident=0.15)
    record_property("row_steps", done)
    assert done >= 125_000
