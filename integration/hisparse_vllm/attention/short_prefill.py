"""Short prefills without the indexer's scoring: while a request sees no more than top-k tokens, all are picked.

Opt-in, by ``--additional-config '{"enable_sfa_full_visible_index_bypass": true}'``. The indexer still writes its keys;
what it skips is the scoring. Indices come from a read-only table made at start-up, one for each device, so that the
request path is a slice: no allocation, no copy between devices, no host read of device data. Whatever a condition below
does not prove goes through the indexer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import hisparse_ops

OPTION = "enable_sfa_full_visible_index_bypass"
BLOCK_SIZE = 128

_tables: dict[tuple[torch.device, int], Tensor] = {}


@dataclass(frozen=True)
class Layer:
    """What is known of an indexer layer when it is built."""

    enabled: bool
    top_k: int
    skips_top_k: bool = False
    """The layer reuses another's top-k: it has no scoring to skip."""
    is_draft: bool = False
    speculative: bool = False
    c8_main: bool = False
    c8_indexer: bool = False
    context_parallel: bool = False


@dataclass(frozen=True)
class Step:
    """What is known of a step on the host."""

    num_requests: int
    num_tokens: int
    num_rows: int
    """Rows of the top-k buffer to fill; more than ``num_tokens`` where a graph pads."""
    block_size: int
    seq_lens: Tensor | None
    """Lengths of the requests *on the host*, or None where only the device has them."""
    device: torch.device


# Each keeps the bypass closed until it is proven; named for the documentation and the tests.
LAYER_CONDITIONS: dict[str, Callable[[Layer], bool]] = {
    "turned on": lambda layer: layer.enabled,
    "scores its own top-k": lambda layer: not layer.skips_top_k,
    "no layer of a drafter": lambda layer: not layer.is_draft,
    "no speculative decoding": lambda layer: not layer.speculative,
    "main cache is not C8": lambda layer: not layer.c8_main,
    "indexer cache is not C8": lambda layer: not layer.c8_indexer,
    "no context parallelism": lambda layer: not layer.context_parallel,
}
STEP_CONDITIONS: dict[str, Callable[[Layer, Step], bool]] = {
    "one sequence": lambda layer, step: step.num_requests == 1,
    "a prefill": lambda layer, step: step.num_tokens > 1,
    "no padding": lambda layer, step: step.num_tokens == step.num_rows,
    "pages of 128": lambda layer, step: step.block_size == BLOCK_SIZE,
    "length known on the host": lambda layer, step: (
        step.seq_lens is not None
        and step.seq_lens.device.type == "cpu"
        and step.seq_lens.numel() == 1
    ),
    "length covers the tokens": lambda layer, step: int(step.seq_lens[0]) >= step.num_tokens,  # type: ignore[index]
    "all visible KV within top-k": lambda layer, step: int(step.seq_lens[0]) <= layer.top_k,  # type: ignore[index]
    "table on the device": lambda layer, step: (step.device, layer.top_k) in _tables,
}


def prepare(device: torch.device, top_k: int) -> int:
    """Make the table of a device, once, before any request; returns its bytes (16,785,408 for a top-k of 2048)."""
    key = (device, top_k)
    if key not in _tables:
        table = torch.empty(top_k + 1, top_k, dtype=torch.int32, device=device)
        hisparse_ops.fill_full_visible(table)
        _tables[key] = table
    return _tables[key].nbytes


def drop() -> None:
    """Free every table."""
    _tables.clear()


def indices(layer: Layer, step: Step) -> Tensor | None:
    """``[num_tokens, top_k]``: token i sees all positions up to its own; None where the indexer must score.

    A view of the shared table: copy it, never write to it.
    """
    if not all(holds(layer) for holds in LAYER_CONDITIONS.values()):
        return None
    if not all(holds(layer, step) for holds in STEP_CONDITIONS.values()):
        return None
    assert step.seq_lens is not None
    return hisparse_ops.full_visible_indices(
        _tables[step.device, layer.top_k],
        context_length=int(step.seq_lens[0]) - step.num_tokens,
        num_tokens=step.num_tokens,
        num_requests=step.num_requests,
        device=step.device,
    )


def layer_of(config: Any, top_k: int, *, c8_indexer: bool, is_draft: bool = False) -> Layer:
    """The facts of an indexer layer from a ``VllmConfig``."""
    extra = config.additional_config if isinstance(config.additional_config, dict) else {}
    parallel = config.parallel_config
    return Layer(
        enabled=bool(extra.get(OPTION, False)),
        top_k=top_k,
        is_draft=is_draft,
        speculative=config.speculative_config is not None,
        c8_main=str(config.cache_config.cache_dtype).startswith("fp8"),
        c8_indexer=c8_indexer,
        context_parallel=parallel.prefill_context_parallel_size > 1
        or parallel.decode_context_parallel_size > 1,
    )
