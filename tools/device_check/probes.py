"""Small kernels that show what the gate tells apart: some that Ascend's compiler must refuse, others it must take."""

from __future__ import annotations

import kernels
import triton
import triton.language as tl

Variant = (
    __import__("importlib").import_module(kernels.load_package().__name__ + "._variant").Variant
)

A2 = ("Ascend910B3", "Ascend910_9392")
A5 = ("Ascend950PR_9589", "Ascend950DT_9581")


@triton.jit
def too_large_for_ub(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) + 1)


@triton.jit
def float64(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2.0)


@triton.jit
def sort(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)))


@triton.jit
def bytes_as_words(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x.to(tl.pointer_type(tl.int32)) + at))


@triton.jit
def a_name_that_is_longer_than_what_fits_the_field_of_the_device(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))


@triton.jit
def float8(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(tl.float8e4nv))


@triton.jit
def rounded_division_of_one(x, y, BLOCK: tl.constexpr):
    tl.store(y, tl.div_rn(tl.load(x), 448.0))


@triton.jit
def rounded_division(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.div_rn(tl.load(x + at), 448.0))


@triton.jit
def unequal_tiles(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + tl.arange(0, 2 * BLOCK)))


@triton.jit
def other_without_a_mask(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, other=0))


@triton.jit
def constant_or_value(x, y, BLOCK: tl.constexpr):
    if (BLOCK > 1) | (tl.load(x) > 0):
        tl.store(y, 1)


@triton.jit
def chained_and(x, y, BLOCK: tl.constexpr):
    value = tl.load(x)
    if value > 0 and value < 9 and value != 4:
        tl.store(y, value)


@triton.jit
def two_types_returned(x, y, BLOCK: tl.constexpr):
    tl.store(y, _either(tl.load(x)))


@triton.jit
def _either(value):
    if value > 0:
        return value
    return value.to(tl.float32)


@triton.jit
def masked_copy(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < 100, other=0), mask=at < 100)


@triton.jit
def while_loop(x, y, BLOCK: tl.constexpr):
    count = tl.load(x)
    while count > 0:
        tl.store(y + count, count)
        count -= 1


@triton.jit
def address_table(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source = tl.load(x).to(tl.pointer_type(tl.int32))
    tl.store(y + at, tl.load(source + at))


@triton.jit
def sum_of_words(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.load(x + at), 0))


@triton.jit
def float_bits(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(tl.int32, bitcast=True) & 0x7FFFFFFF)


def _probe(kernel: object, x: str, y: str, block: int = 256) -> object:
    name = kernel.fn.__name__  # type: ignore[attr-defined]
    return Variant(name, kernel, {"x": x, "y": y}, {"BLOCK": block})


REFUSED = {
    "too_large_for_ub": A2 + A5,
    "float64": A2 + A5,
    "sort": A2,
    "bytes_as_words": A5,
    "a_name_that_is_longer_than_what_fits_the_field_of_the_device": A2 + A5,
    "float8": A2 + A5,
    "rounded_division_of_one": A2 + A5,
    "unequal_tiles": A2 + A5,
    "other_without_a_mask": A2 + A5,
    "constant_or_value": A2 + A5,
    "chained_and": A2 + A5,
    "two_types_returned": A2 + A5,
}
"""Which targets must refuse a probe; the others must take it."""

PROBES = [
    _probe(too_large_for_ub, "*i32", "*i32", 1 << 18),
    _probe(float64, "*fp64", "*fp64"),
    _probe(sort, "*i32", "*i32"),
    _probe(bytes_as_words, "*u8", "*i32"),
    _probe(a_name_that_is_longer_than_what_fits_the_field_of_the_device, "*i32", "*i32"),
    _probe(float8, "*fp32", "*fp8e4nv"),
    _probe(rounded_division_of_one, "*fp32", "*fp32"),
    _probe(rounded_division, "*fp32", "*fp32"),
    _probe(unequal_tiles, "*i32", "*i32"),
    _probe(other_without_a_mask, "*i32", "*i32"),
    _probe(constant_or_value, "*i32", "*i32"),
    _probe(chained_and, "*i32", "*i32"),
    _probe(two_types_returned, "*i32", "*i32"),
    _probe(masked_copy, "*i32", "*i32"),
    _probe(while_loop, "*i32", "*i32"),
    _probe(address_table, "*i64", "*i32"),
    _probe(sum_of_words, "*i32", "*i32"),
    _probe(float_bits, "*fp32", "*i32"),
]
