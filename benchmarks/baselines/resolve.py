from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_int64, c_void_p
from typing import Any

import torch
from torch import Tensor

from benchmarks import native
from benchmarks.measure import Args, Contender, on_copy, written
from hisparse_ops.testing.buffers import clone_args

_NONE = 2**31 - 1  # sorts behind every host row
_SIZES = ("runs", "rows_per_run", "top_k", "hot_size", "host_rows", "block_size", "prefix")
_COLUMNS = ("source_cols", "hot_cols", "resident_cols")
_TABLES = {
    "topk": "topk_indices",
    "states": "request_state_indices",
    "source": "source_block_table",
    "hot_blocks": "hot_block_table",
    "resident": "resident_block_table",
    "owner": "hot_owner",
    "lru": "lru_slots",
    "attention": "attention_indices",
    "valid": "valid_counts",
    "refill_host": "refill_host_rows",
    "refill_hot": "refill_hot_rows",
    "refill_counts": "refill_counts",
}


class _Case(ctypes.Structure):
    """``struct Case`` of resolve_baselines.cpp."""

    _fields_ = [
        *((name, c_int64) for name in _SIZES + _COLUMNS),
        *((name, c_void_p) for name in _TABLES),
    ]


def _case(args: Args) -> _Case:
    runs = len(args["request_state_indices"])
    resident = args["resident_block_table"]
    case = _Case(
        runs=runs,
        rows_per_run=args["topk_indices"].shape[0] // runs,
        top_k=args["topk_indices"].shape[1],
        hot_size=args["hot_owner"].shape[1],
        host_rows=args["host_rows"],
        block_size=args["block_size"],
        prefix=args["layout"] == "prefix",
        source_cols=args["source_block_table"].shape[1],
        hot_cols=args["hot_block_table"].shape[1],
        resident_cols=0 if resident is None else resident.shape[1],
    )
    for field, argument in _TABLES.items():
        t = args[argument]
        setattr(case, field, None if t is None else t.data_ptr())
    return case


class _Lists:
    """The obvious LRU, which keeps linked lists instead of tables."""

    def __init__(self, args: Args) -> None:
        self._library = native.library("resolve_baselines")
        self._library.lists_new.restype = c_void_p
        self._args = clone_args(args)
        self._pristine = {n: t.clone() for n, t in written("resolve", self._args).items()}
        self._case = _case(self._args)
        self._lists = c_void_p()

    def build(self) -> None:
        if self._lists:
            self._library.lists_delete(self._lists)
        for name, t in written("resolve", self._args).items():
            t.copy_(self._pristine[name])
        states = c_int64(len(self._args["hot_owner"]))
        self._lists = c_void_p(self._library.lists_new(ctypes.byref(self._case), states))

    def resolve(self) -> None:
        self._library.lists_resolve(self._lists, ctypes.byref(self._case))

    def result(self) -> Mapping[str, Tensor]:
        self._library.lists_read(self._lists, ctypes.byref(self._case))
        return written("resolve", self._args)


def with_torch(**args: Any) -> None:
    """Every run at once: a sort for the union, a search for the hits, stable sorts for LRU order."""
    runs = len(args["request_state_indices"])
    states = args["request_state_indices"].long()
    top_k, size = args["topk_indices"].shape[1], args["block_size"]
    positions = args["topk_indices"].view(runs, -1).long()
    host = _rows(args["source_block_table"], positions, size, args["host_rows"])
    physical = torch.full_like(host, -1)
    if args["resident_block_table"] is not None:
        limit = args["num_blocks"] * size
        physical = _rows(args["resident_block_table"][states], positions, size, limit)
    host = host.masked_fill(physical >= 0, -1)
    misses = torch.zeros(runs, dtype=torch.long)
    if (host >= 0).any():
        found, misses = _update(args, states, host)
        physical = physical.where(host < 0, found)
    rows = physical.view(-1, top_k)
    answered = rows >= 0
    if args["layout"] == "prefix":
        rows = rows.gather(1, (~answered).byte().argsort(dim=1, stable=True))
    args["attention_indices"].copy_(rows)
    args["valid_counts"].copy_(answered.sum(1))
    per_run = len(rows) // runs
    left = misses[:, None] - torch.arange(per_run) * top_k
    args["refill_counts"].copy_(left.clamp(0, top_k).flatten())


