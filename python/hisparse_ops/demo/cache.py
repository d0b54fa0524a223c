"""The KV cache of the demo, twice: complete (HiSparse OFF), and host cache with hot buffers (HiSparse ON).

Three public extension points of transformers carry it: ``AttentionInterface.register`` (the attention function is
given the indexer's top-k), ``AttentionMaskInterface.register``, and ``Cache(layers=[...])``.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicIndexedLayer
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import hisparse_ops
from hisparse_ops._hot_buffer import Clock, Counters, IndexGroup, Tables
from hisparse_ops.demo.model import LATENT, ROPE, Prefilled

ATTENTION = "hisparse_demo"
"""Name under which transformers knows the attention function."""


class RowFormat(Protocol):
    """How a latent and its rope key become the bytes of one row, and back."""

    dtype: torch.dtype
    width: int
    """Elements of a row."""

    def write(
        self, latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, clock: Clock
    ) -> None:
        """Write ``[n, 512]`` and ``[n, 64]`` to rows ``slots`` of ``cache`` with the ops."""

    def encode(self, latent: Tensor, rope: Tensor) -> Tensor:
        """``[n, width]``: the same rows without a cache."""

    def read(self, cache: Tensor, rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        """Latent ``[..., 512]`` and rope ``[..., 64]`` of flat ``rows``; zeros where a row is -1."""


class PlainRows:
    """Latent and rope key side by side in the model's own dtype."""

    width = LATENT + ROPE

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, latent: Tensor, rope: Tensor) -> Tensor:
        return torch.cat((latent, rope), -1)

    def write(
        self, latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, clock: Clock
    ) -> None:
        columns = [cache[:, :LATENT], cache[:, LATENT:]]
        with clock.measure("scatter_rows"):
            hisparse_ops.scatter_rows([latent, rope], slots, columns)

    def read(self, cache: Tensor, rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        found = cache.index_select(0, rows.clamp_min(0).flatten()).view(*rows.shape, self.width)
        found.masked_fill_((rows < 0)[..., None], 0)
        return found[..., :LATENT], found[..., LATENT:]


class C8Rows:
    """656 bytes: the latent in FP8 with a scale per 128 elements, the rope key in BF16."""

    dtype = torch.uint8
    width = 656

    def encode(self, latent: Tensor, rope: Tensor) -> Tensor:
        rows = torch.empty(latent.shape[0], self.width, dtype=self.dtype)
        self.write(latent, rope, torch.arange(latent.shape[0]), rows, Clock())
        return rows

    def write(
        self, latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, clock: Clock
    ) -> None:
        with clock.measure("quantize_scatter_c8"):
            hisparse_ops.quantize_scatter_c8(
                latent, rope, slots, cache, layout="ascend", scale_rule="amax"
            )

    def read(self, cache: Tensor, rows: Tensor, clock: Clock) -> tuple[Tensor, Tensor]:
        latent = torch.empty(rows.numel(), LATENT, dtype=torch.bfloat16)
        rope = torch.empty(rows.numel(), ROPE, dtype=torch.bfloat16)
        with clock.measure("dequantize_c8"):
            hisparse_ops.dequantize_c8(cache, rows.flatten(), latent, rope, layout="ascend")
        return latent.view(*rows.shape, LATENT), rope.view(*rows.shape, ROPE)


class Store(Protocol):
    """Where the rows of all layers are."""

    def write(
        self, layer: int, request_ids: Tensor, positions: Tensor, latent: Tensor, rope: Tensor
    ) -> None:
        """Write the rows of ``n`` tokens: ``[n]``, ``[n]``, ``[n, 512]``, ``[n, 64]``."""

    def read(self, layer: int, topk: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of positions ``[requests * query_rows, top_k]`` (-1 unused): ``[.., top_k, 512]`` and ``[.., 64]``."""


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Every byte 0xFF: NaN in each format here, so that a row read before it was written shows."""
    element = torch.empty(0, dtype=dtype).element_size()
    filled = torch.full((*shape[:-1], shape[-1] * element), 0xFF, dtype=torch.uint8)
    return filled.view(dtype)


class CompleteStore:
    """HiSparse OFF: all rows of a request in one piece, addressed by position."""

    def __init__(self, form: RowFormat, layers: int, tables: Tables) -> None:
        self.form = form
        geometry = tables.geometry
        self.capacity = max(geometry.max_lengths)
        self.query_rows = geometry.query_rows
        self.rows = poisoned(
            layers, geometry.requests * self.capacity, form.width, dtype=form.dtype
        )
        self.selected: dict[int, Tensor] = {}
        """Top-k that each layer read last."""

    def write(
        self, layer: int, request_ids: Tensor, positions: Tensor, latent: Tensor, rope: Tensor
    ) -> None:
        rows = request_ids * self.capacity + positions
        self.rows[layer].index_copy_(0, rows, self.form.encode(latent, rope))

    def read(self, layer: int, topk: Tensor) -> tuple[Tensor, Tensor]:
        self.selected[layer] = topk
        request_ids = torch.arange(topk.shape[0])[:, None] // self.query_rows
        rows = torch.where(topk >= 0, request_ids * self.capacity + topk, -1)
        return self.form.read(self.rows[layer], rows, Clock())


class HotStore:
    """HiSparse ON: the host cache holds all rows; the device slab resident pages and the hot buffers.

    The pages of all layers lie in one slab, ``[num_blocks, layers, block_size, width]``: attention steps over the
    other layers' pages (``attention_block_stride``), and gather_compact must not touch them.
    """

    def __init__(self, form: RowFormat, leaders: list[int], tables: Tables) -> None:
        self.form, self.leaders, self.tables = form, leaders, tables
        self.block_size = tables.geometry.block_size
        layers = len(leaders)
        self.host = poisoned(layers, tables.host_rows, form.width, dtype=form.dtype)
        self.slab = poisoned(
            tables.num_blocks, layers, self.block_size, form.width, dtype=form.dtype
        )
        self.clock, self.counters = Clock(), Counters()
        self.groups = {
            leader: IndexGroup(tables, self.clock, self.counters) for leader in sorted(set(leaders))
        }
        self.selected: dict[int, Tensor] = {}
        self.stable_lengths = torch.zeros(tables.geometry.requests, dtype=torch.int32)
        self.refill_bytes = 0
        self.corrupt_next = False

    def admit(self) -> None:
        """Start serving the requests whose prompts were written: fresh state rows, resident pages in place."""
        for group in self.groups.values():
            group.reset()
        paged = self.host.view(self.host.shape[0], -1, self.block_size, self.form.width)
        for host_blocks, device_blocks in self.tables.resident_pages():
            self.slab[device_blocks] = paged[:, host_blocks].transpose(0, 1)

    def start_step(self, stable_lengths: Tensor) -> None:
        """From here on rows at or past ``stable_lengths`` are being rewritten."""
        self.stable_lengths = stable_lengths.to(torch.int32)
        self.counters.start_step()

    def write(
        self, layer: int, request_ids: Tensor, positions: Tensor, latent: Tensor, rope: Tensor
    ) -> None:
        slots = self.tables.host_row(request_ids, positions)
        self.form.write(latent, rope, slots, self.host[layer], self.clock)

    def read(self, layer: int, topk: Tensor) -> tuple[Tensor, Tensor]:
        self.selected[layer] = topk
        group = self.groups[self.leaders[layer]]
        if layer == self.leaders[layer]:
            group.resolve(topk, self.stable_lengths, self.slab.shape[1] * self.block_size)
        # A follower has the same slots and brings its own bytes.
        group.refill(self.host[layer], self.slab[:, layer])
        self.refill_bytes += int(group.refill_counts.sum()) * self.host[layer, 0].nbytes
        indices = group.attention_indices
        rows = torch.where(indices >= 0, indices + layer * self.block_size, -1)
        flat = self.slab.view(-1, self.form.width)
        if self.corrupt_next:
            self._corrupt(flat, rows)
        return self.form.read(flat, rows, self.clock)

    def _corrupt(self, flat: Tensor, rows: Tensor) -> None:
        """Give the best entry of the first query row the row of another token."""
        best, other = rows[0][rows[0] >= 0][:2].tolist()
        flat[best] = flat[other]
        self.corrupt_next = False


_current = threading.local()


class StoreLayer(DynamicIndexedLayer):
    """A transformers cache layer that keeps the indexer's keys and sends the latent rows to a store."""

    is_croppable = False
    indexer_keys: Any

    def __init__(self, store: Store, layer: int, pads: Tensor) -> None:
        super().__init__()
        self.store, self.layer, self.pads = store, layer, pads
        self.length = 0
        # Nothing to allocate: the store has its rows.
        self.is_initialized = True

    def load(self, prefilled: list[Prefilled]) -> None:
        """Take over the prompts, one of each request."""
        for request, rows in enumerate(prefilled):
            n = rows.latent.shape[0]
            request_ids = torch.full((n,), request)
            self.store.write(self.layer, request_ids, torch.arange(n), rows.latent, rows.rope)
            self.length = n + int(self.pads[request])
        keys = [rows.indexer_keys for rows in prefilled]
        if keys[0] is not None:
            padded = [F.pad(k, (0, 0, self.length - k.shape[0], 0)) for k in keys if k is not None]
            self.update_indexer(torch.stack(padded))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens. Returns them alone: the attention function asks the store for the rest."""
        requests, _, n, _ = key_states.shape
        positions = self.length + torch.arange(n) - self.pads[:, None]
        request_ids = torch.arange(requests)[:, None].expand(requests, n)
        self.store.write(
            self.layer,
            request_ids.flatten(),
            positions.flatten(),
            key_states[:, 0].flatten(0, 1),
            value_states[:, 0].flatten(0, 1),
        )
        self.length += n
        _current.layer = self
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Tokens written, padding included."""
        return self.length

    def rollback(self, tokens: int) -> None:
        """Forget the newest tokens; their rows stay until they are rewritten."""
        self.length -= tokens
        if self.is_indexer_initialized and tokens:
            self.indexer_keys = self.indexer_keys[:, :-tokens]


def make_cache(store: Store, pads: Tensor, prompts: list[list[Prefilled]]) -> Any:
    """A cache over ``store`` that holds ``prompts`` (``[request][layer]``), left-padded by ``pads``."""
    layers = [StoreLayer(store, i, pads) for i in range(len(prompts[0]))]
    for i, layer in enumerate(layers):
        layer.load([prompt[i] for prompt in prompts])
    return Cache(layers=layers)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    indices: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over the selected rows only, wherever the current cache has them.

    ``query`` ``[requests, heads, query_rows, dim]``, ``attention_mask`` ``[requests, 1, query_rows, tokens]`` bool,
    ``indices`` ``[requests, query_rows, top_k]``: columns of the mask, padding included.
    """
    layer: StoreLayer = _current.layer
    assert indices is not None and layer.layer == module.layer_idx
    requests, heads, query_rows, dim = query.shape
    columns = indices.long()
    valid = attention_mask[:, 0].gather(-1, columns)
    topk = torch.where(valid, columns - layer.pads[:, None, None], -1).to(torch.int32).flatten(0, 1)
    latent, rope = layer.store.read(layer.layer, topk)
    keys, values = module.expand_kv(latent[:, None].to(query.dtype), rope[:, None].to(query.dtype))
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2).reshape(requests * query_rows, heads, 1, dim),
        keys,
        values,
        attn_mask=valid.flatten(0, 1)[:, None, None],
        scale=scaling,
    )
    return out.view(requests, query_rows, heads, -1), None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
