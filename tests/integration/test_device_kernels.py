"""Whole programs of decode steps with the device kernels, interpreted, beside the same programs with the CPU ops."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import hisparse_ops as hs
from hisparse_ops import triton
from hisparse_ops.testing.model import REQUESTS, World, act
from tests.integration.test_decode_step import (
    Server,
    assert_same_state,
    attention,
    decode_step,
    next_inputs,
    run,
    server,
)

interpreter = pytest.importorskip(
    "hisparse_ops.testing.interpreter",
    reason="triton is not installed",
    exc_type=ModuleNotFoundError,
)


class DeviceWorld(World):
    """A world whose ops, all but the resolver, are the Triton kernels."""

    used: set[str] = set()  # noqa: RUF012

    def call(self, op: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self.counts.calls += 1
        name = op.__name__
        if name not in triton.OPS:
            return op(*args, **kwargs)
        self.used.add(name)
        interpreter.call(name, dict(inspect.signature(op).bind(*args, **kwargs).arguments))


def state(world: World) -> Iterator[tuple[str, torch.Tensor]]:
    """Everything that ops write in a world."""
    yield from (("owner", world.owner), ("lru", world.lru), ("stats", world.stats))
    for layer, (host, slab) in enumerate(zip(world.host, world.slab, strict=True)):
        yield f"host {layer}", host
        yield f"slab {layer}", slab


@pytest.mark.parametrize(
    "seed, actions", [(0, 40), pytest.param(1, 1500, marks=pytest.mark.nightly)]
)
def test_programs_equal_the_cpu_ops(seed: int, actions: int) -> None:
    """Admission, writes, rejected drafts, recycling, spilling and restoring; attention is checked in both."""
    worlds = World(), DeviceWorld()
    choose = random.Random(seed)
    for number in range(actions):
        action = choose.randrange(20), choose.randrange(REQUESTS), choose.randrange(2**20)
        for world in worlds:
            act(world, *action)
        for (name, on_cpu), (_, on_device) in zip(*map(state, worlds), strict=True):
            assert torch.equal(on_cpu, on_device), f"{name} differs after action {number}"
    assert worlds[0].counts == worlds[1].counts
    if actions > 1000:
        assert (worlds[1].stats > 0).all()
        needed = {"gather_compact", "gather_plan", "scatter_rows", "copy_row_spans", "copy_pages"}
        assert needed | {"invalidate_written", "invalidate_recycled"} <= DeviceWorld.used


def step_with_kernels(
    host_cache: torch.Tensor,
    hot_cache: torch.Tensor,
    tables: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
) -> torch.Tensor:
    """The decode step with the gather of the device."""
    inputs = {name: t for name, t in tables.items() if name != "query"}
    num_blocks, block_size, _ = hot_cache.shape
    hs.resolve(
        **inputs,
        **outputs,
        host_rows=host_cache.shape[0],
        num_blocks=num_blocks,
        block_size=block_size,
    )
    plan = {
        "host_rows": outputs["refill_host_rows"],
        "hot_rows": outputs["refill_hot_rows"],
        "counts": outputs["refill_counts"],
    }
    interpreter.call("gather_compact", {"host_cache": host_cache, "hot_cache": hot_cache, **plan})
    indices = outputs["attention_indices"]
    at = indices.clamp_min(0).long()
    return attention(tables["query"], hot_cache[at // block_size, at % block_size], indices >= 0)


def test_decode_step_equals_the_cpu_ops() -> None:
    on_cpu, on_device = server(), server()
    gens = [torch.Generator().manual_seed(5) for _ in range(2)]
    for _ in range(12):
        both: tuple[Server, Server] = (on_cpu, on_device)
        for s, gen in zip(both, gens, strict=True):
            next_inputs(s, gen)
        assert torch.equal(run(on_device, step_with_kernels), run(on_cpu, decode_step))
        assert_same_state(on_device, on_cpu)


@pytest.mark.parametrize("scale_rule", ["amax", "pow2"])
def test_a_written_row_is_read_back_as_on_the_cpu(scale_rule: str) -> None:
    """Writer and reader together, on either side."""
    gen = torch.Generator().manual_seed(3)
    latent = torch.randn(9, 512, generator=gen).bfloat16()
    rope = torch.randn(9, 64, generator=gen).bfloat16()
    slots = torch.randperm(16, generator=gen)[:9].int()
    results = []
    for on_device in (False, True):
        cache = torch.zeros(4, 4, 656, dtype=torch.uint8)
        read, read_rope = torch.empty(9, 512), torch.empty(9, 64, dtype=torch.bfloat16)
        write = {"latent": latent, "rope": rope, "slots": slots, "cache": cache}
        write |= {"layout": "ascend", "scale_rule": scale_rule}
        back = {
            "cache": cache,
            "row_ids": slots,
            "latent": read,
            "rope": read_rope,
            "layout": "ascend",
        }
        for name, args in (("quantize_scatter_c8", write), ("dequantize_c8", back)):
            if on_device:
                interpreter.call(name, args)
            else:
                hs.ops()[name].call(**args)
        results.append((cache, read, read_rope))
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(results[1][2], rope)
    torch.testing.assert_close(results[1][1], latent.float(), rtol=2**-4, atol=1e-3)
