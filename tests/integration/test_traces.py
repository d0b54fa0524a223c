"""Trace files survive a round trip and refuse everything else; synthetic traces are what they claim to be."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hisparse_ops import traces
from hisparse_ops.traces import PRESETS, Trace, TraceError

SMALL = {"context": 300, "top_k": 32, "steps": 6, "requests": 2, "mtp_rows": 3, "seed": 5}


@pytest.fixture
def trace() -> Trace:
    return traces.generate("mid-layer", **SMALL)


@pytest.fixture
def file(trace: Trace, tmp_path: Path) -> Path:
    traces.save(trace, tmp_path / "trace.npz")
    return tmp_path / "trace.npz"


def test_round_trip(trace: Trace, file: Path) -> None:
    loaded = traces.load(file)
    for name in ("topk", "lengths", "stable_lengths"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(trace, name))
        assert getattr(loaded, name).dtype == np.int32
    assert (loaded.mtp_rows, loaded.source) == (3, "synthetic mid-layer")


def test_save_keeps_the_name(trace: Trace, tmp_path: Path) -> None:
    """NumPy would append .npz to a name without it."""
    traces.save(trace, tmp_path / "trace.bin")
    assert [p.name for p in tmp_path.iterdir()] == ["trace.bin"]
    traces.load(tmp_path / "trace.bin")


WRONG = {
    "topk must be int32, got int64": lambda t: {"topk": t.topk.astype(np.int64)},
    "topk must be [steps, groups, rows, top_k], none of them 0, got (6, 6, 32)": lambda t: {
        "topk": t.topk[:, 0]
    },
    "topk must be [steps, groups, rows, top_k], none of them 0, got (0, 1, 6, 32)": lambda t: {
        "topk": t.topk[:0]
    },
    "mtp_rows must divide the 6 rows of a step, got 4": lambda t: {"mtp_rows": 4},
    "mtp_rows must divide the 6 rows of a step, got 0": lambda t: {"mtp_rows": 0},
    "lengths must have shape (6, 2), got (5, 2)": lambda t: {"lengths": t.lengths[:5]},
    "stable_lengths must have shape (6, 6), got (6, 2)": lambda t: {
        "mtp_rows": 1,
        "lengths": np.repeat(t.lengths, 3, axis=1),
    },
    "lengths must be between 1 and 134217728, got 0 to 0": lambda t: {
        "lengths": t.lengths * np.int32(0)
    },
    "lengths must be between 1 and 134217728, got 2000000000 to 2000000000": lambda t: {
        "lengths": np.full_like(t.lengths, 2_000_000_000)
    },
    "stable_lengths must be between 0 and lengths": lambda t: {
        "stable_lengths": t.lengths + np.int32(1)
    },
    "topk of step 0, group 0, request 0 must be -1 or a position below 303, got 303": lambda t: {
        "topk": np.where(np.arange(t.topk.size).reshape(t.topk.shape) == 0, 303, t.topk).astype(
            np.int32
        )
    },
    "topk of step 5, group 0, request 1 must be -1 or a position below 318, got -2": lambda t: {
        "topk": np.where(
            np.arange(t.topk.size).reshape(t.topk.shape) == t.topk.size - 1, -2, t.topk
        ).astype(np.int32)
    },
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_arrays_are_refused(words: str, trace: Trace, tmp_path: Path) -> None:
    wrong = replace(trace, **WRONG[words](trace))
    with pytest.raises(TraceError) as error:
        wrong.check()
    assert str(error.value) == words
    traces.save(wrong, tmp_path / "wrong.npz")
    with pytest.raises(TraceError) as error:
        traces.load(tmp_path / "wrong.npz")
    assert str(error.value) == f"{tmp_path / 'wrong.npz'}: {words}"


def _foreign(path: Path, kind: str) -> str:
    """Write a file of some other kind; returns what the error must say."""
    meta = {"format": "hisparse-trace", "version": 1, "mtp_rows": 1}
    one = np.zeros((1, 1, 1, 1), np.int32)
    arrays = {"topk": one, "lengths": one[0, 0] + 1, "stable_lengths": one[0, 0]}
    if kind == "text":
        path.write_text("step,layer,token\n0,0,17\n")
        return "not a trace file, or a damaged one"
    if kind == "empty":
        path.write_bytes(b"")
        return "not a trace file, or a damaged one"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(arrays))
        return "not a trace file, or a damaged one"
    if kind == "one array":
        path.write_bytes(b"")
        with path.open("wb") as file:
            np.save(file, one)
        return "not a trace file (a NumPy array, not an archive)"
    if kind == "other archive":
        np.savez(path, weights=one)
        return "it has no meta, topk, lengths, stable_lengths"
    if kind == "objects":
        np.savez(path, **{**arrays, "topk": np.array([{}, "x"], object)}, meta=json.dumps(meta))
        return "not a trace file, or a damaged one"
    if kind == "meta without format":
        np.savez(path, **arrays, meta=json.dumps({"version": 1}))
        return 'its meta does not say "format": "hisparse-trace"'
    if kind == "meta not JSON":
        np.savez(path, **arrays, meta="hisparse-trace")
        return 'its meta does not say "format": "hisparse-trace"'
    if kind == "newer version":
        np.savez(path, **arrays, meta=json.dumps({**meta, "version": 2}))
        return "trace version must be 1, got 2"
    if kind == "mtp_rows not a number":
        np.savez(path, **arrays, meta=json.dumps({**meta, "mtp_rows": "3"}))
        return "mtp_rows in meta must be an integer, got '3'"
    if kind == "meta too deep":
        np.savez(path, **arrays, meta="[" * 200000)
        return 'its meta does not say "format": "hisparse-trace"'
    if kind in SOURCES:
        np.savez(path, **arrays, meta=json.dumps({**meta, "source": SOURCES[kind]}))
        return "source must be printable text of at most 200 characters, got "
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    return "not a trace file (not a regular file)"


SOURCES = {
    "source with half a surrogate pair": "\ud800",
    "source of two lines": "a\nb",
    "source too long": "x" * 201,
    "source not text": 7,
}


KINDS = (
    "text",
    "empty",
    "pickle",
    "one array",
    "other archive",
    "objects",
    "meta without format",
    "meta not JSON",
    "newer version",
    "mtp_rows not a number",
    "meta too deep",
    *SOURCES,
    "pipe",
    "directory",
)


@pytest.mark.parametrize("kind", KINDS)
def test_foreign_files_are_refused(kind: str, tmp_path: Path) -> None:
    words = _foreign(tmp_path / "foreign.npz", kind)
    with pytest.raises(TraceError) as error:
        traces.load(tmp_path / "foreign.npz")
    assert str(error.value).startswith(f"{tmp_path / 'foreign.npz'}: ") and words in str(
        error.value
    )
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        traces.load(tmp_path / "none.npz")


def test_truncated_files_are_refused(file: Path) -> None:
    whole = file.read_bytes()
    for kept in np.linspace(0, len(whole) - 1, 60).astype(int):
        file.write_bytes(whole[:kept])
        with pytest.raises(TraceError):
            traces.load(file)


def test_damaged_files_are_refused_or_harmless(file: Path) -> None:
    """Any one byte changed: a TraceError, or (in padding and time stamps) the same trace. Never anything else."""
    small = traces.generate("drift", context=60, top_k=8, steps=3)
    traces.save(small, file)
    whole = file.read_bytes()
    refused = 0
    for position, byte in enumerate(whole):
        flipped = byte ^ (1, 64, 255)[position % 3]
        file.write_bytes(whole[:position] + bytes([flipped]) + whole[position + 1 :])
        try:
            loaded = traces.load(file)
        except TraceError:
            refused += 1
        else:
            np.testing.assert_array_equal(loaded.topk, small.topk)
    assert refused > len(whole) // 2


@pytest.mark.parametrize("seed", range(20))
def test_damaged_headers_are_refused_or_harmless(seed: int, trace: Trace, file: Path) -> None:
    """NumPy parses an array's header before the archive's checksum says that it is damaged."""
    np.savez(file, topk=trace.topk, lengths=trace.lengths)
    whole = bytearray(file.read_bytes())
    start = whole.index(b"\x93NUMPY")
    rng = np.random.default_rng(seed)
    for position in rng.integers(start, start + 128, 3):
        whole[position] = rng.choice(bytearray(b"\0\n '([{x9#\xff\\"))
    file.write_bytes(whole)
    with pytest.raises(TraceError):
        traces.load(file)


@pytest.mark.parametrize("name", PRESETS)
def test_selections_are_distinct_and_among_the_visible_tokens(name: str) -> None:
    trace = traces.generate(name, **SMALL)
    trace.check()
    assert trace.topk.shape == (6, 1, 6, 32)
    for step in range(6):
        for row in range(6):
            selected = trace.topk[step, 0, row]
            visible = 300 + step * 3 + row % 3 + 1
            assert (
                len(set(selected.tolist())) == 32
                and selected.min() >= 0
                and selected.max() < visible
            )
    assert (trace.lengths == 300 + 3 * np.arange(1, 7)[:, None]).all()
    assert (trace.stable_lengths == trace.lengths - 3).all()


def test_requests_and_seeds_differ_and_repeat() -> None:
    first, again = (traces.generate("drift", **SMALL) for _ in range(2))
    np.testing.assert_array_equal(first.topk, again.topk)
    assert (first.topk[:, :, :3] != first.topk[:, :, 3:]).any()
    assert (first.topk != traces.generate("drift", **{**SMALL, "seed": 6}).topk).any()


def test_first_and_newest_tokens_are_always_selected() -> None:
    trace = traces.generate("mid-layer", context=3000, top_k=2048, steps=3)
    for step in range(3):
        selected = set(trace.topk[step, 0, 0].tolist())
        assert set(range(4)) <= selected and set(range(3001 + step - 128, 3001 + step)) <= selected


def test_first_layer_moves_with_the_query() -> None:
    trace = traces.generate("first-layer", context=500, top_k=40, steps=4)
    np.testing.assert_array_equal(np.diff(trace.topk[:, 0, 0], axis=0), 1)


@pytest.mark.parametrize("top_k", [1, 7, 400])
def test_odd_top_k(top_k: int) -> None:
    """Below the always-selected tokens, and above the visible ones: those are -1."""
    trace = traces.generate("mid-layer", context=300, top_k=top_k, steps=2)
    trace.check()
    assert ((trace.topk >= 0).sum(-1) == np.minimum(top_k, trace.lengths[:, None])).all()


@pytest.mark.parametrize(
    ("name", "overlap"),
    [
        ("mid-layer", 0.429),
        ("static", 0.448),
        ("drift", 0.396),
        ("first-layer", 0.031),
        ("adversarial", 0.030),
    ],
)
def test_overlap_is_calibrated(name: str, overlap: float) -> None:
    """At the length and top-k of the published measurement (docs/demo.md)."""
    trace = traces.generate(name, context=68665, top_k=2048, steps=30, seed=1)
    assert trace.overlap() == pytest.approx(overlap, abs=0.012)


def test_union_and_overlap_count_distinct_positions() -> None:
    topk = np.array([[[[3, 3, -1], [3, 5, 6]]], [[[5, -1, -1], [7, 7, 5]]]], np.int32)
    lengths = np.full((2, 1), 9, np.int32)
    trace = Trace(topk, lengths, lengths, 2, "by hand")
    trace.check()
    assert trace.largest_union() == 3  # {3, 5, 6}
    assert trace.overlap() == 0.5  # of {5, 7}
    assert replace(trace, mtp_rows=1, lengths=np.repeat(lengths, 2, 1)).largest_union() == 3
    assert np.isnan(
        replace(trace, topk=topk[:1], lengths=lengths[:1], stable_lengths=lengths[:1]).overlap()
    )
