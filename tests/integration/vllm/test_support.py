"""One test for each rule of the support table, on stand-in configurations. Needs no vLLM."""

from __future__ import annotations

from types import SimpleNamespace as Namespace
from typing import Any

import pytest

from hisparse_vllm import support


def config(**changes: Any) -> Any:
    """A configuration that keeps every rule, with the changes ``path__name=value``."""
    made = Namespace(
        model_config=Namespace(
            hf_config=Namespace(index_topk=2048, architectures=["GlmMoeDsaForCausalLM"])
        ),
        attention_config=Namespace(hisparse_config=Namespace(device_buffer_size=10240)),
        cache_config=Namespace(cache_dtype="fp8_ds_mla"),
        compilation_config=Namespace(cudagraph_mode=Namespace(name="FULL_AND_PIECEWISE")),
        kv_transfer_config=Namespace(
            kv_connector="HiSparseConnector", kv_role="kv_both", kv_connector_extra_config={}
        ),
        parallel_config=Namespace(
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            decode_context_parallel_size=1,
        ),
        scheduler_config=Namespace(
            scheduler_reserve_full_isl=True, disable_hybrid_kv_cache_manager=False
        ),
        speculative_config=Namespace(num_speculative_tokens=3),
        additional_config={},
    )
    for path, value in changes.items():
        *owners, name = path.split("__")
        owner = made
        for step in owners:
            owner = getattr(owner, step)
        setattr(owner, name, value)
    return made


def multi(*names: str) -> Any:
    inner = [{"kv_connector": name} for name in names]
    return Namespace(
        kv_connector="MultiConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"connectors": inner},
    )


BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"model_config__hf_config": Namespace(architectures=["LlamaForCausalLM"])},
        "model must use DeepSeek Sparse Attention (index_topk in its config), got LlamaForCausalLM",
    ),
    (
        {"kv_transfer_config": None},
        "kv_connector must be HiSparseConnector, or a MultiConnector that has one, got no connector",
    ),
    (
        {"kv_transfer_config": multi("HiSparseConnector", "NixlConnector")},
        "kv_connector must be one of HiSparseConnector, OffloadingConnector,"
        " SimpleCPUOffloadConnector (no P/D transport), got NixlConnector",
    ),
    (
        {"kv_transfer_config__kv_role": "kv_producer"},
        "kv_role must be kv_both (no P/D transport), got kv_producer",
    ),
    (
        {"cache_config__cache_dtype": "int4_per_token_head"},
        "kv_cache_dtype must not be INT4, got int4_per_token_head",
    ),
    (
        {"cache_config__cache_dtype": "turboquant_k8v4"},
        "kv_cache_dtype must not be TurboQuant, got turboquant_k8v4",
    ),
    (
        {"cache_config__cache_dtype": "nvfp4_ds_mla"},
        "kv_cache_dtype must be one of auto, bfloat16, float16, fp8, fp8_e4m3, fp8_ds_mla,"
        " got nvfp4_ds_mla",
    ),
    (
        {"parallel_config__pipeline_parallel_size": 2},
        "pipeline_parallel_size must be 1, got 2",
    ),
    (
        {"parallel_config__prefill_context_parallel_size": 4},
        "prefill_context_parallel_size must be 1, got 4",
    ),
    (
        {"parallel_config__decode_context_parallel_size": 8},
        "decode_context_parallel_size must be 1, got 8",
    ),
    (
        {"additional_config": {"sparse_kv_offload": {"enabled": True}}},
        "sparse_kv_offload must be off: HiSparse replaces it, got {'enabled': True}",
    ),
    (
        {"compilation_config__cudagraph_mode": Namespace(name="FULL")},
        "cudagraph_mode must be NONE, PIECEWISE, FULL_DECODE_ONLY or FULL_AND_PIECEWISE, got FULL",
    ),
    (
        {"attention_config__hisparse_config__device_buffer_size": 8191},
        "device_buffer_size must hold the top-k of every query row of a request in a step,"
        " got 8191 (below 8192)",
    ),
    (
        {"attention_config__hisparse_config__device_buffer_size": 32769},
        "device_buffer_size must be at most 32768 slots, got 32769",
    ),
    (
        {
            "attention_config__hisparse_config__device_buffer_size": None,
            "speculative_config__num_speculative_tokens": 15,
        },
        "device_buffer_size must be at most 32768 slots, got 34816",
    ),
    (
        {"scheduler_config__scheduler_reserve_full_isl": False},
        "scheduler_reserve_full_isl must be True, got False",
    ),
    (
        {"scheduler_config__disable_hybrid_kv_cache_manager": True},
        "disable_hybrid_kv_cache_manager must be False, got True",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN, ids=[m.split(",")[0] for _, m in BROKEN])
def test_rule(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refused:
        support.check(config(**changes))
    assert str(refused.value) == f"HiSparse: {message}"


@pytest.mark.parametrize("value", ["0", "false"])
def test_runner_v1(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", value)
    with pytest.raises(
        ValueError, match=f"VLLM_USE_V2_MODEL_RUNNER must be 1 or unset, got {value}"
    ):
        support.check(config())


def test_every_rule_has_a_test() -> None:
    said = [f"{message} " for _, message in BROKEN]
    for rule in support.RULES:
        if rule.argument != "VLLM_USE_V2_MODEL_RUNNER":
            start = f"{rule.argument} must {rule.rule}, got "
            assert any(message.startswith(start) for message in said), start


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"speculative_config": None, "attention_config__hisparse_config__device_buffer_size": None},
        {"attention_config__hisparse_config__device_buffer_size": 8192},
        {"attention_config__hisparse_config__device_buffer_size": 32768},
        {"kv_transfer_config": multi("HiSparseConnector", "OffloadingConnector")},
        {"cache_config__cache_dtype": "auto"},
        {"additional_config": {"sparse_kv_offload": False}},
        {"compilation_config__cudagraph_mode": Namespace(name="NONE")},
    ],
    ids=str,
)
def test_supported(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    support.check(config(**changes))
