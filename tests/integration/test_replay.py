"""A replay agrees with an LRU written from the definition, with published calibration, and notices a wrong row."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisparse_ops import _hot_buffer, traces
from hisparse_ops.__main__ import main
from hisparse_ops._cli import UsageError
from hisparse_ops._hot_buffer import IndexGroup
from hisparse_ops._replay import replay
from hisparse_ops.replay import default_sizes
from hisparse_ops.traces import Trace


def lru(trace: Trace, hot_size: int) -> tuple[int, int, int]:
    """Hits, misses and evictions of plain LRU lists, oldest slot first."""
    hits = misses = evictions = 0
    for group in range(trace.groups):
        for request in range(trace.requests):
            slots: list[int | None] = [None] * hot_size
            for step in range(trace.steps):
                references = [int(p) for p in trace.runs()[step, group, request] if p >= 0]
                if not references:
                    continue
                stable = trace.stable_lengths[step, request]
                valid = [p if p is not None and p < stable else None for p in slots]
                needed = list(dict.fromkeys(references))
                hit = [i for i, p in enumerate(valid) if p in needed and p is not None]
                loads = [p for p in needed if p not in valid]
                rest = [i for i in range(hot_size) if i not in hit]
                victims = rest[: len(loads)]
                evictions += sum(
                    slots[i] not in (None, p) for i, p in zip(victims, loads, strict=True)
                )
                slots = [valid[i] for i in rest[len(loads) :]] + loads + [valid[i] for i in hit]
                misses += len(loads)
                hits += len(references) - len(loads)
    return hits, misses, evictions


def rejecting_drafts(trace: Trace) -> Trace:
    """The same selections, but two tokens of each step are final: the others are written again."""
    kept = trace.lengths - np.arange(trace.steps, dtype=np.int32)[:, None]
    stable = kept - np.int32(trace.mtp_rows)
    clipped = np.minimum(trace.topk, np.repeat(kept, trace.mtp_rows, 1)[:, None, :, None] - 1)
    return replace(trace, lengths=kept, stable_lengths=stable, topk=clipped)


@pytest.mark.parametrize("name", traces.PRESETS)
@pytest.mark.parametrize("mtp_rows", [1, 3])
@pytest.mark.parametrize("reject", [False, True], ids=["accepted", "rejected"])
def test_agrees_with_a_plain_lru(name: str, mtp_rows: int, reject: bool) -> None:
    trace = traces.generate(name, context=400, top_k=24, steps=20, requests=2, mtp_rows=mtp_rows)
    trace = rejecting_drafts(trace) if reject else trace
    trace.check()
    for hot_size in (trace.largest_union(), 2 * trace.largest_union() + 5):
        result = replay(trace, hot_size, row_bytes=24, block_size=16)
        assert (result.total_hits, result.total_misses, result.total_evictions) == lru(
            trace, hot_size
        )
        assert result.wrong_rows == 0 and result.total_evictions > 0 and result.total_hits > 0
        assert (
            result.total_refill_bytes == 24 * result.total_misses == 24 * sum(result.miss_timeline)
        )


# Hit rates in percent of an exact LRU simulation at context 68,665 and top-k 2,048, by hot size.
CALIBRATION = {
    "mid-layer": {2048: 43, 4096: 56, 8192: 72},
    "static": {2048: 45, 4096: 70, 8192: 91},
    "drift": {2048: 40, 4096: 48, 8192: 54},
    "first-layer": {2048: 3, 4096: 6, 8192: 12},
    "adversarial": {2048: 3, 4096: 6, 8192: 12},
}


@pytest.mark.parametrize("name", CALIBRATION)
def test_hit_rates_are_calibrated(name: str) -> None:
    trace = traces.generate(name, context=68665, top_k=2048, steps=120)
    for hot_size, percent in CALIBRATION[name].items():
        found = 100 * replay(trace, hot_size, row_bytes=0, warmup=50).hit_rate
        assert found == pytest.approx(percent, abs=1.6), hot_size


@pytest.mark.parametrize(("row_bytes", "block_size"), [(1, 1), (7, 100), (656, 64), (1152, 128)])
def test_every_row_is_the_hosts(row_bytes: int, block_size: int) -> None:
    trace = traces.generate("mid-layer", context=500, top_k=40, steps=8, requests=3, mtp_rows=2)
    result = replay(trace, 100, row_bytes=row_bytes, block_size=block_size)
    assert result.wrong_rows == 0 and result.total_evictions > 0


def test_warmup_leaves_the_first_steps_out() -> None:
    trace = traces.generate("mid-layer", context=500, top_k=40, steps=8)
    whole, rest = replay(trace, 64), replay(trace, 64, warmup=3)
    assert rest.total_misses == whole.total_misses == sum(rest.miss_timeline)
    assert rest.total_evictions == whole.total_evictions > 0
    assert rest.misses_per_step == sum(rest.miss_timeline[3:]) / 5
    assert rest.refill_bytes_per_step == pytest.approx(656 * rest.misses_per_step)
    # A full buffer evicts for each row that it loads; the whole run also filled it.
    assert rest.evictions_per_step == rest.misses_per_step
    assert whole.evictions_per_step < whole.misses_per_step
    assert rest.hit_rate == 1 - sum(rest.miss_timeline[3:]) / (5 * 40) > whole.hit_rate


def test_a_spoiled_row_is_noticed() -> None:
    trace = traces.generate("mid-layer", context=500, top_k=40, steps=8)
    assert replay(trace, 64, corrupt=True).wrong_rows > 0


def test_index_groups_are_apart() -> None:
    """Two groups with one selection each miss what one group misses."""
    trace = traces.generate("mid-layer", context=300, top_k=16, steps=6)
    twice = replace(trace, topk=np.repeat(trace.topk, 2, axis=1))
    one, two = replay(trace, 32), replay(twice, 32)
    assert (two.total_hits, two.total_misses, two.total_evictions) == (
        2 * one.total_hits,
        2 * one.total_misses,
        2 * one.total_evictions,
    )


def test_unused_entries_cost_nothing() -> None:
    trace = traces.generate("mid-layer", context=300, top_k=16, steps=6)
    result = replay(replace(trace, topk=np.full_like(trace.topk, -1)), 16)
    assert (result.total_hits, result.total_misses, result.wrong_rows) == (0, 0, 0)
    assert np.isnan(result.hit_rate)


def test_default_sizes_start_at_what_a_step_needs() -> None:
    trace = traces.generate("mid-layer", context=300, top_k=16, steps=6, mtp_rows=2)
    sizes = default_sizes(trace)
    assert sizes[0] == trace.largest_union() > 16 and sizes[-1] == 4 * sizes[0]
    assert default_sizes(traces.generate("drift", context=99, top_k=1, steps=3)) == [1, 2, 4]


def test_hot_size_must_cover_a_step() -> None:
    trace = traces.generate("adversarial", context=300, top_k=16, steps=6, mtp_rows=2)
    union = trace.largest_union()
    assert replay(trace, union).wrong_rows == 0
    with pytest.raises(
        UsageError, match=f"hot size must be between {union} .* and 32768, got {union - 1}"
    ):
        replay(trace, union - 1)


def test_a_step_may_need_more_than_any_hot_buffer() -> None:
    trace = traces.generate("adversarial", context=70000, top_k=33000, steps=1)
    with pytest.raises(
        UsageError, match="needs 33000 rows of a request, and a hot buffer has at most 32768"
    ):
        replay(trace, 32768)


def test_a_trace_may_be_too_long_for_this_machine() -> None:
    trace = traces.generate("drift", context=100, top_k=4, steps=1)
    long = replace(trace, lengths=np.full_like(trace.lengths, traces.MAX_LENGTH))
    with pytest.raises(
        UsageError, match="would take 8388612 MiB for the host cache, 1 x 8 MiB for slabs and"
    ):
        replay(long, 8, row_bytes=65536)


def test_memory_is_that_of_whole_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB: neither the two pages of the host cache nor those of the two slabs fit, few as the tokens are."""
    trace = traces.generate("adversarial", context=10, top_k=2, steps=2)
    trace = replace(trace, topk=np.repeat(trace.topk, 2, axis=1))
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 4096, "SC_PAGE_SIZE": 4096}.get)
    words = (
        "hot size 2 would take 4 MiB for the host cache, 2 x 4 MiB for slabs and 0 MiB for tables"
    )
    with pytest.raises(UsageError, match=words):
        replay(trace, 2, block_size=1024, row_bytes=2048)
    assert replay(trace, 2, block_size=1024, row_bytes=1024).wrong_rows == 0


