"""Staging of prefill rows, at the layer and ahead of it: the bytes, whose they are, and how many buffers there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hisparse_vllm import prefill
from hisparse_vllm.core.device import CpuStream
from hisparse_vllm.prefill import PrefillBridge

SIZE, WIDTH, PAGES, RESIDENT, LAYERS = 4, 6, 9, 7, 3


@dataclass(eq=False)
class Plan:
    """The fields of Core's plan that the bridge reads: pages 0 (null), then those listed."""

    pages: list[int]
    block_size: int = SIZE
    gpu_row_ids: Tensor | None = None
    gpu_source_key: Any = None
    states: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.row_ids = rows_of_pages(self.pages)
        self.dst_rows = torch.arange(self.row_ids.shape[1], dtype=torch.int32)[None]
        self.miss_mask = (self.row_ids >= 0).int()
        self.block_table = torch.arange(len(self.pages), dtype=torch.int32)[None]

    def ensure_gpu_sources(self, table: Tensor, states: Tensor, block_size: int) -> None:
        """Page i of the plan is on the device where the request's row of ``table`` says so."""
        self.states.append(states.tolist())
        self.gpu_source_key = (table.data_ptr(), block_size)
        blocks = table[int(states[0])][: len(self.pages)].tolist()
        self.gpu_row_ids = rows_of_pages([b if b > 0 else -1 for b in blocks])
        self.miss_mask = ((self.gpu_row_ids < 0) & (self.row_ids >= 0)).int()


def rows_of_pages(pages: list[int]) -> Tensor:
    rows = [[p * SIZE + i if p >= 0 else -1 for i in range(SIZE)] for p in pages]
    return torch.tensor(rows, dtype=torch.int32).view(1, -1)


