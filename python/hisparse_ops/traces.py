"""Top-k traces: what a model's indexer selected, step by step. Files, checks, and synthetic ones.

A trace file is a NumPy ``.npz`` archive with four arrays:

``topk``
    ``[steps, groups, rows, top_k]`` int32: token positions that each query row selected, best first, -1 unused.
    ``rows = requests * mtp_rows``; the rows of one request are neighbours.
``lengths``
    ``[steps, requests]`` int32: tokens of the request once this step's rows are written.
``stable_lengths``
    ``[steps, requests]`` int32: positions below it were written before this step and are final.
``meta``
    0-d string, JSON: ``{"format": "hisparse-trace", "version": 1, "mtp_rows": 1, "source": "..."}``.
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hisparse_ops._cli import UsageError

FORMAT = "hisparse-trace"
VERSION = 1
MAX_LENGTH = 2**27
"""Positions of one request that a trace may name: more would need a host table of gigabytes."""

MAX_SOURCE = 200
"""Characters of a trace's source: it becomes part of a line on the screen and the title of a picture."""

Ints = NDArray[np.int32]


class TraceError(UsageError, ValueError):
    """A trace that cannot be used: one sentence that names the file and the fault."""


@dataclass(frozen=True)
class Trace:
    """A checked trace; the module's text says what the arrays hold."""

    topk: Ints
    lengths: Ints
    stable_lengths: Ints
    mtp_rows: int
    source: str

    @property
    def steps(self) -> int:
        return int(self.topk.shape[0])

    @property
    def groups(self) -> int:
        return int(self.topk.shape[1])

    @property
    def requests(self) -> int:
        return int(self.lengths.shape[1])

    @property
    def top_k(self) -> int:
        return int(self.topk.shape[3])

    def runs(self) -> Ints:
        """``[steps, groups, requests, mtp_rows * top_k]``: all positions that a request needs at once."""
        return self.topk.reshape(self.steps, self.groups, self.requests, -1)

    def largest_union(self) -> int:
        """Most distinct positions that one run needs: the smallest hot buffer that can serve the trace."""
        ordered = np.sort(self.runs(), axis=-1)
        distinct = (ordered[..., 1:] != ordered[..., :-1]) & (ordered[..., 1:] >= 0)
        return int((distinct.sum(-1) + (ordered[..., 0] >= 0)).max())

    def overlap(self) -> float:
        """Share of a run's distinct positions that the step before needed as well; nan for one step."""
        shares = []
        runs = self.runs()
        for group in range(self.groups):
            for request in range(self.requests):
                before: Ints | None = None
                for step in range(self.steps):
                    now = np.unique(runs[step, group, request])
                    now = now[now >= 0]
                    if before is not None and now.size:
                        shares.append(np.isin(now, before, assume_unique=True).mean())
                    before = now
        return float(np.mean(shares)) if shares else float("nan")

    def check(self) -> None:
        """Raise a :class:`TraceError` that names the first fault."""
        _check_source(self.source)
        _check_shapes(self)
        _check_values(self)


def _check_source(source: Any) -> None:
    if not isinstance(source, str) or len(source) > MAX_SOURCE or not source.isprintable():
        raise TraceError(
            f"source must be printable text of at most {MAX_SOURCE} characters, got {reprlib.repr(source)}"
        )


