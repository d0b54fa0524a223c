"""Buffers with canaries round them, and comparison of everything a call could have touched.

A test tensor is a view into a larger backing buffer filled with random bytes. After a call the *whole* backing
buffers are compared with those of the oracle, so a write before, after or between the rows is seen, as is
an output element that was never written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

POISON = 123456
"""What outputs hold before a call, where the dtype has room for it."""

_GUARD_BYTES = 64


def buffer(
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    gen: torch.Generator,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    values: Tensor | Sequence[Any] | int | float | None = None,
) -> Tensor:
    """A view of ``shape`` in the middle of a buffer of random bytes.

    ``strides`` are in elements (contiguous by default); ``offset`` shifts the view by that many elements,
    so an odd offset of a uint8 buffer gives unaligned rows. ``values`` fills the view; without it the
    view keeps the random bytes.
    """
    if strides is None:
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    item = torch.empty(0, dtype=dtype).element_size()
    guard = _GUARD_BYTES // item
    span = (
        1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    )
    total = (guard + offset + span + guard) * item
    raw = torch.randint(0, 256, (total,), dtype=torch.uint8, generator=gen)
    view = raw.view(dtype).as_strided(tuple(shape), tuple(strides), guard + offset)
    if values is not None:
        view.copy_(torch.as_tensor(values, dtype=dtype).expand(view.shape))
    return view


def poisoned(
    shape: Sequence[int],
    dtype: torch.dtype,
    *,
    gen: torch.Generator,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """An output buffer: every element holds the poison value until it is written."""
    value = POISON if torch.iinfo(dtype).max >= POISON else torch.iinfo(dtype).max
    return buffer(shape, dtype, gen=gen, strides=strides, values=value)


def tensors(args: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor among the arguments of a call, with a name for it."""
    for name, value in args.items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield f"{name}[{i}]", item


def clone_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments over copies of their whole backing buffers, aliases kept as they are."""
    copies: dict[int, torch.UntypedStorage] = {}

    def clone(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        key = storage._cdata
        if key not in copies:
            copies[key] = storage.clone()  # type: ignore[no-untyped-call]
        return torch.empty(0, dtype=t.dtype).set_(
            copies[key], t.storage_offset(), t.shape, t.stride()
        )

    def visit(value: Any) -> Any:
        if isinstance(value, Tensor):
            return clone(value)
        if isinstance(value, (list, tuple)):
            return [visit(item) for item in value]
        return value

    return {name: visit(value) for name, value in args.items()}


def to_device(args: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """The same arguments over copies of their whole backing buffers on a device, aliases kept as they are."""
    copies: dict[int, Tensor] = {}

    def move(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [move(item) for item in value]
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        if storage._cdata not in copies:
            raw = torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage)
            copies[storage._cdata] = raw.to(device, copy=True)
        empty = torch.empty(0, dtype=value.dtype, device=device)
        moved = copies[storage._cdata].untyped_storage()
        return empty.set_(moved, value.storage_offset(), value.shape, value.stride())

    return {name: move(value) for name, value in args.items()}


def _bytes(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())


def _where(t: Tensor, byte: int) -> str:
    """What the byte at ``byte`` of the backing buffer is: an element, or a canary."""
    item = t.element_size()
    index = byte // item - t.storage_offset()
    span = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    if t.numel() == 0 or index < 0:
        return f"canary {t.storage_offset() * item - byte} bytes before the tensor"
    if index > span:
        return f"canary {byte - (t.storage_offset() + span + 1) * item} bytes past the tensor"
    order = sorted(range(t.dim()), key=lambda d: t.stride()[d], reverse=True)
    coordinate, rest = [0] * t.dim(), index
    for d in order:
        if t.stride(d) > 0:
            coordinate[d] = min(rest // t.stride(d), t.shape[d] - 1)
            rest -= coordinate[d] * t.stride(d)
    place = str(tuple(coordinate))
    return f"canary between rows, after element {place}" if rest else f"element {place}"


def assert_same_buffers(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    unspecified: Mapping[str, Tensor] | None = None,
) -> None:
    """Compare the whole backing buffers of two calls' arguments, bit for bit.

    ``unspecified`` masks, by argument, the elements that the op's contract leaves undefined.
    """
    pairs = zip(tensors(actual), tensors(expected), strict=True)
    for (name, a), (_, b) in pairs:
        if unspecified is not None and name in unspecified:
            a, b = clone_args({name: a})[name], clone_args({name: b})[name]
            a[unspecified[name]] = 0
            b[unspecified[name]] = 0
        raw_a, raw_b = _bytes(a), _bytes(b)
        if torch.equal(raw_a, raw_b):
            continue
        differing = (raw_a != raw_b).nonzero()[:, 0]
        byte = int(differing[0])
        message = (
            f"{name}: {len(differing)} of {len(raw_a)} bytes differ, first at {_where(a, byte)}"
        )
        index = byte // a.element_size()
        whole_a, whole_b = raw_a.view(a.dtype), raw_b.view(b.dtype)
        raise AssertionError(
            f"{message}: got {whole_a[index].item()}, expected {whole_b[index].item()}"
        )
