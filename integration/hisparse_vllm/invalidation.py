"""Hot copies of written and recycled host rows are forgotten in one op call each, for all index groups together.

vLLM 0.32 and 0.33 call an op, or a chain of torch ops, for every index group: 21 of them in GLM-5.2. A Core that groups
them itself needs none of this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import hisparse_ops
from hisparse_vllm.core.device import RUNTIME, WORKER, Adapter

# Calls of the step that is being mirrored: (owners, state rows of requests, request of each token, slots).
_collected: list[tuple[Tensor, Tensor, Tensor, Tensor]] | None = None


def invalidate_written_slots(runtime: Any, written_slots: Tensor, req_id_per_token: Tensor) -> None:
    """Core's method of a runtime: joins the other groups' calls while a step is mirrored, else acts at once."""
    count = min(written_slots.numel(), req_id_per_token.numel())
    if not count:
        return
    call = (
        runtime.index_group.device_global_indices,
        runtime.request_state_indices,
        req_id_per_token[:count],
        written_slots[:count],
    )
    if _collected is not None:
        _collected.append(call)
    else:
        _invalidate([call])


def grouped(mirror: Callable[..., None]) -> Callable[..., None]:
    """Core's ``_enqueue_host_mirror``, whose loop over index groups then makes one op call."""

    def enqueue_host_mirror(worker: Any, *args: Any, **kwargs: Any) -> None:
        global _collected
        _collected = []
        try:
            mirror(worker, *args, **kwargs)
            calls = _collected
        finally:
            _collected = None
        _invalidate(calls)

    return enqueue_host_mirror


def _invalidate(calls: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> None:
    """One op call for all that name the same tokens."""
    while calls:
        _, states, requests, slots = calls[0]
        same = [
            c for c in calls if c[3].data_ptr() == slots.data_ptr() and c[3].shape == slots.shape
        ]
        hisparse_ops.invalidate_written([owners for owners, *_ in same], states, requests, slots)
        calls = [c for c in calls if not any(c is s for s in same)]


def invalidate_blocks(worker: Any, block_ids: list[int], request_state_indices: Tensor) -> None:
    """Core's method of the worker: host blocks that were given to another request are forgotten in every group."""
    if not block_ids:
        return
    size = worker.kernel_block_size
    device = worker.cache_handles[0].runtime.device
    blocks = torch.tensor(sorted(block_ids), dtype=torch.int64)
    slots = (blocks[:, None] * size + torch.arange(size)).flatten()
    hisparse_ops.invalidate_recycled(
        [runtime.index_group.device_global_indices for runtime in worker.leader_runtimes],
        request_state_indices,
        slots.to(device, non_blocking=True),
    )


def adapters(worker_class: Any) -> tuple[Adapter, ...]:
    """What is put in place of Core's loops over index groups."""
    why = "one op call for all index groups instead of one, or a chain of torch ops, for each"
    return (
        Adapter(RUNTIME, "HiSparseRuntime.invalidate_written_slots", invalidate_written_slots, why),
        Adapter(
            WORKER,
            "HiSparseConnectorWorker._enqueue_host_mirror",
            grouped(worker_class._enqueue_host_mirror),
            why,
        ),
        Adapter(WORKER, "HiSparseConnectorWorker.invalidate_blocks", invalidate_blocks, why),
    )


def install() -> None:
    """Put the adapters in place, unless this Core groups its calls itself. A second call does nothing."""
    import importlib

    from hisparse_vllm.core import device, ops

    worker_class = importlib.import_module(WORKER).HiSparseConnectorWorker
    if ops.has_grouped_invalidation() or worker_class.invalidate_blocks is invalidate_blocks:
        return
    device.install(adapters(worker_class))
