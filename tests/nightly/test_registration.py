"""What PyTorch's own checker says of every op on every branch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops.testing.samples import Sample


def without_float8(value: Any) -> Any:
    """The same bits as uint8: opcheck compares with allclose, which float8 lacks."""
    if isinstance(value, Tensor) and value.is_floating_point() and value.element_size() == 1:
        return value.view(torch.uint8)
    return [without_float8(v) for v in value] if isinstance(value, list) else value


def test_opcheck(op: str, default_sample: Sample) -> None:
    args = {name: without_float8(value) for name, value in default_sample.args().items()}
    torch.library.opcheck(hisparse_ops.ops()[op].call, (), args)
