"""A vLLM platform that runs HiSparse off CUDA.

Core asks ``current_platform.is_cuda()`` while it validates a configuration, and refuses HiSparse elsewhere. It does so
*between* two hooks that every platform has. :class:`HiSparsePlatform` therefore puts the HiSparse settings aside in the
first hook and gives them back in the second, after the rules of :mod:`hisparse_vllm.support` have passed. Nothing of
Core changes, and without HiSparse settings the platform behaves as the one it extends.
"""

from __future__ import annotations

import contextlib
from typing import Any

from vllm.platforms.cpu import CpuPlatform

from hisparse_vllm import support

_ASIDE = "_hisparse_aside"
_EXTENDED = "_hisparse_extended"


def uses_sparse_attention(config: Any) -> bool:
    """Whether the model picks its KV rows with an indexer (DeepSeek Sparse Attention)."""
    model = config.model_config
    return model is not None and hasattr(model.hf_config, "index_topk")


class HiSparsePlatform:
    """Mix-in for a vLLM platform class: allows HiSparse, and refuses by name what it cannot do."""

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        super().apply_config_platform_defaults(vllm_config)  # type: ignore[misc]
        put_aside(vllm_config)

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        super().check_and_update_config(vllm_config)  # type: ignore[misc]
        give_back(vllm_config)


def extend(platform: type) -> None:
    """Give a platform class that is not ours, vllm-ascend's, the hooks of :class:`HiSparsePlatform`."""
    if hasattr(platform, _EXTENDED):
        return
    for name, ours in (
        ("apply_config_platform_defaults", put_aside),
        ("check_and_update_config", give_back),
    ):
        theirs = getattr(platform, name)

        def hook(cls: type, vllm_config: Any, theirs: Any = theirs, ours: Any = ours) -> None:
            theirs(vllm_config)
            ours(vllm_config)

        setattr(platform, name, classmethod(hook))
    setattr(platform, _EXTENDED, True)


def put_aside(vllm_config: Any) -> None:
    """Take the HiSparse settings out of a configuration, before Core's CUDA gate."""
    attention = vllm_config.attention_config
    if attention.hisparse_config is None and "HiSparseConnector" not in support.connectors(
        vllm_config
    ):
        return
    setattr(vllm_config, _ASIDE, (attention.hisparse_config, vllm_config.kv_transfer_config))
    attention.hisparse_config = None
    vllm_config.kv_transfer_config = None


def give_back(vllm_config: Any) -> None:
    """Put the HiSparse settings back and check them against the rules."""
    if not hasattr(vllm_config, _ASIDE):
        return
    from vllm.config.attention import HiSparseConfig

    hisparse, transfer = getattr(vllm_config, _ASIDE)
    delattr(vllm_config, _ASIDE)
    vllm_config.attention_config.hisparse_config = hisparse or HiSparseConfig()
    vllm_config.kv_transfer_config = transfer
    support.check(vllm_config)


class HiSparseCpuPlatform(HiSparsePlatform, CpuPlatform):
    """vLLM's CPU platform with sparse attention, HiSparse on or off: what simulators and CI run.

    vLLM's own CPU platform turns prefix caching and chunked prefill off for MLA and fixes the block size, because of
    its dense MLA kernel. Sparse attention here has no such limits.
    """

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        if not uses_sparse_attention(vllm_config):
            super().check_and_update_config(vllm_config)
            return
        cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
        kept = (
            (cache, "block_size"),
            (cache, "enable_prefix_caching"),
            (scheduler, "enable_chunked_prefill"),
            (scheduler, "max_num_batched_tokens"),
        )
        asked = [(owner, name, getattr(owner, name)) for owner, name in kept]
        super().check_and_update_config(vllm_config)
        for owner, name, value in asked:
            if name != "block_size" or cache.user_specified_block_size:
                setattr(owner, name, value)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        if attn_selector_config.use_sparse:
            return "hisparse_vllm.attention.backend.SparseMLABackend"
        return super().get_attn_backend_cls(selected_backend, attn_selector_config, num_heads)

    @classmethod
    def import_kernels(cls) -> None:
        # A vLLM without CPU kernels is enough for scheduling, though not for a model.
        with contextlib.suppress(ImportError):
            super().import_kernels()
