"""What HiSparse cannot do yet, as one table: refused by name before anything is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_HOT_SIZE = 32768  # LRU entries are int16

CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_ds_mla")

# Connectors that move KV inside this engine. Every other one is a transport to another engine.
LOCAL_CONNECTORS = ("HiSparseConnector", "OffloadingConnector", "SimpleCPUOffloadConnector")


@dataclass(frozen=True)
class Rule:
    """``argument`` must ``rule``; ``got`` returns what was found instead, or None where the rule is kept."""

    argument: str
    rule: str
    got: Callable[[Any], object | None]


def check(config: Any) -> None:
    """Refuse a ``VllmConfig`` with HiSparse on that breaks a rule.

    Raises
    ------
    ValueError
        ``HiSparse: <argument> must <rule>, got <value>``, for the first rule broken.
    """
    for rule in RULES:
        got = rule.got(config)
        if got is not None:
            raise ValueError(f"HiSparse: {rule.argument} must {rule.rule}, got {got}")


def queries_per_step(config: Any) -> int:
    """Query rows of a request in a decode step: itself and its draft tokens."""
    speculative = config.speculative_config
    return 1 + (getattr(speculative, "num_speculative_tokens", 0) or 0 if speculative else 0)


def _top_k(config: Any) -> int | None:
    model = config.model_config
    return None if model is None else getattr(model.hf_config, "index_topk", None)


def _not_sparse(config: Any) -> object | None:
    model = config.model_config
    if model is None or _top_k(config) is not None:
        return None
    return ", ".join(model.hf_config.architectures or ()) or type(model.hf_config).__name__


def _more_than_one(name: str) -> Callable[[Any], object | None]:
    def got(config: Any) -> object | None:
        size = getattr(config.parallel_config, name, 1)
        return size if size > 1 else None

    return got


def _cache_dtype(*starts: str) -> Callable[[Any], object | None]:
    def got(config: Any) -> object | None:
        dtype = str(config.cache_config.cache_dtype).lower()
        return dtype if dtype.startswith(starts) else None

    return got


def _other_cache_dtype(config: Any) -> object | None:
    dtype = str(config.cache_config.cache_dtype).lower()
    return None if dtype in CACHE_DTYPES else dtype


def connectors(config: Any) -> Iterator[str]:
    """Names of the KV connectors, those inside a MultiConnector one by one."""
    transfer = config.kv_transfer_config
    if transfer is None or transfer.kv_connector is None:
        return
    if transfer.kv_connector == "MultiConnector":
        for inner in transfer.kv_connector_extra_config.get("connectors", ()):
            yield inner["kv_connector"]
    else:
        yield transfer.kv_connector


def _transport(config: Any) -> object | None:
    foreign = [name for name in connectors(config) if name not in LOCAL_CONNECTORS]
    return ", ".join(foreign) or None


def _one_sided(config: Any) -> object | None:
    transfer = config.kv_transfer_config
    role = None if transfer is None else transfer.kv_role
    return role if role in ("kv_producer", "kv_consumer") else None


def _no_connector(config: Any) -> object | None:
    names = tuple(connectors(config))
    return None if "HiSparseConnector" in names else (", ".join(names) or "no connector")


def _runner_v1(config: Any) -> object | None:
    value = os.environ.get("VLLM_USE_V2_MODEL_RUNNER")
    return value if value is not None and value.lower() in ("0", "false") else None


def _sparse_kv_offload(config: Any) -> object | None:
    extra = config.additional_config
    value = extra.get("sparse_kv_offload") if isinstance(extra, dict) else None
    return value or None


def _full_graphs(config: Any) -> object | None:
    mode = getattr(config.compilation_config, "cudagraph_mode", None)
    name = getattr(mode, "name", mode)
    return name if name == "FULL" else None


def _hot_size(config: Any) -> int | None:
    hisparse = config.attention_config.hisparse_config
    return None if hisparse is None else hisparse.device_buffer_size


def _below_union(config: Any) -> object | None:
    top_k, size = _top_k(config), _hot_size(config)
    if top_k is None or size is None:
        return None
    union = queries_per_step(config) * top_k
    return f"{size} (below {union})" if size < union else None


def _above_int16(config: Any) -> object | None:
    top_k, size = _top_k(config), _hot_size(config)
    if size is None and top_k is not None:  # what Core takes without a setting
        size = (queries_per_step(config) + 1) * top_k
    return size if size is not None and size > MAX_HOT_SIZE else None


def _partial_reservation(config: Any) -> object | None:
    return None if config.scheduler_config.scheduler_reserve_full_isl else False


def _no_hybrid_manager(config: Any) -> object | None:
    return config.scheduler_config.disable_hybrid_kv_cache_manager or None


RULES = (
    Rule("model", "use DeepSeek Sparse Attention (index_topk in its config)", _not_sparse),
    Rule("kv_connector", "be HiSparseConnector, or a MultiConnector that has one", _no_connector),
    Rule("kv_connector", f"be one of {', '.join(LOCAL_CONNECTORS)} (no P/D transport)", _transport),
    Rule("kv_role", "be kv_both (no P/D transport)", _one_sided),
    Rule("VLLM_USE_V2_MODEL_RUNNER", "be 1 or unset", _runner_v1),
    Rule("kv_cache_dtype", "not be INT4", _cache_dtype("int4")),
    Rule("kv_cache_dtype", "not be TurboQuant", _cache_dtype("turboquant", "tq")),
    Rule("kv_cache_dtype", f"be one of {', '.join(CACHE_DTYPES)}", _other_cache_dtype),
    Rule("pipeline_parallel_size", "be 1", _more_than_one("pipeline_parallel_size")),
    Rule("prefill_context_parallel_size", "be 1", _more_than_one("prefill_context_parallel_size")),
    Rule("decode_context_parallel_size", "be 1", _more_than_one("decode_context_parallel_size")),
    Rule("sparse_kv_offload", "be off: HiSparse replaces it", _sparse_kv_offload),
    Rule(
        "cudagraph_mode", "be NONE, PIECEWISE, FULL_DECODE_ONLY or FULL_AND_PIECEWISE", _full_graphs
    ),
    Rule(
        "device_buffer_size",
        "hold the top-k of every query row of a request in a step",
        _below_union,
    ),
    Rule("device_buffer_size", f"be at most {MAX_HOT_SIZE} slots", _above_int16),
    Rule("scheduler_reserve_full_isl", "be True", _partial_reservation),
    Rule("disable_hybrid_kv_cache_manager", "be False", _no_hybrid_manager),
)
