"""The full-visible bypass: the same picks as the indexer, and the indexer wherever a condition fails. Needs no vLLM,
but for the last test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hisparse_vllm.attention import reference, short_prefill
from hisparse_vllm.attention.short_prefill import Layer, Step

CPU = torch.device("cpu")
TOP_K = 64
LAYER = Layer(enabled=True, top_k=TOP_K)


def step(context: int, tokens: int, **changes: Any) -> Step:
    known = Step(
        num_requests=1,
        num_tokens=tokens,
        num_rows=tokens,
        block_size=128,
        seq_lens=torch.tensor([context + tokens]),
        device=CPU,
    )
    return replace(known, **changes)


@pytest.fixture(autouse=True)
def table() -> Iterator[torch.Tensor]:
    short_prefill.prepare(CPU, TOP_K)
    table = short_prefill._tables[CPU, TOP_K]
    before = table.clone()
    yield table
    assert torch.equal(table, before), "the shared table was written"
    short_prefill.drop()


@pytest.mark.parametrize(("context", "tokens"), [(0, 2), (0, 17), (5, 20), (0, 64), (31, 33)])
def test_same_set_as_an_indexer_and_same_attention(context: int, tokens: int) -> None:
    gen = torch.Generator().manual_seed(context)
    picked = short_prefill.indices(LAYER, step(context, tokens))
    assert picked is not None and picked.shape == (tokens, TOP_K)
    length = context + tokens
    scores = torch.randn(tokens, length, generator=gen)
    last = torch.arange(context, length)
    scores.masked_fill_(torch.arange(length) > last[:, None], float("-inf"))
    for row, seen, score in zip(picked, last.tolist(), scores, strict=True):
        best = score.topk(min(length, TOP_K))
        indexer = set(best.indices[best.values > float("-inf")].tolist())
        assert set(row[row >= 0].tolist()) == indexer == set(range(seen + 1))
    cache = torch.randn(1, length, 576, generator=gen)
    query = torch.randn(tokens, 2, 576, generator=gen)
    out, _ = reference.sparse_mla(query, cache, picked, (last + 1).int(), scale=0.04, latent=512)
    keys = cache[0].double()
    dense = query.double() @ keys.T * 0.04
    dense.masked_fill_(torch.arange(length) > last[:, None, None], float("-inf"))
    expected = torch.softmax(dense, -1) @ keys[:, :512]
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


def test_the_request_path_is_a_view(table: torch.Tensor) -> None:
    picked = short_prefill.indices(LAYER, step(3, 10))
    assert picked is not None
    assert picked.untyped_storage().data_ptr() == table.untyped_storage().data_ptr()


NOT_ADMITTED_LAYERS = {
    "turned on": {"enabled": False},
    "scores its own top-k": {"skips_top_k": True},
    "no layer of a drafter": {"is_draft": True},
    "no speculative decoding": {"speculative": True},
    "main cache is not C8": {"c8_main": True},
    "indexer cache is not C8": {"c8_indexer": True},
    "no context parallelism": {"context_parallel": True},
}
NOT_ADMITTED_STEPS = {
    "one sequence": {"num_requests": 2},
    "a prefill": {"num_tokens": 1, "num_rows": 1},
    "no padding": {"num_rows": 24},
    "pages of 128": {"block_size": 64},
    "length known on the host": {"seq_lens": None},
    "length covers the tokens": {"seq_lens": torch.tensor([9])},
    "all visible KV within top-k": {"seq_lens": torch.tensor([65])},
    "table on the device": {"device": torch.device("meta")},
}


def test_every_condition_has_a_test() -> None:
    assert set(NOT_ADMITTED_LAYERS) == set(short_prefill.LAYER_CONDITIONS)
    assert set(NOT_ADMITTED_STEPS) == set(short_prefill.STEP_CONDITIONS)


@pytest.mark.parametrize("name", NOT_ADMITTED_LAYERS)
def test_a_layer_that_is_not_proven_scores(name: str) -> None:
    layer = replace(LAYER, **NOT_ADMITTED_LAYERS[name])
    failed = [n for n, holds in short_prefill.LAYER_CONDITIONS.items() if not holds(layer)]
    assert failed == [name]
    assert short_prefill.indices(layer, step(5, 20)) is None


@pytest.mark.parametrize("name", NOT_ADMITTED_STEPS)
def test_a_step_that_is_not_proven_scores(name: str) -> None:
    other = step(5, 20, **NOT_ADMITTED_STEPS[name])
    assert not short_prefill.STEP_CONDITIONS[name](LAYER, other)
    assert short_prefill.indices(LAYER, other) is None


def test_the_table_is_made_once_and_its_size_told() -> None:
    assert short_prefill.prepare(CPU, TOP_K) == (TOP_K + 1) * TOP_K * 4
    first = short_prefill._tables[CPU, TOP_K]
    short_prefill.prepare(CPU, TOP_K)
    assert short_prefill._tables[CPU, TOP_K] is first
    assert short_prefill.prepare(CPU, 2048) == 16_785_408


def test_an_engine_gives_the_same_tokens_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")
    from hisparse_vllm.testing import tiny_configs, tiny_engine

    taken = []
    real = short_prefill.indices

    def counted(layer: Layer, at: Step) -> torch.Tensor | None:
        taken.append(real(layer, at))
        return taken[-1]

    monkeypatch.setattr(short_prefill, "indices", counted)
    model = tiny_configs.glm_moe_dsa(tmp_path)
    results = [
        tiny_engine.run(
            model,
            {"request": list(range(2, 62))},
            8,
            device_blocks=40,
            block_size=128,
            attention_config={"indexer_kv_dtype": "bf16"},
            additional_config={short_prefill.OPTION: on},
        )
        for on in (True, False)
    ]
    assert sum(x is not None for x in taken) == 2  # the prefill in both layers that have an indexer
    assert results[0].tokens == results[1].tokens
    assert results[0].logprobs == results[1].logprobs