def test_rows_are_32_bit_numbers() -> None:
    one = traces.generate("adversarial", context=10, top_k=2, steps=1)
    many = replace(
        one,
        topk=np.full((1, 1, 32767, 2), 0, np.int32),
        lengths=np.full((1, 32767), 1, np.int32),
        stable_lengths=np.zeros((1, 32767), np.int32),
    )
    with pytest.raises(UsageError, match="below 2147483648 rows, got 2147483648 and 2147483648"):
        replay(many, 2, block_size=65536, row_bytes=0)


def test_every_hot_size_is_checked_before_the_first_replay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hisparse_ops.replay.replay", lambda *_, **__: pytest.fail("replayed"))
    sizes = ["--hot-size", "2,32768", "--row-bytes", "1"]
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}.get)
    assert main(["replay", "drift", "--context", "9", "--top-k", "2", "--steps", "1", *sizes]) == 2
    assert "hot size 32768 would take" in capsys.readouterr().err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_trace_that_selects_nothing_proves_nothing(
    form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = traces.generate("drift", context=50, top_k=4, steps=3)
    traces.save(replace(trace, topk=np.full_like(trace.topk, -1)), tmp_path / "t.npz")
    assert main(["replay", str(tmp_path / "t.npz"), *form]) == 1
    out = capsys.readouterr().out
    assert "PROVED NOTHING: the trace selects nothing" in out
    assert "nan" not in out.lower()


def test_corrupt_takes_the_next_step_that_selects() -> None:
    trace = traces.generate("drift", context=50, top_k=4, steps=6)
    trace.topk[3] = -1
    assert replay(trace, 8, corrupt=True).wrong_rows > 0
    trace.topk[3:] = -1
    with pytest.raises(UsageError, match="selects nothing from step 4 of 6 on"):
        replay(trace, 8, corrupt=True)


RUN = ["replay", "mid-layer", "--context", "400", "--top-k", "32", "--steps", "12"]


def test_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--hot-size", "64,32", "--requests", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "synthetic mid-layer: 12 steps, 2 requests x 1 query row, top-k 32, up to 412"
    )
    assert lines[3].split("  ")[2:5] == ["misses/step", "evictions/step", "host to hot/step"]
    assert [line.split()[0] for line in lines[4:6]] == ["32", "64"]
    assert lines[-2] == (
        "all columns: mean of steps 4 to 12 of 12; the first 3 steps of warm-up left out"
    )
    for line in lines[4:6]:
        misses, evictions, kib = (float(line.split()[i]) for i in (3, 4, 5))
        assert misses >= evictions > 0
        assert kib == pytest.approx(misses * 656 / 1024, abs=0.1)
    assert lines[-1] == "every row read was the host's"


