"""Every documented error: the same text from the CPU kernel and the fake, and nothing touched."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

import hisparse_ops
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import BadArgument


def wrong_args(op: str, bad: BadArgument) -> dict[str, Any]:
    args = next(samples.samples(op)).args()
    bad.change(args)
    return args


def to_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [to_meta(v) for v in value] if isinstance(value, list) else value


def test_cpu_refuses_and_touches_nothing(op: str, bad: BadArgument) -> None:
    args = wrong_args(op, bad)
    before = clone_args(args)
    with pytest.raises(ValueError, match=f"^{re.escape(bad.error)}$"):
        hisparse_ops.ops()[op].call(**args)
    assert_same_buffers(args, before)


def test_fake_refuses_with_the_same_text(op: str, bad: BadArgument) -> None:
    args = {name: to_meta(value) for name, value in wrong_args(op, bad).items()}
    if bad.by_value:
        hisparse_ops.ops()[op].call(**args)  # metadata cannot tell: the fake must let it pass
        return
    with pytest.raises(ValueError, match=f"^{re.escape(bad.error)}$"):
        hisparse_ops.ops()[op].call(**args)


@pytest.mark.parametrize(
    "dtype",
    [torch.complex64, torch.float8_e8m0fnu, torch.bits8, torch.uint4, torch.float4_e2m1fn_x2],
)
def test_dtypes_younger_than_the_abi_are_named(dtype: torch.dtype) -> None:
    args = next(samples.samples("pad_slots")).args()
    args["slots"] = torch.empty(8, dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    for value in (args, {n: to_meta(v) for n, v in args.items()}):
        with pytest.raises(
            ValueError, match=f"^pad_slots: slots must be int32 or int64, got {name}$"
        ):
            hisparse_ops.ops()["pad_slots"].call(**value)


def test_every_bad_argument_has_its_own_name(op: str) -> None:
    names = [b.name for b in samples.load(op).BAD_ARGUMENTS]
    assert names and len(names) == len(set(names))


def test_errors_read_the_same_everywhere(op: str) -> None:
    for bad in samples.load(op).BAD_ARGUMENTS:
        assert re.fullmatch(rf"{op}: [a-z_]+(\[\d+\])? must .+, got .+", bad.error), bad.error