def _rows(blocks: Tensor, positions: Tensor, size: int, limit: int) -> Tensor:
    page = positions // size
    inside = (positions >= 0) & (page < blocks.shape[1])
    block = blocks.long().gather(1, page.where(inside, 0))
    rows = block * size + positions % size
    return rows.where(inside & (block > 0) & (rows < limit), -1)


def _update(args: Args, states: Tensor, host: Tensor) -> tuple[Tensor, Tensor]:
    """Physical rows of the entries, and misses of every run; owner, LRU and plan are written."""
    owner, lru = args["hot_owner"][states].long(), args["lru_slots"][states].long()
    runs, hot_size = owner.shape
    wanted, place = host.where(host >= 0, _NONE).sort(dim=1, stable=True)
    first = torch.ones_like(wanted, dtype=torch.bool)
    first[:, 1:] = wanted[:, 1:] != wanted[:, :-1]
    first &= wanted < _NONE

    # Hits: the slots whose owner is wanted, found by search.
    at = torch.searchsorted(wanted, owner).clamp(max=wanted.shape[1] - 1)
    hit = (wanted.gather(1, at) == owner) & (owner >= 0)
    slot = torch.full((runs, wanted.shape[1] + 1), -1)
    slot.scatter_(1, at.where(hit, wanted.shape[1]), torch.arange(hot_size).expand_as(at))
    slot = slot[:, :-1]

    # Misses in order of first reference take the oldest slots that are no hits.
    missing = first & (slot < 0)
    misses = missing.sum(1)
    order = place.where(missing, _NONE).sort(1)
    hit_in_lru = hit.gather(1, lru)
    others = lru.gather(1, hit_in_lru.byte().argsort(dim=1, stable=True))
    width = int(misses.max())
    used = torch.arange(width) < misses[:, None]
    victims = others[:, :width]
    missed = order[1][:, :width]  # where the miss stands in the sorted entries
    run = torch.arange(runs)[:, None].expand(runs, width)[used]
    slot[run, missed[used]] = victims[used]
    rows = wanted[run, missed[used]]
    args["hot_owner"][states[run], victims[used]] = rows.int()

    kept = torch.arange(hot_size) >= misses[:, None]
    others_left = hot_size - hit.sum(1, keepdim=True)
    key = torch.where(torch.arange(hot_size) < others_left, torch.where(kept, 0, 1), 2)
    args["lru_slots"][states] = others.gather(1, key.argsort(dim=1, stable=True)).short()

    blocks, size = args["hot_block_table"].long(), args["block_size"]
    slot = slot.clamp(min=0)
    physical = blocks.gather(1, slot // size) * size + slot % size
    flat = run * wanted.shape[1] + used.nonzero()[:, 1]
    args["refill_host_rows"].view(-1)[flat] = rows.int()
    args["refill_hot_rows"].view(-1)[flat] = physical[run, missed[used]].int()

    # Every entry reads what stands at the first of its equals.
    group = torch.where(first, torch.arange(wanted.shape[1]), 0).cummax(1)[0]
    answers = torch.empty_like(host).scatter_(1, place, physical.gather(1, group))
    return answers.where(host >= 0, -1), misses


def contenders(args: dict[str, Any]) -> list[Contender]:
    library = native.library("resolve_baselines")
    lists = _Lists(args)
    hashed, streamed = clone_args(args), clone_args(args)
    pristine = {n: t.clone() for n, t in written("resolve", hashed).items()}
    cases = _case(hashed), _case(streamed)

    def restore() -> None:
        for name, t in written("resolve", hashed).items():
            t.copy_(pristine[name])

    keep = (hashed, streamed)
    return [
        Contender("obvious C++", lists.resolve, lists.build, lists.result),
        Contender(
            "peers' algorithm",
            lambda: library.hash_resolve(ctypes.byref(cases[0])),
            restore,
            lambda: written("resolve", keep[0]),
        ),
        on_copy("resolve", "torch", args, with_torch),
        Contender(
            "state streamed once",
            lambda: (library.stream_resolve(ctypes.byref(cases[1])), keep)[0],
            is_limit=True,
        ),
    ]
