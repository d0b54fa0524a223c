"""A decode step of one layer with all KV on the device (OFF), and with HiSparse (ON): what the ops add.

GLM-5.2 under TP8 with MTP3: 32 requests of 4 query rows, 8 heads a rank, latent 512 and rope 64 in BF16, top-k 2048,
hot 10240. Attention is the same torch code for both; it reads the rows that it is given indices for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import hisparse_ops
from benchmarks.cases.resolve import BLOCK_SIZE, TOP_K, step
from benchmarks.measure import Args, Contender

_RESOLVE = hisparse_ops.ops()["resolve"].call
_GATHER = hisparse_ops.ops()["gather_compact"].call

HEADS, LATENT, WIDTH = 8, 512, 576
REQUESTS, ROWS, HOT, CONTEXT = 32, 4, 10240, 32768


@dataclass
class Attention:
    """Sparse MLA of every query row over the rows of a cache that its indices name."""

    query: Tensor  # [rows, heads, width]
    gathered: Tensor  # [top_k, width]
    output: Tensor  # [rows, heads, latent]

    def __call__(self, cache: Tensor, indices: Tensor, counts: Tensor) -> None:
        flat = cache.view(-1, WIDTH)
        for row, count in enumerate(counts.tolist()):
            keys = self.gathered[:count]
            torch.index_select(flat, 0, indices[row, :count], out=keys)
            weights = (self.query[row] @ keys.T * WIDTH**-0.5).softmax(-1)
            torch.mm(weights, keys[:, :LATENT], out=self.output[row])


class DecodeStep:
    """One step at a rate of entries that the hot buffer holds."""

    def __init__(self, hit_rate: float) -> None:
        gen = torch.Generator().manual_seed(0)
        self.args = step(
            gen, requests=REQUESTS, rows=ROWS, hot_size=HOT, hit_rate=hit_rate, context=CONTEXT
        )
        self.host = torch.randn(self.args["host_rows"], WIDTH, generator=gen).bfloat16()
        self.hot = torch.empty(self.args["num_blocks"], BLOCK_SIZE, WIDTH, dtype=torch.bfloat16)
        self._fill()
        batch = REQUESTS * ROWS
        self.attention = Attention(
            torch.randn(batch, HEADS, WIDTH, generator=gen).bfloat16(),
            torch.empty(TOP_K, WIDTH, dtype=torch.bfloat16),
            torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16),
        )
        self.everything = _physical(self.args)
        self.counts = torch.full((batch,), TOP_K, dtype=torch.int32)
        self._state = {name: self.args[name].clone() for name in ("hot_owner", "lru_slots")}

    def _fill(self) -> None:
        """Puts every owned row into its slot."""
        owner = self.args["hot_owner"].long()
        slots = torch.arange(HOT).expand_as(owner)
        pages = self.args["hot_block_table"].long().gather(1, slots // BLOCK_SIZE)
        rows = pages * BLOCK_SIZE + slots % BLOCK_SIZE
        states = self.args["request_state_indices"].long()
        self.hot.view(-1, WIDTH)[rows.flatten()] = self.host[owner[states].flatten()]

    def off(self) -> None:
        self.attention(self.host, self.everything, self.counts)

    def on(self) -> None:
        args = self.args
        _RESOLVE(**args)
        _GATHER(
            self.host,
            self.hot,
            args["refill_host_rows"],
            args["refill_hot_rows"],
            args["refill_counts"],
        )
        self.attention(self.hot, args["attention_indices"], args["valid_counts"])

    def restore(self) -> None:
        for name, t in self._state.items():
            self.args[name].copy_(t)

    def is_exact(self) -> bool:
        """Whether ON and OFF give the same bits."""
        self.off()
        expected = self.attention.output.clone()
        self.restore()
        self.on()
        return torch.equal(self.attention.output, expected)

    def contenders(self) -> list[Contender]:
        return [Contender("OFF", self.off), Contender("ON", self.on, self.restore)]


def _physical(args: Args) -> Tensor:
    """Where OFF finds each entry: its page of the complete cache, which the source table names."""
    topk = args["topk_indices"].long()
    pages = args["source_block_table"].long().repeat_interleave(ROWS, 0)
    return (pages.gather(1, topk // BLOCK_SIZE) * BLOCK_SIZE + topk % BLOCK_SIZE).int()
