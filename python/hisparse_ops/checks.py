"""Argument checks of the fakes and the device launchers.

Same rules, same order, same words as ``ops/common/check.h``, which serves the CPU kernels: an error reads
``<op>: <argument> must <rule>, got <value>`` wherever it is raised. Only metadata is read, never a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

INT32_OR_INT64 = (torch.int32, torch.int64)


def fail(op: str, argument: str, rule: str, got: str) -> NoReturn:
    raise ValueError(f"{op}: {argument} must {rule}, got {got}")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tuple(values: Iterable[int]) -> str:
    return "(" + ", ".join(str(v) for v in values) + ")"


@dataclass(frozen=True)
class Checker:
    """The checks of one op call; ``device`` is where its tensors live."""

    op: str
    device: torch.device

    def on_device(self, argument: str, t: Tensor) -> None:
        if t.device != self.device:
            fail(self.op, argument, f"be on {self.device}", str(t.device))

    def dtype(self, argument: str, t: Tensor, allowed: Sequence[torch.dtype]) -> None:
        if t.dtype not in allowed:
            rule = "be " + " or ".join(dtype_name(d) for d in allowed)
            fail(self.op, argument, rule, dtype_name(t.dtype))

    def dim(self, argument: str, t: Tensor, dim: int) -> None:
        if t.dim() != dim:
            fail(self.op, argument, f"be {dim}-D", f"{t.dim()}-D")

    def size(self, argument: str, t: Tensor, dim: int, what: str, expected: int) -> None:
        if t.shape[dim] != expected:
            rule = f"have {what} = {expected} in dimension {dim}"
            fail(self.op, argument, rule, f"shape {_tuple(t.shape)}")

    def range(self, argument: str, value: int, low: int, high: int) -> None:
        if not low <= value <= high:
            fail(self.op, argument, f"be between {low} and {high}", str(value))

    def choice(self, argument: str, value: str, allowed: Sequence[str]) -> None:
        if value not in allowed:
            rule = "be " + " or ".join(f'"{a}"' for a in allowed)
            fail(self.op, argument, rule, f'"{value}"')

    def length(
        self, argument: str, items: Sequence[Tensor], other_argument: str, other: Sequence[Tensor]
    ) -> None:
        """A list argument with one item for each of another's."""
        if len(items) != len(other):
            rule = f"have length = {len(other)} like {other_argument}"
            fail(self.op, argument, rule, str(len(items)))

    def distinct(self, argument: str, t: Tensor) -> None:
        """No element of a written tensor stands where another one does."""
        if t.numel() == 0:
            return
        extent = 1
        for d in range(t.dim() - 1, -1, -1):
            if t.shape[d] == 1:
                continue
            if t.stride(d) < extent:
                rule = "have row-major strides without overlap"
                fail(self.op, argument, rule, f"strides {_tuple(t.stride())}")
            extent += (t.shape[d] - 1) * t.stride(d)

    def rows(self, argument: str, t: Tensor, *, written: bool = False) -> None:
        """Elements of a row stand side by side."""
        if t.numel() > 0 and t.shape[-1] > 1 and t.stride(-1) != 1:
            rule = "have stride 1 in its last dimension"
            fail(self.op, argument, rule, f"strides {_tuple(t.stride())}")
        if written:
            self.distinct(argument, t)

    def table(self, argument: str, t: Tensor, dtype: torch.dtype, *, written: bool = False) -> None:
        """A 2-D table with any row stride."""
        self.on_device(argument, t)
        self.dtype(argument, t, (dtype,))
        self.dim(argument, t, 2)
        self.rows(argument, t, written=written)

    def vector(self, argument: str, t: Tensor, dtype: torch.dtype, what: str, length: int) -> None:
        """A written 1-D tensor, any stride."""
        self.on_device(argument, t)
        self.dtype(argument, t, (dtype,))
        self.dim(argument, t, 1)
        self.size(argument, t, 0, what, length)
        self.distinct(argument, t)

    def ids(self, argument: str, t: Tensor, dim: int) -> None:
        """Row ids or slots: int32 or int64, any strides."""
        self.on_device(argument, t)
        self.dtype(argument, t, INT32_OR_INT64)
        self.dim(argument, t, dim)

    def slab(self, argument: str, t: Tensor, *, written: bool = False, host: bool = False) -> None:
        """KV rows of any dtype, ``[rows, width]`` or ``[blocks, block_size, width]``.

        ``host`` tensors may stay on the CPU while the op runs on a device.
        """
        if not (host and t.device.type == "cpu"):
            self.on_device(argument, t)
        if t.dim() not in (2, 3):
            fail(self.op, argument, "be 2-D or 3-D", f"{t.dim()}-D")
        self.rows(argument, t, written=written)

    def row_bytes(self, argument: str, t: Tensor, other_argument: str, other: Tensor) -> None:
        mine, theirs = row_bytes(t), row_bytes(other)
        if mine != theirs:
            rule = f"have rows of {theirs} bytes like {other_argument}"
            fail(self.op, argument, rule, f"{mine} bytes")