def _check_shapes(trace: Trace) -> None:
    for name in ("topk", "lengths", "stable_lengths"):
        array = getattr(trace, name)
        if array.dtype != np.int32:
            raise TraceError(f"{name} must be int32, got {array.dtype}")
    if trace.topk.ndim != 4 or 0 in trace.topk.shape:
        raise TraceError(
            f"topk must be [steps, groups, rows, top_k], none of them 0, got {trace.topk.shape}"
        )
    steps, _, rows, _ = trace.topk.shape
    if not 1 <= trace.mtp_rows <= rows or rows % trace.mtp_rows:
        raise TraceError(f"mtp_rows must divide the {rows} rows of a step, got {trace.mtp_rows}")
    expected = (steps, rows // trace.mtp_rows)
    for name in ("lengths", "stable_lengths"):
        if getattr(trace, name).shape != expected:
            raise TraceError(f"{name} must have shape {expected}, got {getattr(trace, name).shape}")


def _check_values(trace: Trace) -> None:
    lengths, stable = trace.lengths, trace.stable_lengths
    if lengths.min() < 1 or lengths.max() > MAX_LENGTH:
        raise TraceError(
            f"lengths must be between 1 and {MAX_LENGTH}, got {lengths.min()} to {lengths.max()}"
        )
    if stable.min() < 0 or (stable > lengths).any():
        raise TraceError("stable_lengths must be between 0 and lengths")
    runs = trace.runs()
    wrong = (runs < -1) | (runs >= lengths[:, None, :, None])
    if wrong.any():
        step, group, request, entry = (int(i) for i in np.argwhere(wrong)[0])
        raise TraceError(
            f"topk of step {step}, group {group}, request {request} must be -1 or a position below"
            f" {lengths[step, request]}, got {runs[step, group, request, entry]}"
        )


def save(trace: Trace, path: str | Path) -> None:
    """Write ``trace`` to ``path`` (under exactly that name)."""
    meta = {
        "format": FORMAT,
        "version": VERSION,
        "mtp_rows": trace.mtp_rows,
        "source": trace.source,
    }
    with open(path, "wb") as file:
        np.savez_compressed(
            file,
            topk=trace.topk,
            lengths=trace.lengths,
            stable_lengths=trace.stable_lengths,
            meta=np.array(json.dumps(meta)),
        )


def load(path: str | Path) -> Trace:
    """Read and check a trace file; every fault is a :class:`TraceError`."""
    try:
        arrays = _read(path)
        trace = _assemble(arrays)
        trace.check()
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from None
    return trace


def _read(path: str | Path) -> dict[str, Any]:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise TraceError("not a trace file (not a regular file)")
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise TraceError("not a trace file (a NumPy array, not an archive)")
            return {name: archive[name] for name in archive.files}
    except (FileNotFoundError, TraceError):
        raise
    except Exception as error:
        # zipfile, zlib and NumPy's header parser raise what they please (tokenize.TokenError among them), and
        # their words are about pickles; the kind of fault is all that helps.
        raise TraceError(
            f"not a trace file, or a damaged one ({type(error).__name__} while reading)"
        ) from None


def _assemble(arrays: dict[str, Any]) -> Trace:
    missing = [n for n in ("meta", "topk", "lengths", "stable_lengths") if n not in arrays]
    if missing:
        raise TraceError(f"not a trace file (it has no {', '.join(missing)})")
    try:
        meta = json.loads(str(arrays["meta"]))
    except (ValueError, RecursionError):
        meta = None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise TraceError(f'not a trace file (its meta does not say "format": "{FORMAT}")')
    if meta.get("version") != VERSION:
        raise TraceError(
            f"trace version must be {VERSION}, got {reprlib.repr(meta.get('version'))}"
        )
    mtp_rows = meta.get("mtp_rows")
    if type(mtp_rows) is not int:
        raise TraceError(f"mtp_rows in meta must be an integer, got {reprlib.repr(mtp_rows)}")
    return Trace(
        arrays["topk"],
        arrays["lengths"],
        arrays["stable_lengths"],
        mtp_rows,
        meta.get("source", "unknown"),
    )


@dataclass(frozen=True)
class Preset:
    """Parameters of the synthetic scores.

    ``score_t(i) = sqrt(lasting) u_i + sqrt(drifting) x_i(t) + sqrt(1 - lasting - drifting) noise``, where ``x`` is
    an AR(1) process with coefficient ``phi``; the first ``sink`` and last ``recent`` positions are always selected.
    ``moving`` ignores the scores: fixed random distances to the query, so that every selection moves with it.
    """

    about: str
    lasting: float = 0.0
    drifting: float = 0.0
    phi: float = 0.0
    sink: int = 0
    recent: int = 0
    moving: bool = False


# Calibrated so that at context 68,665 and top-k 2,048 consecutive selections overlap by what TensorRT-LLM's blog 21
# measured on DeepSeek-V3.2 (35 to 50 % in layers 20 to 60, about chance in layers 0 and 1). The overlap does not fix
# the hit rate of a larger buffer: "static" and "drift" are the two ends of that range, not two models.
PRESETS = {
    "mid-layer": Preset("a middle layer: lasting and drifting parts", 0.55, 0.45, 0.45, 4, 128),
    "static": Preset("noise around fixed scores: the most reuse at this overlap", 0.80),
    "drift": Preset("pure drift: the least reuse at this overlap", 0.0, 1.0, 0.75),
    "first-layer": Preset("fixed distances to the query, as in layers 0 and 1", moving=True),
    "adversarial": Preset("a new random selection every step"),
}


def generate(
    name: str,
    *,
    context: int,
    top_k: int,
    steps: int,
    requests: int = 1,
    mtp_rows: int = 1,
    seed: int = 0,
) -> Trace:
    """A synthetic trace of one index group: ``requests`` independent ones that start at ``context`` tokens.

    Every step appends ``mtp_rows`` tokens, each of which selects among the tokens up to itself.
    """
    topk = np.full((steps, 1, requests * mtp_rows, top_k), -1, np.int32)
    for request in range(requests):
        rng = np.random.default_rng([seed, request])
        selections = _select(PRESETS[name], context, top_k, steps * mtp_rows, rng)
        for i, selected in enumerate(selections):
            row = request * mtp_rows + i % mtp_rows
            topk[i // mtp_rows, 0, row, : selected.size] = selected
    written = np.arange(1, steps + 1, dtype=np.int32)[:, None] * np.int32(mtp_rows)
    lengths = np.repeat(np.int32(context) + written, requests, axis=1)
    return Trace(topk, lengths, lengths - np.int32(mtp_rows), mtp_rows, f"synthetic {name}")


def _select(
    preset: Preset, context: int, top_k: int, count: int, rng: np.random.Generator
) -> Iterator[Ints]:
    """``count`` selections, best first; the i-th is among ``context + 1 + i`` tokens."""
    if preset.moving:
        distances = rng.permutation(context + 1)[:top_k].astype(np.int32)
        for i in range(count):
            yield np.int32(context + i) - distances
        return
    total = context + count
    lasting = np.float32(preset.lasting**0.5) * rng.standard_normal(total, np.float32)
    drift = rng.standard_normal(total, np.float32)
    noise = max(0.0, 1.0 - preset.lasting - preset.drifting) ** 0.5
    # With a small top-k the always-selected positions must not fill it.
    sink, recent = min(preset.sink, top_k // 16), min(preset.recent, top_k // 16)
    for i in range(count):
        n = context + 1 + i
        scores = lasting[:n] + np.float32(preset.drifting**0.5) * drift[:n]
        if noise > 0:
            scores += np.float32(noise) * rng.standard_normal(n, np.float32)
        scores[:sink] = np.inf
        scores[n - recent :] = np.inf
        yield _best(scores, top_k)
        drift *= np.float32(preset.phi)
        drift += np.float32((1 - preset.phi**2) ** 0.5) * rng.standard_normal(total, np.float32)


def _best(scores: NDArray[np.float32], top_k: int) -> Ints:
    n = scores.size
    kept = np.arange(n) if n <= top_k else np.argpartition(scores, n - top_k)[n - top_k :]
    return kept[np.argsort(-scores[kept], kind="stable")].astype(np.int32)
