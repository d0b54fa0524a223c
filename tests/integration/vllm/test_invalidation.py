"""Written and recycled rows of all index groups are forgotten in one op call."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hisparse_ops
from hisparse_vllm import invalidation


def runtime(*owners: int) -> Any:
    return SimpleNamespace(
        index_group=SimpleNamespace(
            device_global_indices=torch.tensor([owners], dtype=torch.int32)
        ),
        request_state_indices=torch.zeros(1, dtype=torch.int32),
        device=torch.device("cpu"),
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    made: Counter[str] = Counter()
    for name in ("invalidate_written", "invalidate_recycled"):
        real = getattr(hisparse_ops, name)

        def counted(*args: Any, real: Any = real, name: str = name) -> None:
            made[name] += 1
            real(*args)

        monkeypatch.setattr(hisparse_ops, name, counted)
    return made


def test_groups_of_a_step_share_one_call(calls: Counter[str]) -> None:
    groups = [runtime(4, 9, 4), runtime(9, 1)]
    slots, requests = torch.tensor([9]), torch.zeros(1, dtype=torch.int32)

    def mirror(worker: Any) -> None:
        for group in groups:
            invalidation.invalidate_written_slots(group, slots, requests)
        assert not calls  # not before the loop is through

    invalidation.grouped(mirror)(None)
    assert calls == {"invalidate_written": 1}
    assert [g.index_group.device_global_indices.tolist() for g in groups] == [
        [[4, -1, 4]],
        [[-1, 1]],
    ]


def test_groups_that_wrote_other_tokens_keep_their_own(calls: Counter[str]) -> None:
    a, b = runtime(4, 9), runtime(4, 9)
    request = torch.zeros(1, dtype=torch.int32)

    def mirror(worker: Any) -> None:
        invalidation.invalidate_written_slots(a, torch.tensor([9]), request)
        invalidation.invalidate_written_slots(b, torch.tensor([4]), request)

    invalidation.grouped(mirror)(None)
    assert calls == {"invalidate_written": 2}
    assert a.index_group.device_global_indices.tolist() == [[4, -1]]
    assert b.index_group.device_global_indices.tolist() == [[-1, 9]]


def test_outside_a_step_it_acts_at_once(calls: Counter[str]) -> None:
    group = runtime(4, 9)
    request = torch.zeros(3, dtype=torch.int32)
    invalidation.invalidate_written_slots(
        group, torch.tensor([9, 4]), request[:1]
    )  # the shorter counts
    invalidation.invalidate_written_slots(group, torch.tensor([], dtype=torch.int64), request)
    assert calls == {"invalidate_written": 1}
    assert group.index_group.device_global_indices.tolist() == [[4, -1]]


def test_a_mirror_that_fails_leaves_no_calls_behind(calls: Counter[str]) -> None:
    def mirror(worker: Any) -> None:
        invalidation.invalidate_written_slots(
            runtime(9), torch.tensor([9]), torch.zeros(1, dtype=torch.int32)
        )
        raise RuntimeError("no source slot mapping")

    with pytest.raises(RuntimeError, match="no source slot mapping"):
        invalidation.grouped(mirror)(None)
    assert not calls and invalidation._collected is None


def test_recycled_blocks_in_any_order(calls: Counter[str]) -> None:
    groups = [runtime(17, 50, 32), runtime(48, 15, 63)]
    worker = SimpleNamespace(
        kernel_block_size=16,
        leader_runtimes=groups,
        cache_handles=[SimpleNamespace(runtime=groups[0])],
    )
    states = torch.zeros(1, dtype=torch.int32)
    invalidation.invalidate_blocks(worker, [3, 1], states)
    invalidation.invalidate_blocks(worker, [], states)
    assert calls == {"invalidate_recycled": 1}
    owners = [g.index_group.device_global_indices.tolist() for g in groups]
    assert owners == [[[-1, -1, 32]], [[-1, 15, -1]]]


def test_core_makes_one_call_a_step(tmp_path: Path, calls: Counter[str]) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")
    core_loop = importlib.import_module("hisparse_vllm.testing.core_loop")
    loop = core_loop.CoreLoop(core_loop.Settings(layers=6, leader_every=2), tmp_path)
    loop.add("r", list(range(2, 60)), 10)
    while loop.unfinished:
        loop.step()
    steps = loop.seen["steps"]
    loop.close()
    assert steps - 2 <= calls["invalidate_written"] <= steps
    assert 1 <= calls["invalidate_recycled"] <= steps
