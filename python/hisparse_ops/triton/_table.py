"""Lists of tensors as one table of addresses and layouts on the device, so that one launch serves a whole list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

Item = tuple[int, ...]
"""Numbers that say where one tensor of a list is, and how it is laid out."""

MAX_TABLES = 1024
"""Lists that are remembered for calls outside of graphs; a model has a few, each 8 bytes a number."""

_Key = tuple[torch.device, tuple[Item, ...]]
_TABLES: OrderedDict[_Key, Tensor] = OrderedDict()
_CAPTURED: dict[_Key, Tensor] = {}
"""Tables that a captured graph reads. They stay: a replay does not come by here, it reads the address it saw."""


def device_table(op: str, argument: str, items: Sequence[Item], device: torch.device) -> Tensor:
    """``[items, numbers]`` int64 on the device.

    A list that was seen before costs a look-up: no allocation, no copy, the same address. A new one is copied to the
    device, which a graph that is being captured cannot do: the error says so. A table holds numbers only; if memory is
    freed and another tensor of the same layout takes its place, the numbers are right for that one.
    """
    key = (device, tuple(items))
    if key in _CAPTURED:
        return _CAPTURED[key]
    table = _TABLES.pop(key, None)
    if _is_capturing(device):
        if table is None:
            raise RuntimeError(
                f"{op}: {argument} must be a list that was used before the graph is captured, got a new one"
            )
        _CAPTURED[key] = table
        return table
    if table is None:
        table = torch.tensor(items, dtype=torch.int64).to(device)
    _TABLES[key] = table
    if len(_TABLES) > MAX_TABLES:
        _TABLES.popitem(last=False)
    return table


def _is_capturing(device: torch.device) -> bool:
    module = getattr(torch, device.type, None)
    find = getattr(module, "is_current_stream_capturing", None)
    return bool(find is not None and device.type != "cpu" and find())