class World:
    """An index group with layers in one slab, and a prefill of request state 2 whose pages are partly resident."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        gen = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randint(0, 100, shape, generator=gen).to(dtype)

        slab = draw(RESIDENT, LAYERS, SIZE, WIDTH)
        self.table = torch.tensor([[6] * 5, [6] * 5, [0, 3, 0, 5, 0]], dtype=torch.int32)
        self.handles = [
            SimpleNamespace(
                runtime=SimpleNamespace(
                    host_cache=draw(PAGES * SIZE, WIDTH),
                    row_width=WIDTH,
                    kv_dtype=dtype,
                    request_state_indices=torch.tensor([0, 2, -1], dtype=torch.int32),
                ),
                view=SimpleNamespace(cache=slab[:, i], block_size=SIZE),
                block_table=self.table,
                all_context_pages_resident=False,
            )
            for i in range(LAYERS)
        ]
        event = SimpleNamespace(record=lambda stream: None)
        self.group = SimpleNamespace(
            cache=self.handles.__getitem__,
            num_layers=LAYERS,
            prefill_stream=CpuStream(),
            prefill_ready_events=[event] * LAYERS,
        )
        self.metadata = SimpleNamespace(
            prefill=SimpleNamespace(host_staging_plan=Plan([0, 4, 7, 2, -1])),
            req_id_per_token=torch.tensor([0, 1, 1, 1]),
            num_decode_tokens=1,
            num_decodes=1,
        )

    @property
    def plan(self) -> Plan:
        plan: Plan = self.metadata.prefill.host_staging_plan
        return plan

    def check(self, layer: int, staging: Tensor) -> None:
        """Pages 1 and 3 come from the resident cache, 0 and 2 from the host; page 4 is padding."""
        handle = self.handles[layer]
        host = handle.runtime.host_cache.view(PAGES, SIZE, WIDTH)
        for page, expected in enumerate(
            (host[0], handle.view.cache[3], host[7], handle.view.cache[5])
        ):
            assert torch.equal(staging[page], expected), (layer, page)


@pytest.fixture(autouse=True)
def no_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "_current_stream", CpuStream)


@pytest.mark.parametrize("lookahead", [0, 1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8])
def test_every_layer_gets_its_rows(lookahead: int, dtype: torch.dtype) -> None:
    world, bridge = World(dtype), PrefillBridge(lookahead)
    for _ in range(2):
        for layer in range(LAYERS):
            # The step writes a resident row right before the layer reads: after it was staged ahead.
            world.handles[layer].view.cache[3, 1] += 1
            staging, table, requests = bridge.stage(world.group, layer, world.metadata)
            world.check(layer, staging)
            assert table is world.plan.block_table and requests.tolist() == [0, 0, 0]
        world.metadata.prefill = SimpleNamespace(host_staging_plan=Plan([0, 4, 7, 2, -1]))
    assert len(bridge.buffers) == lookahead + 1


def test_the_request_rows_are_those_after_the_decodes() -> None:
    world = World()
    PrefillBridge().stage(world.group, 0, world.metadata)
    assert world.plan.states[0] == [2, -1]


def test_host_rows_come_ahead_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    world, bridge = World(), PrefillBridge(1)
    copied: list[int] = []
    copy = prefill._copy_host_rows

    def counted(runtime: Any, plan: Any, staging: Tensor) -> None:
        copied.append(next(i for i, h in enumerate(world.handles) if h.runtime is runtime))
        copy(runtime, plan, staging)

    monkeypatch.setattr(prefill, "_copy_host_rows", counted)
    for layer, expected in enumerate(([0, 1], [0, 1, 2], [0, 1, 2])):
        bridge.stage(world.group, layer, world.metadata)
        assert copied == expected


def test_a_staging_is_the_callers_until_the_next_call() -> None:
    world, bridge = World(), PrefillBridge(1)
    first, *_ = bridge.stage(world.group, 0, world.metadata)
    world.check(0, first)  # after rows of the next layer came ahead
    ahead = next(x for x in bridge.buffers if x.runtime is world.handles[1].runtime)
    assert ahead.memory is not None and ahead.memory.data_ptr() != first.data_ptr()


def test_rows_of_another_batch_are_not_taken() -> None:
    """A step that ends early leaves rows behind; the next one has a plan of its own."""
    world, bridge = World(), PrefillBridge(1)
    bridge.stage(world.group, 0, world.metadata)
    world.metadata.prefill = SimpleNamespace(host_staging_plan=Plan([0, 4, 7, 2, -1]))
    world.handles[1].runtime.host_cache += 1
    staging, *_ = bridge.stage(world.group, 1, world.metadata)
    world.check(1, staging)


def test_the_same_plan_again_starts_anew() -> None:
    world, bridge = World(), PrefillBridge(1)
    bridge.stage(world.group, 0, world.metadata)
    for handle in world.handles:
        handle.runtime.host_cache += 1
    for layer in range(LAYERS):
        staging, *_ = bridge.stage(world.group, layer, world.metadata)
        world.check(layer, staging)


@pytest.mark.parametrize(
    "change",
    [
        {"all_context_pages_resident": True},
        {"block_table": None},
        {"view": None},
    ],
)
def test_nothing_comes_ahead_for_a_layer_that_reads_otherwise(change: dict[str, Any]) -> None:
    world, bridge = World(), PrefillBridge(1)
    vars(world.handles[1]).update(change)
    bridge.stage(world.group, 0, world.metadata)
    assert not any(x.runtime is world.handles[1].runtime for x in bridge.buffers)


@pytest.mark.parametrize("same_plan", [True, False])
def test_layers_with_tables_of_their_own(same_plan: bool) -> None:
    """Layers of one index group in two KV cache groups: other resident pages, and mostly another plan."""
    world, bridge = World(), PrefillBridge(1)
    world.handles[1].block_table = torch.tensor([[6] * 5, [6] * 5, [4, 0, 0, 0, 0]])
    other = SimpleNamespace(**vars(world.metadata))
    if not same_plan:
        other.prefill = SimpleNamespace(host_staging_plan=Plan([0, 3, 1, 8, -1]))
    bridge.stage(world.group, 0, world.metadata, ahead=lambda layer: other)
    staging, *_ = bridge.stage(world.group, 1, other, ahead=lambda layer: None)
    handle = world.handles[1]
    host = handle.runtime.host_cache.view(PAGES, SIZE, WIDTH)
    pages = [4, 7, 2] if same_plan else [3, 1, 8]
    assert torch.equal(staging[0], handle.view.cache[4])
    assert torch.equal(staging[1:4], host[pages])


def test_a_layer_without_metadata_is_not_staged_ahead() -> None:
    world, bridge = World(), PrefillBridge(1)
    bridge.stage(world.group, 0, world.metadata, ahead=lambda layer: None)
    assert sum(x.plan is not None for x in bridge.buffers) == 1


def test_without_resident_pages_all_comes_from_the_host() -> None:
    world = World()
    world.handles[0].block_table = None
    staging, *_ = PrefillBridge().stage(world.group, 0, world.metadata)
    host = world.handles[0].runtime.host_cache.view(PAGES, SIZE, WIDTH)
    assert torch.equal(staging[:4], host[[0, 4, 7, 2]])


def test_buffers_made_under_inference_mode_are_ordinary_tensors() -> None:
    world, bridge = World(), PrefillBridge(1)
    with torch.inference_mode():
        bridge.stage(world.group, 0, world.metadata)
    assert all(x.memory is not None and not x.memory.is_inference() for x in bridge.buffers)
    staging, *_ = bridge.stage(world.group, 1, world.metadata)
    world.check(1, staging)


def test_a_negative_lookahead_is_refused() -> None:
    with pytest.raises(ValueError, match="lookahead must be 0 or more, got -1"):
        PrefillBridge(-1)
