"""The decode step as composed over Core, captured and replayed: what a device graph does, done with what a CPU has.

Capturing writes down every op that runs with the tensors it ran on; replaying runs the same ops on the same tensors and
nothing else, so Python of Core that depends on contents would show. What changes between replays is written into the
tensors, as it is on a device.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")

from hisparse_vllm.testing.core_loop import CoreLoop, Settings


class Capture(TorchDispatchMode):
    """Writes down what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for func, args, kwargs, captured in self.calls:
            returns = func._schema.returns
            if returns and all(
                r.alias_info is not None and not r.alias_info.is_write for r in returns
            ):
                continue  # a view: it is there already
            result = func(*args, **kwargs)
            if isinstance(result, Tensor) and returns[0].alias_info is None:
                captured.copy_(result)  # a temporary: at the address it had


class Step:
    """One index group's decode step on tensors at fixed addresses, with room for more rows than requests."""

    def __init__(self, loop: CoreLoop) -> None:
        self.loop = loop
        self.layers = [layer for layer in loop.layers if layer.group is loop.layers[0].group]
        runtime = self.layers[0].hisparse_cache.runtime
        self.group = runtime.index_group
        self.rows = runtime.max_swap_rows
        self.topk = torch.full((self.rows, loop.settings.top_k), -1, dtype=torch.int32)
        self.requests = torch.zeros(self.rows, dtype=torch.int32)
        self.starts = torch.zeros(2, dtype=torch.int32)
        self.slab = runtime.hot_backing

    def fill(self, chance: random.Random, real: int) -> None:
        """``real`` rows of random picks; the rows after them are padding that names request 0."""
        self.topk.fill_(-1)
        self.requests.zero_()
        self.starts[1] = real
        names = list(self.loop.last_batch)
        for row in range(real):
            self.requests[row] = row
            context = self.loop.running[names[row]].computed
            picked = chance.sample(range(context), min(context, self.topk.shape[1]))
            self.topk[row, : len(picked)] = torch.tensor(picked, dtype=torch.int32)
        self.topk[real:, :3] = 1  # what an earlier step left in the padding

    def run(self) -> None:
        metadata = SimpleNamespace(
            req_id_per_token=self.requests,
            block_size=self.loop.settings.block_size,
            query_start_loc=self.starts,
            num_actual_tokens=self.rows,
            num_decode_tokens=self.rows,
            num_reqs=self.rows,
            max_query_len=1,
        )
        self.layers[0].group.prepare_for_batch(0, metadata)
        for layer in self.layers:
            layer.group.convert_logical_to_physical_topk(
                layer.index, self.topk, metadata, block_stride_rows=None, return_valid_counts=True
            )

    def results(self) -> dict[str, Tensor]:
        shared = self.group.shared_topk
        return {
            "attention indices": shared.physical_topk_indices,
            "valid counts": shared.valid_topk_counts,
            "refill counts": shared.swap_counts,
            "owners": self.group.device_global_indices,
            "LRU": self.group.lru_slots,
            "hits and loads": self.group.swap_stats.view(torch.int64),
            "slab": self.slab,
        }


@pytest.fixture
def step(tmp_path: Path) -> Any:
    loop = CoreLoop(Settings(device_blocks=64, max_num_seqs=6, seed=3), tmp_path)
    for i in range(5):
        loop.add(f"r{i}", [loop.random.randrange(2, 500) for _ in range(100)], 60)
    for _ in range(500):
        loop.step()
        if loop.seen["hot loads"] > 40 and len(loop.last_batch) >= 3 and loop.last_was_decode:
            break
    else:
        pytest.fail("no decode step of three requests that loads rows")
    yield Step(loop)
    loop.close()


def after(step: Step, before: dict[str, Tensor], run: Callable[[], None]) -> dict[str, Tensor]:
    for name, tensor in step.results().items():
        tensor.copy_(before[name])
    run()
    return {name: tensor.clone() for name, tensor in step.results().items()}


def test_a_captured_step_replayed_with_other_contents_equals_eager(step: Step) -> None:
    chance = random.Random(5)
    step.fill(chance, real=3)
    capture = Capture()
    with capture:
        step.run()
    ops = {func.name() for func, *_ in capture.calls}
    assert "_C_cache_ops::hisparse_resolve_residency" in ops
    assert "_C_cache_ops::hisparse_gather_compact" in ops
    addresses = {name: tensor.data_ptr() for name, tensor in step.results().items()}
    loads = 0
    for real in (3, 1, 2, 0, 3, 3, 2):
        step.fill(chance, real)
        before = {name: tensor.clone() for name, tensor in step.results().items()}
        eager = after(step, before, step.run)
        replayed = after(step, before, capture.replay)
        for name in eager:
            assert torch.equal(eager[name], replayed[name]), (name, real)
        counts = replayed["valid counts"][: step.rows]
        assert (
            not counts[real:].any()
            and (replayed["attention indices"][real : step.rows] == -1).all()
        )
        assert (counts[:real] == (step.topk[:real] >= 0).sum(1)).all()
        loads += int(replayed["hits and loads"][1] - before["hits and loads"][1])
    assert loads > 20
    assert addresses == {name: tensor.data_ptr() for name, tensor in step.results().items()}


def test_the_comparison_notices_a_step_that_was_not_replayed(step: Step) -> None:
    chance = random.Random(5)
    step.fill(chance, real=3)
    capture = Capture()
    with capture:
        step.run()
    capture.calls = [call for call in capture.calls if "gather_compact" not in call[0].name()]
    step.fill(chance, real=3)
    before = {name: tensor.clone() for name, tensor in step.results().items()}
    eager, replayed = after(step, before, step.run), after(step, before, capture.replay)
    assert not torch.equal(eager["slab"], replayed["slab"])
