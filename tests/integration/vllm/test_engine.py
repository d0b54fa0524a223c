"""vLLM's own V2 engine on the CPU with a tiny random model: HiSparse ON against OFF, every row read compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")

from hisparse_vllm.testing import tiny_configs, tiny_engine
from hisparse_vllm.testing.faults import FAULTS


def prompts(lengths: tuple[int, ...] = (150, 90, 120), seed: int = 1) -> dict[str, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"request-{i}": torch.randint(2, 500, (n,), generator=generator).tolist()
        for i, n in enumerate(lengths)
    }


SMALL_PAGES = {"block_size": 16, "max_num_batched_tokens": 64}
MTP = {"method": "mtp"}

# (model, engine arguments, device blocks: few enough to lose pages, enough not to preempt)
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "glm, bf16": ("glm_moe_dsa", {}, 110),
    "glm, c8": ("glm_moe_dsa", {"kv_cache_dtype": "fp8_ds_mla"}, 110),
}
MORE: dict[str, tuple[str, dict[str, Any], int]] = {
    "glm, fp32": ("glm_moe_dsa", {"dtype": "float32"}, 110),
    "glm, bf16 indexer": ("glm_moe_dsa", {"attention_config": {"indexer_kv_dtype": "bf16"}}, 110),
    "glm, c8, bf16 indexer": (
        "glm_moe_dsa",
        {"kv_cache_dtype": "fp8_ds_mla", "attention_config": {"indexer_kv_dtype": "bf16"}},
        110,
    ),
    "deepseek": ("deepseek_v32", {}, 180),
    "glm, mtp1": ("glm_moe_dsa", {"speculative_config": MTP | {"num_speculative_tokens": 1}}, 190),
    "glm, mtp2": ("glm_moe_dsa", {"speculative_config": MTP | {"num_speculative_tokens": 2}}, 210),
    "glm, mtp3": ("glm_moe_dsa", {"speculative_config": MTP | {"num_speculative_tokens": 3}}, 260),
}


def on_and_off(
    name: str, folder: Path, max_tokens: int = 16
) -> tuple[tiny_engine.Result, tiny_engine.Result]:
    kind, arguments, blocks = (CASES | MORE)[name]
    model = getattr(tiny_configs, kind)(folder)
    arguments = SMALL_PAGES | arguments
    on = tiny_engine.run(model, prompts(), max_tokens, device_blocks=blocks, **arguments)
    off = tiny_engine.run(
        model, prompts(), max_tokens, device_blocks=400, kv_transfer_config=None, **arguments
    )
    return on, off


def check_parity(name: str, folder: Path) -> None:
    on, off = on_and_off(name, folder)
    assert on.preemptions == off.preemptions == 0, "preemption recomputes in other batch shapes"
    for source in ("hot", "resident", "indexer"):
        assert on.rows[source] > 1000, on.rows
    assert on.hot_loads > 0 and on.hot_hits > 0, (on.hot_hits, on.hot_loads)
    assert off.rows["device"] > 1000 and off.hot_loads == 0
    assert on.tokens == off.tokens
    assert on.logprobs == off.logprobs  # bit for bit: the same rows in the same order


@pytest.mark.parametrize("name", CASES)
def test_on_and_off_give_the_same_tokens(name: str, tmp_path: Path) -> None:
    check_parity(name, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", MORE)
def test_more_models_and_formats(name: str, tmp_path: Path) -> None:
    check_parity(name, tmp_path)


@pytest.mark.nightly
def test_rows_are_right_under_preemption(tmp_path: Path) -> None:
    """Tokens may differ from OFF then (recomputed in other batch shapes); the rows read may not."""
    model = tiny_configs.glm_moe_dsa(tmp_path)
    on = tiny_engine.run(model, prompts(), 16, device_blocks=60, **SMALL_PAGES)
    assert on.preemptions > 0 and sum(on.rows.values()) > 100_000


@pytest.mark.nightly
def test_c8_is_within_the_tolerance_of_bf16(tmp_path: Path) -> None:
    """E4M3 rows carry 3 mantissa bits: log-probabilities of the first token move by no more than 0.05."""
    model = tiny_configs.glm_moe_dsa(tmp_path)
    bf16, c8 = (
        tiny_engine.run(model, prompts(), 1, device_blocks=110, kv_cache_dtype=kind, **SMALL_PAGES)
        for kind in ("auto", "fp8_ds_mla")
    )
    for request, logprobs in bf16.logprobs.items():
        assert logprobs[0] == pytest.approx(c8.logprobs[request][0], abs=0.05)


# Faults that show in what this engine reads; the core loop notices all of them.
IN_THE_ENGINE: dict[str, int] = {  # with how many device blocks
    "wrong row": 90,
    "resident table indexed by batch row": 90,
    "attention block stride ignored": 90,
    "mirror skipped": 90,
    "layer offset dropped": 90,
    "staging from the page before": 90,
    "rows ahead not patched": 90,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", IN_THE_ENGINE)
def test_a_fault_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_configs.glm_moe_dsa(tmp_path)
    FAULTS[name](monkeypatch.setattr)
    with pytest.raises(tiny_engine.WrongRow):
        tiny_engine.run(model, prompts(), 24, device_blocks=IN_THE_ENGINE[name], **SMALL_PAGES)
