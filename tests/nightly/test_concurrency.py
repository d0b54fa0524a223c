"""Threads, forks, and the end of the interpreter: docs/threads.md, each sentence of it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import hisparse_ops as hs
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args

THREADS = 8


def together(work: Callable[[int], Any], count: int = THREADS) -> list[Any]:
    """``work(i)`` in threads that start at the same moment."""
    barrier = threading.Barrier(count)

    def run(i: int) -> Any:
        barrier.wait()
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_on_states_of_their_own(op: str, tier: str) -> None:
    """As if each had been alone: no scratch is shared."""
    rounds = 50 if tier == "nightly" else 5
    every = [s.args() for s in samples.samples(op)]
    expected = [clone_args(args) for args in every]
    call = hs.ops()[op].call
    for args in expected:
        call(**args)

    def work(thread: int) -> None:
        for turn in range(rounds):
            at = (thread * 7 + turn) % len(every)
            args = clone_args(every[at])
            call(**args)
            assert_same_buffers(args, expected[at])

    together(work)


def test_threads_on_state_rows_of_one_table(tier: str) -> None:
    """Requests of one pair of tables may be resolved by different threads: a call touches its own rows only."""
    args = next(s for s in samples.samples("resolve") if s.name == "mtp").args()
    del args["stats"]
    requests = args["request_ids"].unique().tolist()
    outputs = [
        name
        for name in hs.ops()["resolve"].mutates
        if name in args and name not in ("hot_owner", "lru_slots")
    ]

    def part(of: dict[str, Any], request: int) -> dict[str, Any]:
        """The rows of one request, in the same tables."""
        rows = (of["request_ids"] == request).nonzero()[:, 0]
        first, last = int(rows[0]), int(rows[-1]) + 1
        names = ("topk_indices", "request_ids", *outputs)
        return of | {name: of[name][first:last] for name in names}

    for _ in range(200 if tier == "nightly" else 20):
        alone, shared = clone_args(args), clone_args(args)
        for request in requests:
            hs.resolve(**part(alone, request))
        together(lambda i, s=shared: hs.resolve(**part(s, requests[i])), len(requests))
        assert_same_buffers(shared, alone)


def test_two_threads_on_one_state_harm_nothing_else(tier: str) -> None:
    """It is a race, and the state is what is lost: canaries hold, and a reset makes it whole."""
    args = next(s for s in samples.samples("resolve") if s.name == "mtp").args()
    before = clone_args(args)

    def work(thread: int) -> None:
        mine = clone_args(args)
        for name in ("hot_owner", "lru_slots"):
            mine[name] = args[name]
        for _ in range(500 if tier == "nightly" else 50):
            hs.resolve(**mine)

    together(work, 2)
    tables = ("hot_owner", "lru_slots")
    everything = {name: torch.ones_like(args[name], dtype=torch.bool) for name in tables}
    assert_same_buffers(args, before, everything)
    states = args["request_state_indices"]
    hs.reset_requests(args["hot_owner"], args["lru_slots"], states)
    hs.resolve(**args)
    used = states[args["request_ids"][args["request_ids"] >= 0].long().unique()].long()
    lru = args["lru_slots"][used]
    assert torch.equal(
        lru.sort().values, torch.arange(lru.shape[1], dtype=torch.int16).expand_as(lru)
    )


def test_fork_after_import() -> None:
    """Children run every op, as long as the parent's thread pool has not started."""
    program = """
import os, sys, hisparse_ops
from hisparse_ops.testing import samples
for op in hisparse_ops.ops():
    args = next(samples.samples(op)).args()
    child = os.fork()
    if child == 0:
        hisparse_ops.ops()[op].call(**args)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(f"{op}: {code}")
    hisparse_ops.ops()[op].call(**args)
"""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=120, env=env
    )
    assert done.returncode == 0, done.stderr[-500:]


def _resolve_once() -> int:
    args = next(samples.samples("resolve")).args()
    hs.resolve(**args)
    return int(args["valid_counts"].sum())


def test_spawned_processes_run_ops() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.starmap(_resolve_once, [(), ()])
    assert first == second == _resolve_once()


@pytest.mark.parametrize("validating", [False, True])
def test_interpreter_ends_with_ops_in_threads_and_exit_handlers(validating: bool) -> None:
    """Threads that outlive the main one, which Python joins, and calls while it shuts down."""
    program = f"""
import atexit, threading, time, torch, hisparse_ops
hisparse_ops.validate({validating})
slots, count = torch.arange(1 << 12), torch.tensor([1 << 11])
def work(seconds):
    out, end = torch.empty_like(slots), time.time() + seconds
    while time.time() < end:
        hisparse_ops.pad_slots(slots, count, out)
    print("done", flush=True)
atexit.register(work, 0.1)
for _ in range(4):
    threading.Thread(target=work, args=(0.5,)).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout.count(b"done")) == (0, 5), done.stderr[-500:]


def test_validation_serves_many_threads() -> None:
    def work(thread: int) -> str:
        slots = torch.tensor([thread, thread])
        try:
            hs.pad_slots(slots, torch.tensor([2]), torch.zeros(2, dtype=torch.int64))
        except hs.ValidationError as error:
            return str(error)
        return ""

    with hs.validate():
        found = together(work)
    assert found == [
        f"pad_slots: slots[1] must name each row once, got {i} again" for i in range(THREADS)
    ]


def test_plain_results_pickle() -> None:
    for value in (hs.backends(), hs.StateReport(1, 2, 3, 4), hs.__version__):
        assert pickle.loads(pickle.dumps(value)) == value
