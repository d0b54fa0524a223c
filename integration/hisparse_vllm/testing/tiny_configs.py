"""Configurations of tiny models with DeepSeek Sparse Attention, for engines without weights to download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOP_K = 64

_COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "q_lora_rank": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": TOP_K,
    "num_nextn_predict_layers": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "ep_size": 1,
}


def glm_moe_dsa(folder: Path, **changes: Any) -> Path:
    """Write the ``config.json`` of a GLM with an indexer in every other layer; returns its folder."""
    return _write(
        folder / "glm_moe_dsa",
        {
            "architectures": ["GlmMoeDsaForCausalLM"],
            "model_type": "glm_moe_dsa",
            "qk_nope_head_dim": 192,
            "v_head_dim": 256,
            "head_dim": 64,
            "index_topk_freq": 2,
            "index_skip_topk_offset": 1,
            "indexer_rope_interleave": True,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
        }
        | changes,
    )


def deepseek_v32(folder: Path, **changes: Any) -> Path:
    """Write the ``config.json`` of a DeepSeek-V3.2 with an indexer in every layer; returns its folder."""
    return _write(
        folder / "deepseek_v32",
        {
            "architectures": ["DeepseekV32ForCausalLM"],
            "model_type": "deepseek_v32",
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
            "rope_theta": 10000.0,
        }
        | changes,
    )


def _write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_COMMON | config, indent=1))
    return folder


def engine_config(model: Path, *, host_pool_gib: float = 0.05, **arguments: Any) -> Any:
    """The ``VllmConfig`` that vLLM makes of these engine arguments, HiSparse on.

    ``kv_transfer_config=None`` turns HiSparse off.
    """
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # as every entry point of vLLM does
    defaults: dict[str, Any] = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 128,
        "block_size": 64,
        "enable_prefix_caching": True,
        "async_scheduling": False,
        "disable_log_stats": True,
        "kv_transfer_config": KVTransferConfig(
            kv_connector="HiSparseConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"host_pool_gib": host_pool_gib},
        ),
    }
    return EngineArgs(**(defaults | arguments)).create_engine_config()