def row_bytes(t: Tensor) -> int:
    return t.shape[-1] * t.element_size()


def num_rows(t: Tensor) -> int:
    """Rows of a slab, ``[rows, width]`` or ``[blocks, block_size, width]``."""
    return t.shape[0] if t.dim() == 2 else t.shape[0] * t.shape[1]


class Overlaps:
    """The memory of every argument, to see that no output overlaps anything else (``disjoint`` in C++)."""

    def __init__(self, op: str) -> None:
        self.op = op
        self._items: list[tuple[int, int, str, Tensor, bool]] = []

    def add(self, argument: str, t: Tensor | None, *, written: bool = False) -> None:
        if t is None or t.numel() == 0:
            return
        first = t.data_ptr()
        last = first + sum(
            (n - 1) * s * t.element_size() for n, s in zip(t.shape, t.stride(), strict=True)
        )
        first, last = min(first, last), max(first, last) + t.element_size()
        self._items.append((first, last, argument, t, written))

    def check(self) -> None:
        """Raise for the first pair of arguments that share memory one of them is written in."""
        end = 0
        for first, last, *_ in sorted(self._items, key=lambda item: item[0]):
            if first < end:
                break
            end = last
        else:
            return  # as nearly always: one range after the other, and nothing more to look at
        for i, (_, _, later, t, later_written) in enumerate(self._items):
            for _, _, earlier, u, earlier_written in self._items[:i]:
                if (later_written or earlier_written) and not _disjoint(t, u):
                    # The later one is named, unless only the earlier one is written.
                    names = (later, earlier) if later_written else (earlier, later)
                    fail(self.op, names[0], f"not overlap {names[1]}", "shared memory")


def _disjoint(a: Tensor, b: Tensor) -> bool:
    """False when an element of one may share a byte with one of the other: the rule of ``ops/common/slab.h``."""
    (first_a, bytes_a, stride_a, page_a), (first_b, bytes_b, stride_b, page_b) = (
        _rows_of(a),
        _rows_of(b),
    )
    shift = first_b - first_a
    if shift >= page_a or -shift >= page_b:
        return True
    if stride_a != stride_b or stride_a <= 0:
        return False
    shift %= stride_a
    return bytes_a <= shift and shift + bytes_b <= stride_a


def _rows_of(t: Tensor) -> tuple[int, int, int, int]:
    """Address, bytes of a row, bytes between rows, bytes in all, of a table or list."""
    item = t.element_size()
    columns = (t.shape[1] - 1) * t.stride(1) + 1 if t.dim() == 2 else 1
    stride = t.stride(0) * item
    row = columns * item
    return t.data_ptr(), row, stride, (t.shape[0] - 1) * stride + row