def test_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--json", "--warmup", "0", "--row-bytes", "16"]) == 0
    printed = json.loads(capsys.readouterr().out)
    trace = traces.generate("mid-layer", context=400, top_k=32, steps=12)
    assert printed["trace"]["overlap"] == trace.overlap()
    assert [r["hot_size"] for r in printed["results"]] == [32, 48, 64, 128]
    for r in printed["results"]:
        hits, misses, evictions = lru(trace, r["hot_size"])
        totals = (r["total_hits"], r["total_misses"], r["total_evictions"])
        assert totals == (hits, misses, evictions)
        assert r["hit_rate"] == hits / (hits + misses)
        assert r["total_refill_bytes"] == 16 * misses
        assert 12 * r["refill_bytes_per_step"] == pytest.approx(16 * misses)


def test_json_names_what_leaves_the_warmup_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--json", "--hot-size", "64"]) == 0
    printed = json.loads(capsys.readouterr().out)
    window, (result,) = printed["window"], printed["results"]
    assert (window["first_step"], window["last_step"]) == (4, 12)
    assert set(window["keys"]) <= set(result)
    assert result["misses_per_step"] == sum(result["miss_timeline"][3:]) / 9
    assert result["refill_bytes_per_step"] == pytest.approx(656 * result["misses_per_step"])


def test_times_leave_the_warmup_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once a reading, a call takes one second; the warm-up's take a thousand."""
    readings = iter(range(10**6))
    group_calls = []

    def slow(self: IndexGroup, *args: Any) -> None:
        group_calls.append(1)
        with self.clock.measure("resolve"):
            if len(group_calls) <= 3:
                for _ in range(1000):
                    next(readings)
        original(self, *args)

    original = IndexGroup.resolve
    monkeypatch.setattr(IndexGroup, "resolve", slow)
    monkeypatch.setattr(_hot_buffer.time, "perf_counter", lambda: next(readings))
    trace = traces.generate("mid-layer", context=500, top_k=40, steps=8)
    found = replay(trace, 64, warmup=3).op_us
    assert found == {"reset_requests": 1e6, "resolve": 1e6, "gather_compact": 1e6}


def test_command_prints_json_without_numbers_it_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = traces.generate("drift", context=50, top_k=4, steps=1)
    traces.save(replace(trace, topk=np.full_like(trace.topk, -1)), tmp_path / "none.npz")
    assert main(["replay", str(tmp_path / "none.npz"), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed["trace"]["overlap"] is None and printed["results"][0]["hit_rate"] is None


def test_command_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the demo extra is not installed")
    assert main([*RUN, "--plot", str(tmp_path / "picture.any")]) == 0
    assert (tmp_path / "picture.any").read_bytes().startswith(b"\x89PNG")


def test_command_replays_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces.save(
        traces.generate("drift", context=200, top_k=16, steps=5, mtp_rows=2), tmp_path / "t.npz"
    )
    assert main(["replay", str(tmp_path / "t.npz"), "--seed", "3"]) == 0
    assert "synthetic drift: 5 steps, 1 request x 2 query rows" in capsys.readouterr().out
