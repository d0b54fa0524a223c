"""Rows that a prefill reads, staged layer by layer; the host rows of the next layer may come ahead of time.

A prefill whose context is not wholly on the device reads from a *staging*: the pages of its requests one after the
other, where Core's plan says. A row of it comes from the resident cache where the page has a device copy, else from the
host. :class:`PrefillBridge` fills it in one of two ways:

====================  ================================================  ===============================
                      first                                             then
====================  ================================================  ===============================
at the layer          resident rows, ``invalid="row0"``: all defined    host rows over those it missed
ahead of the layer    host rows, while the layer before is attended to  resident rows, ``invalid="keep"``
====================  ================================================  ===============================

Ahead of the layer only host rows can be read: its resident rows of this step are not written yet. They are patched in
when the layer asks, and rows without a device copy keep what was staged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import hisparse_ops


@dataclass
class Staging:
    """One buffer, and whose rows it holds. Owners are compared by identity."""

    memory: Tensor | None = None
    plan: Any = None
    runtime: Any = None
    source_key: Any = None

    def release(self) -> None:
        self.plan = self.runtime = self.source_key = None

    def own(self, plan: Any, runtime: Any) -> Tensor:
        """The buffer as pages of this plan for this runtime; grown where it is too small."""
        self.plan, self.runtime, self.source_key = plan, runtime, plan.gpu_source_key
        shape = (plan.row_ids.shape[1] // plan.block_size, plan.block_size, runtime.row_width)
        size = shape[0] * shape[1] * shape[2] * runtime.kv_dtype.itemsize
        if self.memory is None or self.memory.numel() < size:
            # Also written outside inference mode later, which an inference tensor forbids.
            with torch.inference_mode(False):
                self.memory = torch.empty(size, dtype=torch.uint8, device=plan.block_table.device)
        return self.memory[:size].view(runtime.kv_dtype).view(shape)


@dataclass
class PrefillBridge:
    """Stages the rows of prefills, one layer at the time and up to ``lookahead`` layers of its index group ahead.

    The returned staging is the caller's until its next call of :meth:`stage`. ``lookahead + 1`` buffers are all there
    ever are: a layer comes ahead only into a buffer that nobody owns.
    """

    lookahead: int = 1
    buffers: list[Staging] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.lookahead < 0:
            raise ValueError(f"lookahead must be 0 or more, got {self.lookahead}")
        self.buffers = [Staging() for _ in range(self.lookahead + 1)]

    def stage(
        self,
        group: Any,
        layer: int,
        metadata: Any,
        ahead: Callable[[int], Any] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Stage the prefill rows of ``metadata`` for a layer of an index group.

        Parameters
        ----------
        group : HiSparseMLAIndexGroup
            Core's index group.
        layer : int
            Index of the layer in it.
        metadata : SparseMLACommonMetadata
            With ``prefill.host_staging_plan``.
        ahead : callable, optional
            Metadata of a later layer of the group in this forward pass, or None. Layers of one index group may stand in
            several KV cache groups, each with tables and a plan of its own. Default: those of this layer.

        Returns
        -------
        staging : Tensor
            ``[pages, block_size, width]``, owned by the caller until the next call.
        block_table : Tensor
            Page of ``staging`` of every page of every prefill request.
        request_rows : Tensor
            Row of ``block_table`` of every prefill token.
        """
        plan = metadata.prefill.host_staging_plan
        handle = group.cache(layer)
        runtime = handle.runtime
        resident = _resident_rows(handle, plan, metadata)
        came = self._claim(group, layer, plan)
        if came is None:
            staging = next(x for x in self.buffers if x.plan is None).own(plan, runtime)
            if resident is not None:
                hisparse_ops.copy_resident_rows(
                    resident, plan.gpu_row_ids[0], staging, invalid="row0"
                )
            _copy_host_rows(runtime, plan, staging)
        else:
            staging = came.own(plan, runtime)
            _current_stream().wait_event(group.prefill_ready_events[layer])
            hisparse_ops.copy_resident_rows(resident, plan.gpu_row_ids[0], staging, invalid="keep")
        for later in range(layer + 1, min(layer + 1 + self.lookahead, group.num_layers)):
            self._stage_ahead(group, later, ahead(later) if ahead else metadata)
        return staging, plan.block_table, _request_rows(metadata)

    def _claim(self, group: Any, layer: int, plan: Any) -> Staging | None:
        """This layer's rows if they came ahead; every other buffer that no later layer owns becomes free."""
        later = [group.cache(i).runtime for i in range(layer, group.num_layers)] if layer else []
        claimed = None
        for buffer in self.buffers:
            if not any(buffer.runtime is runtime for runtime in later):
                buffer.release()
            elif buffer.runtime is later[0]:
                claimed = buffer
        if claimed is not None and (
            claimed.plan is not plan or claimed.source_key != plan.gpu_source_key
        ):
            claimed.release()  # another batch's, or of what another resident table misses
            return None
        return claimed

    def _stage_ahead(self, group: Any, layer: int, metadata: Any) -> None:
        """Copy the host rows of a later layer into a free buffer, if it will read from a staging at all."""
        handle = group.cache(layer)
        buffer = next((x for x in self.buffers if x.plan is None), None)
        if (
            buffer is None
            or any(x.runtime is handle.runtime for x in self.buffers)
            or handle.all_context_pages_resident
            or getattr(metadata, "prefill", None) is None
        ):
            return
        plan = metadata.prefill.host_staging_plan
        if _resident_rows(handle, plan, metadata) is None:
            return  # its own rows of this step would have to come from the host
        # Attention over what this buffer held before is on the compute stream.
        group.prefill_stream.wait_stream(_current_stream())
        with group.prefill_stream:
            _copy_host_rows(handle.runtime, plan, buffer.own(plan, handle.runtime))
            group.prefill_ready_events[layer].record(group.prefill_stream)


def _resident_rows(handle: Any, plan: Any, metadata: Any) -> Tensor | None:
    """The layer's resident cache, with the plan's sources in it looked up by the *current* request rows."""
    if handle.view is None or handle.block_table is None:
        return None
    states = handle.runtime.request_state_indices[metadata.num_decodes :]
    plan.ensure_gpu_sources(handle.block_table, states, handle.view.block_size)
    cache: Tensor = handle.view.cache
    return cache if plan.gpu_row_ids is not None else None


def _copy_host_rows(runtime: Any, plan: Any, staging: Tensor) -> None:
    hisparse_ops.gather_plan(
        runtime.host_cache, staging, plan.row_ids, plan.dst_rows, plan.miss_mask
    )


def _request_rows(metadata: Any) -> Tensor:
    """Row of the plan's table of every prefill token: requests are counted from the first prefill on."""
    rows = metadata.req_id_per_token[metadata.num_decode_tokens :]
    return rows - metadata.num_decodes if metadata.num_decodes else rows


def _current_stream() -> Any:
    from vllm.v1.attention.backends.mla import index_group

    return index_group.current_stream()
