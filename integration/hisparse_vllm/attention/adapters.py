"""What of vLLM's model code is replaced on the CPU so that a model with an indexer runs, each with its reason."""

from __future__ import annotations

from typing import Any

from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.sparse_attn_indexer import SparseAttnIndexer

from hisparse_vllm.attention import indexer
from hisparse_vllm.core import device
from hisparse_vllm.core.device import Adapter

DEEPSEEK = "vllm.model_executor.models.deepseek_v2"


def _indexer_backend(cache: Any) -> type[indexer.IndexerBackend]:
    return indexer.IndexerBackend


ADAPTERS = (
    Adapter(
        DEEPSEEK,
        "per_token_group_quant_fp8",
        indexer.per_token_group_quant_fp8,
        "the queries of the indexer are quantised by a Triton kernel for devices",
    ),
    Adapter(
        DEEPSEEK,
        "DeepseekV32IndexerCache.get_attn_backend",
        _indexer_backend,
        "the indexer's metadata are built for DeepGEMM",
    ),
)


def install() -> None:
    """Put the adapters in place and register the indexer as vLLM's own extension point asks for."""
    device.install(ADAPTERS)
    if SparseAttnIndexer.__name__ not in op_registry_oot:
        SparseAttnIndexer.register_oot(indexer.CpuSparseAttnIndexer)
