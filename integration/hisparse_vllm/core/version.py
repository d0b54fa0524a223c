"""Which vLLM Core is installed, told by what it has and not by its number: builds between releases have both."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True)
class Core:
    """The differences between releases of vLLM Core that this package has to know."""

    version: str
    planning: str
    """Module that plans KV cache groups: ``kv_cache_utils`` in 0.32, ``kv_cache_planning`` from 0.33 on."""
    batch_block_table: bool
    """0.32: a handle gathers its resident rows by batch row. Later: conversions take state rows themselves."""
    draft_finalizer: bool
    """From 0.33 on: the connector's last call of a step comes after the drafter (``finalize_step``)."""
    grouped_invalidation: bool
    """Written slots of all index groups are invalidated in one call."""


@cache
def core() -> Core:
    """What the installed vLLM has. Raises ``ImportError`` without vLLM, ``RuntimeError`` without HiSparse."""
    import vllm

    from hisparse_vllm.core import ops

    try:
        runtime = importlib.import_module("vllm.v1.hisparse.runtime")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"hisparse_vllm: vLLM must have HiSparse (0.32.0 or later), got {vllm.__version__}"
        ) from error
    connector = importlib.import_module("vllm.v1.worker.gpu.kv_connector")
    return Core(
        version=vllm.__version__,
        planning=_first_with(
            "get_kv_cache_groups", "vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils"
        ),
        batch_block_table=hasattr(runtime.HiSparseCacheHandle, "batch_block_table"),
        draft_finalizer=hasattr(connector.ActiveKVConnector, "finalize_step"),
        grouped_invalidation=ops.has_grouped_invalidation(),
    )


def planning() -> Any:
    """The module with ``get_kv_cache_groups`` and ``get_kv_cache_config_from_groups``."""
    return importlib.import_module(core().planning)


def resident_rows(handle: Any) -> torch.Tensor:
    """Resident block table of a cache handle by batch row, as ``[requests, pages]``."""
    if core().batch_block_table:
        return handle.batch_block_table()
    states = handle.runtime.request_state_indices.clamp(min=0)
    return handle.block_table.index_select(0, states)


def _first_with(name: str, *modules: str) -> str:
    for module in modules:
        try:
            if hasattr(importlib.import_module(module), name):
                return module
        except ModuleNotFoundError:
            continue
    raise RuntimeError(f"hisparse_vllm: vLLM must have {name} in one of {', '.join(modules)}")
