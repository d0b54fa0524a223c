"""Sparse MLA as a vLLM attention backend on the CPU, with HiSparse around it.

With HiSparse on, decode rows go through Core's index group (resolve once, refill every layer), prefill rows through
resident pages or the host staging plan; with it off, through the block table. The arithmetic is the same reference in
every case, so what differs between ON and OFF is where rows were read from.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionBackend, CommonAttentionMetadata, MultipleOf
from vllm.v1.attention.backends.mla.index_group import HiSparseMLAIndexGroup
from vllm.v1.hisparse.runtime import build_hisparse_prefill_staging_plan

import hisparse_ops
from hisparse_vllm.attention import observer, reference
from hisparse_vllm.attention.selection import Selection, select
from hisparse_vllm.core import version
from hisparse_vllm.prefill import PrefillBridge

_staged = PrefillBridge()
"""One for all layers of a worker: layers run one after the other, so its buffers serve every index group."""


@dataclass
class Prefill:
    """What Core's index group needs of the prefills of a batch."""

    host_staging_plan: Any


class MetadataBuilder(SparseMLACommonMetadataBuilder[SparseMLACommonMetadata]):
    """Core's common metadata, and the staging plan of the prefills that read from the host."""

    metadata_cls = SparseMLACommonMetadata

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> SparseMLACommonMetadata:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        hisparse = self.vllm_config.attention_config.hisparse_config is not None
        if hisparse and metadata.num_prefills and metadata.prefill is None:
            metadata.prefill = Prefill(self._staging_plan(metadata, common_attn_metadata))
        return metadata

    def _staging_plan(self, metadata: Any, common: CommonAttentionMetadata) -> Any:
        prefills = slice(metadata.num_decodes, common.num_reqs)
        lengths, size = common.seq_lens[prefills], metadata.block_size
        capacity = int(((lengths.long() + size - 1) // size).sum())
        return build_hisparse_prefill_staging_plan(
            metadata.block_table[prefills], lengths, size, capacity
        )


class SparseMLABackend(AttentionBackend):
    """Chosen by :class:`hisparse_vllm.platform.HiSparseCpuPlatform` for models with an indexer."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16, torch.float16, torch.float32]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM's name for a backend from outside

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[SparseMLAImpl]:
        return SparseMLAImpl

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True


class SparseMLAImpl(SparseMLACommonImpl[SparseMLACommonMetadata]):
    """Writes rows where Core says and attends to those the indexer picked."""

    can_return_lse_for_decode = True
    supports_dense_mha_prefill = False
    supports_quant_query_input = False

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
    ) -> None:
        """One row a token to its slot; -1 writes nothing. ``kv_cache`` may be Core's ``write_target()``."""
        if kv_cache.numel() == 0:
            return
        cache, slots = paged(kv_cache), slot_mapping.flatten()
        latent, rope = kv_c_normed[: len(slots)], k_pe[: len(slots)].flatten(1)
        if is_c8(cache):
            hisparse_ops.quantize_scatter_c8(
                latent, rope, slots, cache, layout="core", scale_rule="pow2"
            )
        else:
            width = latent.shape[-1]
            hisparse_ops.scatter_rows(
                [latent.to(cache.dtype), rope.to(cache.dtype)],
                slots,
                [cache[..., :width], cache[..., width:]],
            )
        if observer.observing() is not None:
            self._show_written(cache, slots)

    def forward_mqa(
        self,
        q: Tensor | tuple[Tensor, Tensor],
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[Tensor, Tensor]:
        query = torch.cat(q, -1) if isinstance(q, tuple) else q
        positions = self.topk_indices_buffer[: len(query)]
        if not isinstance(self.index_group, HiSparseMLAIndexGroup):
            requests = attn_metadata.req_id_per_token[: len(query)]
            cache = paged(kv_c_and_k_pe_cache)
            picked = select(positions, attn_metadata.block_table, requests, cache.shape[1])
            return self._attend(query, cache, picked, positions, requests, attn_metadata, "device")
        decodes = attn_metadata.num_decode_tokens
        parts = []
        if decodes:
            parts.append(self._decode(query[:decodes], positions[:decodes], attn_metadata))
        if decodes < len(query):
            parts.append(self._prefill(query[decodes:], positions[decodes:], attn_metadata))
        if not parts:  # a batch without a token
            return query.new_zeros(0, self.num_heads, self.kv_lora_rank), torch.empty(
                0, self.num_heads
            )
        out, lse = (torch.cat(x) for x in zip(*parts, strict=True))
        return out, lse

    def _decode(self, query: Tensor, positions: Tensor, metadata: Any) -> tuple[Tensor, Tensor]:
        """Through the hot buffer: Core resolves once a group and refills this layer's rows."""
        count = len(query)
        requests = metadata.req_id_per_token[:count]
        view = SimpleNamespace(
            req_id_per_token=requests,
            block_table=metadata.block_table,
            block_size=metadata.block_size,
            query_start_loc=metadata.query_start_loc[: metadata.num_decodes + 1],
        )
        indices, counts = self.index_group.convert_logical_to_physical_topk(
            self.index_group_index,
            positions,
            view,
            block_stride_rows=None,
            return_valid_counts=True,
        )
        cache = self.index_group.physical_kv_cache(self.index_group_index)
        picked = Selection(indices[:count], counts[:count])
        return self._attend(query, cache, picked, positions, requests, metadata, "hot")

    def _prefill(self, query: Tensor, positions: Tensor, metadata: Any) -> tuple[Tensor, Tensor]:
        """From resident pages where the whole batch has them, else from rows staged for this layer."""
        first = metadata.num_decode_tokens
        requests = metadata.req_id_per_token[first : first + len(query)]
        handle = self.index_group.cache(self.index_group_index)
        if handle.all_context_pages_resident:
            cache, tables, rows, how = (
                handle.view.cache,
                version.resident_rows(handle),
                requests,
                "resident",
            )
        else:
            cache, tables, rows = _staged.stage(
                self.index_group, self.index_group_index, metadata, self._metadata_of
            )
            rows, how = rows[: len(query)], "staged"
        picked = select(positions, tables, rows, cache.shape[1])
        return self._attend(query, cache, picked, positions, requests, metadata, how)

    def _metadata_of(self, index: int) -> Any:
        """Metadata of another layer of the index group in this forward pass."""
        context = get_forward_context()
        for name, layer in context.no_compile_layers.items():
            impl = getattr(layer, "impl", None)
            if (
                isinstance(impl, SparseMLAImpl)
                and impl.index_group is self.index_group
                and impl.index_group_index == index
            ):
                return context.attn_metadata.get(name)
        return None

    def _attend(
        self,
        query: Tensor,
        cache: Tensor,
        picked: Selection,
        positions: Tensor,
        requests: Tensor,
        metadata: Any,
        how: str,
    ) -> tuple[Tensor, Tensor]:
        if observer.observing() is not None:
            self._show_read(cache, picked, positions, requests, metadata, how)
        return reference.sparse_mla(
            query,
            cache,
            picked.indices,
            picked.counts,
            scale=self.scale,
            latent=self.kv_lora_rank,
        )

    # For tests only: which rows these are, by the request's own slots on the host.

    def _layer_name(self) -> str:
        layers = get_forward_context().no_compile_layers
        return next(name for name, layer in layers.items() if getattr(layer, "impl", None) is self)

    def _show_written(self, cache: Tensor, slots: Tensor) -> None:
        name = self._layer_name()
        own = get_forward_context().slot_mapping[name].flatten()[: len(slots)]
        kept = (slots >= 0) & (own >= 0)
        observer.observing().wrote(name, own[kept], rows_of(cache, slots[kept]))

    def _show_read(
        self,
        cache: Tensor,
        picked: Selection,
        positions: Tensor,
        requests: Tensor,
        metadata: Any,
        how: str,
    ) -> None:
        wanted = positions >= 0
        if not torch.equal(wanted.sum(1), picked.counts.long()):
            raise AssertionError(
                f"{how} read of {self._layer_name()}: {picked.counts.tolist()} rows"
                f" for {wanted.sum(1).tolist()} positions"
            )
        pages = torch.where(wanted, positions, 0).long() // metadata.block_size
        blocks = metadata.block_table.long()[requests.long()[:, None].expand_as(pages), pages]
        slots = blocks * metadata.block_size + positions.long() % metadata.block_size
        valid = torch.arange(positions.shape[1]) < picked.counts[:, None]
        rows = rows_of(cache, picked.indices[valid])
        observer.observing().read(self._layer_name(), slots[wanted], rows, how)


def paged(kv_cache: Tensor) -> Tensor:
    """``[blocks, block_size, width]`` of a layer's cache, which vLLM may hand over with a head axis."""
    return kv_cache.squeeze(1) if kv_cache.dim() == 4 else kv_cache


def is_c8(cache: Tensor) -> bool:
    return cache.dtype in (torch.uint8, torch.int8) and cache.shape[-1] == reference.C8_ROW_BYTES


def rows_of(cache: Tensor, slots: Tensor) -> Tensor:
    size = cache.shape[1]
    return cache[slots.long() // size, slots.long() % size]
