"""A whole decode step (resolve, gather, attention over the hot rows), captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import expecttest
import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import ReinplaceCounters

from hisparse_ops import gather_compact, new_hot_state, resolve

REQUESTS, MTP, TOP_K, WIDTH = 3, 2, 16, 24
BLOCK_SIZE, PAGES, HOT_SIZE = 8, 12, 48
CONTEXT = PAGES * BLOCK_SIZE


@dataclass
class Server:
    """Pools and tables at fixed addresses, as an engine keeps them."""

    host_cache: Tensor
    hot_cache: Tensor
    tables: dict[str, Tensor]
    outputs: dict[str, Tensor]

    def tensors(self) -> dict[str, Tensor]:
        return {"host_cache": self.host_cache, "hot_cache": self.hot_cache, **self.tables}


def server(seed: int = 0, batch: int = REQUESTS * MTP) -> Server:
    gen = torch.Generator().manual_seed(seed)
    host_blocks = 1 + REQUESTS * PAGES
    hot_blocks = HOT_SIZE // BLOCK_SIZE
    owner, lru = new_hot_state(REQUESTS, HOT_SIZE)
    host = torch.randn(host_blocks * BLOCK_SIZE, WIDTH, generator=gen)
    # The slab of one layer among two: another layer's pages stand between.
    slab = torch.full((1 + REQUESTS * hot_blocks, 2, BLOCK_SIZE, WIDTH), float("nan"))
    source = 1 + torch.randperm(host_blocks - 1, generator=gen).view(REQUESTS, PAGES)
    hot_table = 1 + torch.randperm(REQUESTS * hot_blocks, generator=gen).view(REQUESTS, -1)
    entries = {
        name: torch.empty(batch, TOP_K, dtype=torch.int32)
        for name in ("attention_indices", "refill_host_rows", "refill_hot_rows")
    }
    counts = {
        name: torch.empty(batch, dtype=torch.int32) for name in ("valid_counts", "refill_counts")
    }
    return Server(
        host,
        slab[:, 0],
        {
            "topk_indices": torch.zeros(batch, TOP_K, dtype=torch.int32),
            "request_ids": torch.arange(REQUESTS, dtype=torch.int32).repeat_interleave(MTP),
            "request_state_indices": torch.tensor([2, 0, 1], dtype=torch.int32),
            "source_block_table": source.int(),
            "hot_block_table": hot_table.int(),
            "hot_owner": owner,
            "lru_slots": lru,
            "query": torch.zeros(batch, WIDTH),
            "stats": torch.zeros(2, dtype=torch.int64),
        },
        entries | counts,
    )


def attention(query: Tensor, rows: Tensor, valid: Tensor) -> Tensor:
    """``[batch, width]`` softmax attention over the rows that are valid; their order is that of the top-k."""
    rows = torch.where(valid[..., None], rows, 0.0)
    scores = torch.einsum("bw,bkw->bk", query, rows).masked_fill(~valid, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)  # a padding row has no valid entry
    return torch.einsum("bk,bkw->bw", weights, rows)


def decode_step(
    host_cache: Tensor, hot_cache: Tensor, tables: dict[str, Tensor], outputs: dict[str, Tensor]
) -> Tensor:
    inputs = {name: t for name, t in tables.items() if name != "query"}
    num_blocks, block_size, _ = hot_cache.shape
    resolve(
        **inputs,
        **outputs,
        host_rows=host_cache.shape[0],
        num_blocks=num_blocks,
        block_size=block_size,
    )
    plan = outputs["refill_host_rows"], outputs["refill_hot_rows"], outputs["refill_counts"]
    gather_compact(host_cache, hot_cache, *plan)
    indices = outputs["attention_indices"]
    at = indices.clamp_min(0).long()
    rows = hot_cache[at // block_size, at % block_size]
    return attention(tables["query"], rows, indices >= 0)


def attention_without_hisparse(s: Server) -> Tensor:
    """The same attention over rows read from the complete host cache."""
    topk, request = s.tables["topk_indices"].long(), s.tables["request_ids"].long()
    known = (topk >= 0) & (topk < CONTEXT) & (request >= 0)[:, None]
    at = topk.where(known, 0)
    blocks = s.tables["source_block_table"][request.clamp_min(0)[:, None], at // BLOCK_SIZE].long()
    rows = s.host_cache[blocks * BLOCK_SIZE + at % BLOCK_SIZE]
    return attention(s.tables["query"], rows, known)


def next_inputs(s: Server, gen: torch.Generator) -> None:
    """New contents at the old addresses: queries, a top-k that drifts, padding that comes and goes."""
    batch = len(s.tables["query"])
    s.tables["query"].copy_(torch.randn(batch, WIDTH, generator=gen))
    fresh = torch.stack([torch.randperm(CONTEXT, generator=gen)[:TOP_K] for _ in range(batch)])
    fresh[torch.rand(fresh.shape, generator=gen) < 0.1] = -1
    keep = torch.rand(fresh.shape, generator=gen) < 0.6
    s.tables["topk_indices"].copy_(torch.where(keep, s.tables["topk_indices"], fresh))
    ids = torch.arange(REQUESTS).repeat_interleave(MTP)[:batch]
    if torch.rand((), generator=gen) < 0.3:
        ids[-MTP:] = -1
    s.tables["request_ids"].copy_(ids)


def run(s: Server, step: Callable[..., Tensor]) -> Tensor:
    return step(s.host_cache, s.hot_cache, s.tables, s.outputs)


def assert_same_state(a: Server, b: Server) -> None:
    for name, t in a.tensors().items():
        assert t.equal(b.tensors()[name]) or name == "hot_cache", name
    whole = [s.hot_cache.untyped_storage() for s in (a, b)]
    left, right = (torch.empty(0, dtype=torch.uint8).set_(w) for w in whole)
    assert torch.equal(left, right), "hot pages, and the other layer's pages between them"
    for name in ("attention_indices", "valid_counts", "refill_counts"):
        assert torch.equal(a.outputs[name], b.outputs[name]), name


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def test_equals_attention_over_the_complete_cache() -> None:
    s = server()
    gen = torch.Generator().manual_seed(1)
    for _ in range(40):
        next_inputs(s, gen)
        assert torch.equal(run(s, decode_step), attention_without_hisparse(s))
    hits, misses = s.tables["stats"].tolist()
    assert hits > 0 and misses > HOT_SIZE * REQUESTS, "no eviction: the test shows nothing"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_captured_once_and_replayed_with_other_contents(backend: str) -> None:
    captured, eager = server(), server()
    step = torch.compile(decode_step, fullgraph=True, backend=backend)
    addresses = {name: t.data_ptr() for name, t in captured.tensors().items()}
    ReinplaceCounters.clear()
    gens = [torch.Generator().manual_seed(2) for _ in range(2)]
    for _ in range(15):
        for s, gen in zip((captured, eager), gens, strict=True):
            next_inputs(s, gen)
        actual, expected = run(captured, step), run(eager, decode_step)
        if backend == "inductor":  # fuses the softmax, so sums are in another order
            torch.testing.assert_close(actual, expected)
        else:
            assert torch.equal(actual, expected)
        assert_same_state(captured, eager)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert {name: t.data_ptr() for name, t in captured.tensors().items()} == addresses
    if backend == "inductor":
        missed = ReinplaceCounters.get_total_missed_bytes()
        assert missed == 0, "a pool was copied instead of written in place"


def test_batch_size_is_dynamic() -> None:
    """Any number of query rows from one compiled graph."""
    step = torch.compile(decode_step, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (
        5,
        4,
        2,
        6,
    ):  # the first size is no other size, or the compiler takes them for one
        captured, eager = server(3, batch), server(3, batch)
        for s in (captured, eager):
            s.tables["request_ids"] = s.tables["request_ids"][:batch].clone()
            next_inputs(s, torch.Generator().manual_seed(batch))
        assert torch.equal(run(captured, step), run(eager, decode_step))
        assert_same_state(captured, eager)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def captured_graph() -> str:
    """The functionalised step: our calls with what they write, and the inputs that the graph mutates."""
    s = server()
    next_inputs(s, torch.Generator().manual_seed(0))

    class Step(torch.nn.Module):
        def forward(self, *args: Any) -> Tensor:
            return decode_step(*args)

    args = (s.host_cache, s.hot_cache, s.tables, s.outputs)
    program = torch.export.export(Step(), args, strict=False).run_decompositions()
    lines = []
    for node in program.graph.nodes:
        if "auto_functionalized" in str(node.target):
            written = [
                k for k, v in node.kwargs.items() if k.endswith("_base_index") and v is not None
            ]
            names = [k.removeprefix("_").removesuffix("_base_index") for k in written]
            lines += [str(node.args[0]), *(f"  writes {name}" for name in names)]
    for spec in program.graph_signature.output_specs:
        if spec.kind.name == "USER_INPUT_MUTATION":
            lines.append(f"mutates {spec.target}")
    return "\n".join(lines)


class TestGraph(expecttest.TestCase):
    def test_graph_of_a_captured_step(self) -> None:
        self.assertExpectedInline(
            captured_graph(),
            """\
hisparse.resolve.default
  writes hot_owner
  writes lru_slots
  writes attention_indices
  writes valid_counts
  writes refill_host_rows
  writes refill_hot_rows
  writes refill_counts
  writes stats
hisparse.gather_compact.default
  writes hot_cache
mutates args_1
mutates args_2_hot_owner
mutates args_2_lru_slots
mutates args_2_stats
mutates args_3_attention_indices
mutates args_3_refill_host_rows
mutates args_3_refill_hot_rows
mutates args_3_valid_counts
mutates args_3_refill_counts""",
        )
