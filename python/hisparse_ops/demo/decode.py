"""Decode with HiSparse ON and OFF side by side and compare every step, bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hisparse_ops import traces
from hisparse_ops._hot_buffer import Clock, Counters, Tables
from hisparse_ops.demo import cache as caches
from hisparse_ops.demo.model import VOCABULARY, Model, Prefilled, text_tokens
from hisparse_ops.demo.settings import Settings

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "c8": torch.bfloat16,  # of the model; the rows have a format of their own
    "fp64": torch.float64,  # not offered on the command line: for comparisons with the stock attention
}


@dataclass(frozen=True)
class Step:
    """One decode step, ON against OFF."""

    number: int
    same_topk: bool
    same_logits: bool
    """Bitwise, and finite."""
    same_tokens: bool
    largest_difference: float
    """Of a logit; nan if either side has a nan."""

    @property
    def equal(self) -> bool:
        return self.same_topk and self.same_logits and self.same_tokens


@dataclass
class Result:
    """All that a run measured."""

    settings: Settings
    steps: list[Step]
    counters: Counters
    clock: Clock
    trace: traces.Trace
    tokens: Tensor
    """``[steps, requests, query_rows]``: greedy tokens, ON."""
    kept_tokens: int
    """Tokens that stayed in the context, all requests together."""
    refill_bytes: int
    complete_bytes: int
    """Of the rows that OFF keeps."""
    slab_bytes: int
    """Of the device slab that ON keeps."""
    seconds: dict[str, float]
    """Wall time of ``prefill``, ``on`` and ``off``."""

    @property
    def differing(self) -> list[Step]:
        return [step for step in self.steps if not step.equal]

    @property
    def proves(self) -> bool:
        """There were hits, misses and evictions: a fault in the ops could have shown."""
        counters = self.counters
        return all(sum(c) > 0 for c in (counters.hits, counters.misses, counters.evictions))


@dataclass
class _Side:
    """One of the two runs."""

    store: Any
    cache: Any
    tokens: Tensor
    """``[requests, query_rows]``: what the next step reads."""
    logits: Tensor
    """``[requests, query_rows, vocabulary]`` of the last step."""
    seconds: float = 0.0


@dataclass
class _Recorder:
    topk: list[Tensor] = field(default_factory=list)
    stable: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small lose more to a second thread than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def decode(
    settings: Settings,
    on_phase: Callable[[str, int], None] = lambda name, total: None,
    on_step: Callable[[Counters, Step | None], None] = lambda counters, step: None,
) -> Result:
    """Prefill once, then decode on both sides; the callbacks report progress."""
    with _one_thread(), torch.no_grad():
        return _Run(settings, on_phase, on_step).result()


class _Run:
    def __init__(
        self,
        settings: Settings,
        on_phase: Callable[[str, int], None],
        on_step: Callable[[Counters, Step | None], None],
    ) -> None:
        self.settings, self.on_phase, self.on_step = settings, on_phase, on_step
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.tables = Tables(settings.geometry(), settings.seed)
        on_phase("load", 1)
        self.text = self._read_text()
        self.model = Model(
            settings.model,
            settings.top_k,
            max(self.tables.geometry.max_lengths),
            DTYPES[settings.dtype],
            settings.seed,
        )
        # Of each request: tokens that are written and final. The prompt's last token is the first step's query.
        self.lengths = torch.tensor(settings.prompts) - 1
        self.pads = self.lengths.max() - self.lengths
        self.accepted = 1

    def _read_text(self) -> Tensor:
        """``[requests, longest]``: for each request a passage of the text."""
        tokens = torch.tensor(text_tokens())
        longest = max(self.tables.geometry.max_lengths) + self.settings.mtp_rows
        last_start = max(1, tokens.numel() - longest)
        starts = torch.randint(last_start, (self.settings.requests,), generator=self.generator)
        positions = starts[:, None] + torch.arange(longest)
        return tokens[positions % tokens.numel()]

    def result(self) -> Result:
        settings = self.settings
        start = time.perf_counter()
        self.on_phase("prefill", settings.requests)
        prompts = []
        for request, length in enumerate(self.lengths.tolist()):
            prompts.append(self.model.prefill(self.text[request, :length]))
            self.on_step(Counters(), None)
        prefill = time.perf_counter() - start
        on, off = self._sides(prompts)
        self.model.network.set_attn_implementation(caches.ATTENTION)
        self.on_phase("decode", settings.steps)
        recorder, steps, kept = _Recorder(), [], 0
        for number in range(settings.steps):
            steps.append(self._step(number, on, off, recorder))
            kept += self._keep(on, off)
            self.on_step(on.store.counters, steps[-1])
        return Result(
            settings=settings,
            steps=steps,
            counters=on.store.counters,
            clock=on.store.clock,
            trace=self._trace(recorder),
            tokens=torch.stack(recorder.tokens),
            kept_tokens=kept * settings.requests,
            refill_bytes=on.store.refill_bytes,
            complete_bytes=off.store.rows.nbytes,
            slab_bytes=on.store.slab.nbytes,
            seconds={"prefill": prefill, "on": on.seconds, "off": off.seconds},
        )

    def _sides(self, prompts: list[list[Prefilled]]) -> tuple[_Side, _Side]:
        c8 = self.settings.dtype == "c8"
        form = caches.C8Rows() if c8 else caches.PlainRows(DTYPES[self.settings.dtype])
        leaders = self.model.leaders
        hot = caches.HotStore(form, leaders, self.tables)
        complete = caches.CompleteStore(form, len(leaders), self.tables)
        first, none = self._text_at(self.lengths, 1), torch.empty(0)
        on, off = (
            _Side(store, caches.make_cache(store, self.pads, prompts), first, none)
            for store in (hot, complete)
        )
        hot.admit()
        return on, off

    def _text_at(self, lengths: Tensor, count: int) -> Tensor:
        return self.text.gather(1, lengths[:, None] + torch.arange(count))

    def _step(self, number: int, on: _Side, off: _Side, recorder: _Recorder) -> Step:
        settings = self.settings
        if settings.mtp_rows > 1:
            on.tokens = off.tokens = self._drafts()
        on.store.start_step(self.lengths)
        on.store.corrupt_next = settings.corrupt and number == settings.steps // 2
        # Who comes first finds the caches colder.
        for side in (on, off) if number % 2 else (off, on):
            self._forward(side)
        selected = on.store.selected
        recorder.stable.append(self.lengths.to(torch.int32))
        recorder.topk.append(torch.stack([selected[leader] for leader in on.store.groups]))
        recorder.tokens.append(on.tokens)
        return _compare(number, on, off)

    def _drafts(self) -> Tensor:
        """``[requests, mtp_rows]``: the text, with a wrong token for each draft that will be rejected."""
        count = self.settings.mtp_rows
        tokens = self._text_at(self.lengths, count)
        self.accepted = int(torch.randint(1, count + 1, (), generator=self.generator))
        shape = (self.settings.requests, count - self.accepted)
        wrong = torch.randint(1, VOCABULARY, shape, generator=self.generator)
        tokens[:, self.accepted :] = wrong
        return tokens

    def _forward(self, side: _Side) -> None:
        n = side.tokens.shape[1]
        columns = int(self.lengths[0] + self.pads[0]) + n
        mask = (torch.arange(columns) >= self.pads[:, None]).long()
        positions = self.lengths[:, None] + torch.arange(n)
        start = time.perf_counter()
        side.logits = self.model.forward(side.tokens, mask, positions, side.cache)
        side.seconds += time.perf_counter() - start
        side.tokens = side.logits.argmax(-1)

    def _keep(self, on: _Side, off: _Side) -> int:
        """Keep what was accepted, roll back the rest; returns the tokens kept of one request."""
        for side in (on, off):
            for layer in side.cache.layers:
                layer.rollback(self.settings.mtp_rows - self.accepted)
        self.lengths = on.cache.get_seq_length() - self.pads
        return self.accepted

    def _trace(self, recorder: _Recorder) -> traces.Trace:
        settings = self.settings
        stable = torch.stack(recorder.stable).numpy()
        trace = traces.Trace(
            torch.stack(recorder.topk).numpy(),
            stable + np.int32(settings.mtp_rows),
            stable,
            settings.mtp_rows,
            f"{settings.model} with random weights, {settings.dtype}",
        )
        trace.check()
        return trace


def _compare(number: int, on: _Side, off: _Side) -> Step:
    selected = on.store.selected
    # As bytes: a nan is the same as itself, and 0.0 is not -0.0.
    bits = (side.logits.view(torch.uint8) for side in (on, off))
    return Step(
        number,
        same_topk=all(torch.equal(selected[i], off.store.selected[i]) for i in selected),
        same_logits=torch.equal(*bits) and bool(on.logits.isfinite().all()),
        same_tokens=torch.equal(on.tokens, off.tokens),
        largest_difference=float((on.logits.double() - off.logits.double()).abs().max()),
    )
