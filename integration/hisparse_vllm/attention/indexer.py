"""The lightning indexer on the CPU: its key cache, scores and top-k in plain torch.

vLLM's ``Indexer`` stays as it is and calls this in place of its CUDA op. Keys are cached as C8 (128 E4M3 values and one
FP32 scale, 132 bytes) or BF16, by ``--attention-config.indexer_kv_dtype`` and whatever the main cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context
from vllm.logger import init_logger
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
    MultipleOf,
)

import hisparse_ops
from hisparse_vllm.attention import observer, short_prefill

logger = init_logger(__name__)

_FP8_MAX = 448.0


@dataclass
class IndexerMetadata:
    """What the indexer needs of a step."""

    num_actual_tokens: int
    num_reqs: int
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    block_size: int


class IndexerMetadataBuilder(AttentionMetadataBuilder[IndexerMetadata]):
    """Takes the common metadata as they are."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        # Queries of one verification are decodes here as in the main attention.
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=True)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> IndexerMetadata:
        common = common_attn_metadata
        return IndexerMetadata(
            common.num_actual_tokens,
            common.num_reqs,
            common.query_start_loc,
            common.seq_lens,
            common.block_table_tensor,
            self.kv_cache_spec.block_size,
        )


class IndexerBackend(AttentionBackend):
    """The indexer's key cache."""

    @staticmethod
    def get_name() -> str:
        return "HISPARSE_INDEXER"

    @staticmethod
    def get_builder_cls() -> type[IndexerMetadataBuilder]:
        return IndexerMetadataBuilder

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError("the indexer's cache has no attention of its own")

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes and a power-of-two FP32 scale for each row of ``x``."""
    amax = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-4 * _FP8_MAX)
    scale = torch.exp2(torch.ceil(torch.log2(amax / _FP8_MAX)))
    return (x.float() / scale).clamp(-_FP8_MAX, _FP8_MAX).to(torch.float8_e4m3fn), scale


def per_token_group_quant_fp8(
    x: Tensor, group_size: int, *args: Any, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """vLLM's function of this name, for groups that are whole rows: its Triton kernel needs a device."""
    assert x.shape[-1] == group_size, (x.shape, group_size)
    return quantize_rows(x)


class CpuSparseAttnIndexer(SparseAttnIndexer):
    """vLLM's ``sparse_attn_indexer`` op on the CPU."""

    def __init__(self, k_cache: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(k_cache, *args, **kwargs)
        from vllm.config import get_current_vllm_config

        config = get_current_vllm_config()
        if config.attention_config.indexer_kv_dtype == "bf16":
            k_cache.head_dim, k_cache.dtype = self.head_dim, torch.bfloat16
        self.bypass = short_prefill.layer_of(
            config, self.topk_tokens, c8_indexer=k_cache.dtype != torch.bfloat16
        )
        if self.bypass.enabled:
            device = self.topk_indices_buffer.device
            size = short_prefill.prepare(device, self.topk_tokens)
            logger.info_once(
                "HiSparse: short prefills skip the indexer's scoring; the index table on %s takes %d bytes.",
                str(device),
                size,
            )

    def forward_cpu(
        self, hidden_states: Tensor, q_quant: Any, k: Tensor, weights: Tensor
    ) -> Tensor:
        return self.forward_native(hidden_states, q_quant, k, weights)

    def forward_native(
        self, hidden_states: Tensor, q_quant: Any, k: Tensor, weights: Tensor
    ) -> Tensor:
        topk = self.topk_indices_buffer[: len(hidden_states)]
        topk.fill_(-1)
        context = get_forward_context()
        if context.attn_metadata is None:  # a profiling run
            return topk
        name = self.k_cache.prefix
        metadata = context.attn_metadata[name]
        count = metadata.num_actual_tokens
        slots = context.slot_mapping[name][:count]
        rows = self._key_rows(k[:count])
        hisparse_ops.scatter_rows([rows], slots, [self.k_cache.kv_cache])
        observer.wrote_keys(name, slots, rows)
        everything = short_prefill.indices(self.bypass, self._step(metadata, topk))
        if everything is not None:
            topk.copy_(everything)
            return topk
        for request in range(metadata.num_reqs):
            self._select(request, metadata, q_quant.float(), weights.float(), topk)
        return topk

    @staticmethod
    def _step(metadata: IndexerMetadata, topk: Tensor) -> short_prefill.Step:
        return short_prefill.Step(
            num_requests=metadata.num_reqs,
            num_tokens=metadata.num_actual_tokens,
            num_rows=len(topk),
            block_size=metadata.block_size,
            seq_lens=metadata.seq_lens[: metadata.num_reqs],
            device=topk.device,
        )

    def _key_rows(self, k: Tensor) -> Tensor:
        if self.k_cache.dtype == torch.bfloat16:
            return k.to(torch.bfloat16)
        codes, scale = quantize_rows(k)
        return torch.cat((codes.view(torch.uint8), scale.view(torch.uint8)), -1)

    def _keys(self, rows: Tensor) -> Tensor:
        if rows.dtype == torch.bfloat16:
            return rows.float()
        codes = rows[:, : self.head_dim].contiguous().view(torch.float8_e4m3fn).float()
        return codes * rows[:, self.head_dim :].contiguous().view(torch.float32)

    def _select(
        self, request: int, metadata: IndexerMetadata, query: Tensor, weights: Tensor, topk: Tensor
    ) -> None:
        """Top-k positions of the request's tokens, ascending: each sees itself and what is before it."""
        start, end = metadata.query_start_loc[request : request + 2].tolist()
        length = int(metadata.seq_lens[request])
        if end <= start:
            return
        positions = torch.arange(length)
        blocks = metadata.block_table[request].long()[positions // metadata.block_size]
        slots = blocks * metadata.block_size + positions % metadata.block_size
        size = self.k_cache.kv_cache.shape[1]
        rows = self.k_cache.kv_cache[slots // size, slots % size]
        observer.read_keys(self.k_cache.prefix, slots, rows)
        keys = self._keys(rows)
        logits = torch.einsum("thd,kd->thk", query[start:end], keys).relu_()
        scores = torch.einsum("thk,th->tk", logits, weights[start:end])
        last = torch.arange(length - (end - start), length)
        scores.masked_fill_(positions[None, :] > last[:, None], float("-inf"))
        best = scores.topk(min(length, topk.shape[1]), dim=1)
        chosen = torch.where(best.values.isneginf(), length, best.indices).sort(1).values
        chosen[chosen == length] = -1
        topk[start:end, : chosen.shape[1]] = chosen.int()
