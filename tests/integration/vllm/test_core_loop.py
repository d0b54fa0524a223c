"""vLLM Core over long random schedules: every KV row that attention reads is the row written for that token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")

from hisparse_vllm.testing.core_loop import CoreLoop, Settings, drive

MakeLoop = Callable[..., CoreLoop]


@pytest.fixture
def make_loop(tmp_path: Path) -> Iterator[MakeLoop]:
    made: list[CoreLoop] = []

    def make(**settings: Any) -> CoreLoop:
        made.append(CoreLoop(Settings(**settings), tmp_path))
        return made[-1]

    yield make
    for loop in made:
        loop.close()


def rows(seen: Counter[str]) -> int:
    return sum(n for name, n in seen.items() if name.endswith(" rows"))


# Small pools: pages are lost, requests preempted, rows evicted. Each says what it is there for.
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "bf16": {"device_blocks": 64},
    "late mirror": {"eager_host_mirror": False, "device_blocks": 72},
    "c8": {"c8": True, "device_blocks": 64},
    "mtp1": {"draft_tokens": 1, "device_blocks": 120},
    "mtp3, tight hot buffer": {"draft_tokens": 3, "hot_size": 64, "device_blocks": 130},
}
MORE: dict[str, dict[str, Any]] = {
    "mtp2, c8, late mirror": {
        "draft_tokens": 2,
        "c8": True,
        "eager_host_mirror": False,
        "device_blocks": 130,
    },
    "rows written again": {"stale_owners": True, "device_blocks": 64},
    "no prefix cache": {"prefix_caching": False, "device_blocks": 64},
    "one group of six layers": {"layers": 6, "leader_every": 6, "device_blocks": 80},
    "every layer leads": {"leader_every": 1, "device_blocks": 80},
    "tight hot buffer": {"hot_size": 16, "device_blocks": 64},
    "odd hot buffer": {"hot_size": 37, "device_blocks": 72},
    "host pool runs out": {"host_pool_gib": 0.003, "device_blocks": 96},
    "chunks of 48": {"max_num_batched_tokens": 48, "device_blocks": 72},
    "large pages": {"block_size": 64, "max_model_len": 1024, "device_blocks": 40},
    "many requests": {"max_num_seqs": 16, "max_num_batched_tokens": 256, "device_blocks": 160},
    "wide top-k": {"top_k": 128, "device_blocks": 120},
    "mtp3, all accepted": {"draft_tokens": 3, "accept": 1.0, "device_blocks": 130},
    "mtp3, all rejected": {"draft_tokens": 3, "accept": 0.0, "device_blocks": 130},
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_row_is_the_one_written(name: str, make_loop: MakeLoop) -> None:
    seen = drive(make_loop(**CONFIGURATIONS[name], seed=1), requests=14)
    assert rows(seen) >= 50_000, seen
    for what in (
        "decode rows",
        "staged rows",
        "resident rows",
        "host rows",
        "hot hits",
        "hot loads",
    ):
        assert seen[what] > 0, (what, seen)
    assert seen["preemptions"] > 0, seen


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CONFIGURATIONS | MORE)
def test_every_row_is_the_one_written_for_long(name: str, seed: int, make_loop: MakeLoop) -> None:
    seen = drive(make_loop(**(CONFIGURATIONS | MORE)[name], seed=100 + seed), requests=60)
    assert rows(seen) >= 100_000, seen
    assert seen["hot hits"] > 0 and seen["hot loads"] > 0, seen


def test_state_rows_are_not_batch_rows(make_loop: MakeLoop) -> None:
    """The tables differ where it matters, or a kernel that mixes them up would pass."""
    loop = make_loop(device_blocks=64)
    for i in range(4):
        loop.add(f"r{i}", list(range(2 + i, 130 + i)), 20)
    different = 0
    while loop.unfinished:
        loop.step()
        states = [request.state_row for request in loop.running.values()]
        different += states != list(range(len(states)))
    assert different > 10


def test_the_slab_has_other_layers_between_its_pages(make_loop: MakeLoop) -> None:
    hot = make_loop().layers[0].hisparse_cache.runtime.hot
    assert hot.attention_block_stride > hot.block_size
    assert hot.cache.stride(0) > hot.cache.shape[1] * hot.cache.stride(1)


def test_a_written_row_is_not_a_hit_again(make_loop: MakeLoop) -> None:
    """Core's own call after a forward, on Core's own tables.

    By itself Core rewrites a row only while its page is resident, where no schedule finds a hot copy of it: the copy
    is put into the table by hand.
    """
    loop = make_loop(device_blocks=64)
    loop.add("r", list(range(2, 130)), 60)
    while loop.seen["decode rows"] < 500:
        loop.step()
    leader = loop.layers[0].hisparse_cache
    owners = leader.runtime.index_group.device_global_indices
    state = loop.running["r"].state_row
    written, kept = 5, 6
    owners[state, 3], owners[state, 4] = written, kept
    leader.runtime.invalidate_written_slots(
        torch.tensor([written]), torch.tensor([0], dtype=torch.int32)
    )
    assert owners[state, 3:5].tolist() == [-1, kept]
