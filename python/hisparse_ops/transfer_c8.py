"""Transfer ops of packed C8 rows: the contract of writing, quantising and reading 656-byte KV rows.

A row holds 512 latent values as float8_e4m3fn, 64 rope values of 16 bits, and 4 float32 scales, one
for each tile of 128 latent values. The parts stand in one of two orders, called the layout:

* ``"ascend"``: latent 512 B | rope 128 B | scales 16 B
* ``"core"``: latent 512 B | scales 16 B | rope 128 B
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hisparse_ops.checks import Checker
from hisparse_ops.registry import define_op

LATENT = 512
TILE = 128
ROPE = 64
ROW_BYTES = LATENT + 2 * ROPE + 4 * (LATENT // TILE)

LAYOUTS = ("ascend", "core")
SCALE_RULES = ("amax", "pow2")

_CODES = (torch.float8_e4m3fn, torch.uint8, torch.int8)
_CACHES = (torch.uint8, torch.int8, torch.float8_e4m3fn)
_ROPES = (torch.bfloat16, torch.float16, torch.int16)
_LATENTS = (torch.bfloat16, torch.float16, torch.float32)


def _check_part(
    check: Checker,
    argument: str,
    t: Tensor,
    dtypes: Sequence[torch.dtype],
    width: int,
    tokens: int,
    *,
    written: bool = False,
) -> None:
    """A ``[tokens, width]`` argument of one of some dtypes."""
    check.on_device(argument, t)
    check.dtype(argument, t, dtypes)
    check.dim(argument, t, 2)
    check.size(argument, t, 0, "tokens", tokens)
    check.size(argument, t, 1, "width", width)
    check.rows(argument, t, written=written)


def _check_cache(check: Checker, cache: Tensor, *, written: bool = False) -> None:
    """Packed rows, as bytes or as the one FP8 encoding they hold; another encoding is refused."""
    check.on_device("cache", cache)
    check.dtype("cache", cache, _CACHES)
    check.slab("cache", cache, written=written)
    check.size("cache", cache, cache.dim() - 1, "row_bytes", ROW_BYTES)


_scatter_c8 = define_op(
    "scatter_c8(Tensor nope, Tensor rope, Tensor scales, Tensor slots, Tensor(a!) cache, *,"
    " str layout) -> ()",
    family="transfer",
)


@_scatter_c8.fake
def _check_scatter_c8(
    nope: Tensor, rope: Tensor, scales: Tensor, slots: Tensor, cache: Tensor, *, layout: str
) -> None:
    check = Checker("scatter_c8", slots.device)
    check.ids("slots", slots, 1)
    tokens = slots.shape[0]
    _check_part(check, "nope", nope, _CODES, LATENT, tokens)
    _check_part(check, "rope", rope, _ROPES, ROPE, tokens)
    _check_part(check, "scales", scales, (torch.float32,), LATENT // TILE, tokens)
    _check_cache(check, cache, written=True)
    check.choice("layout", layout, LAYOUTS)


@_scatter_c8.public
def scatter_c8(
    nope: Tensor, rope: Tensor, scales: Tensor, slots: Tensor, cache: Tensor, *, layout: str
) -> None:
    """Write tokens that are quantised already as packed C8 rows of a cache.

    ``cache[slots[i]] = nope[i] | rope[i] | scales[i]``, in the order of ``layout``, bit for bit.
    Token i is skipped, its scales with its data, where ``slots[i]`` is negative or past the end of
    the cache.

    Parameters
    ----------
    nope : Tensor
        ``[tokens, 512]``, float8_e4m3fn, or uint8 or int8 with the same bits: latent codes. Values
        stand side by side; any row stride.
    rope : Tensor
        ``[tokens, 64]``, bfloat16, float16 or int16: stored as they are, never scaled. Any row
        stride.
    scales : Tensor
        ``[tokens, 4]``, float32: value of latent tile t = code * ``scales[i, t]``. Any row stride.
    slots : Tensor
        ``[tokens]``, int32 or int64, any stride: destination row of each token, ``block *
        block_size + offset``;
        -1 for padding.
    cache : Tensor
        ``[rows, 656]`` or ``[blocks, block_size, 656]``, uint8, int8 or float8_e4m3fn. The block
        stride may exceed the page, and a page may start at any byte. Written.
    layout : str
        ``"ascend"`` (latent | rope | scales) or ``"core"`` (latent | scales | rope).

    Mutates: ``cache``, the 656 bytes of the rows named by ``slots``; every other byte is left as it
    is. Graph-safe: yes. Deterministic: bitwise where slots are unique; of tokens with the same slot
    the last one wins on the CPU, while on devices which one does is undefined. Cost: reads and
    writes 656 bytes a token.

    Raises
    ------
    ValueError
        A dtype, shape or stride other than above (another FP8 encoding, float8_e4m3fnuz or
        float8_e5m2, is refused, never converted); an unknown layout; ``cache`` overlapping an input
        (CPU only).

    Source: rows of Ascend's quantised sparse attention, and ``fp8_ds_mla`` rows of vLLM and
    FlashMLA.
    """
    _scatter_c8.call(nope, rope, scales, slots, cache, layout=layout)


_quantize_scatter_c8 = define_op(
    "quantize_scatter_c8(Tensor latent, Tensor rope, Tensor slots, Tensor(a!) cache, *,"
    " str layout, str scale_rule) -> ()",
    family="transfer",
)


@_quantize_scatter_c8.fake
def _check_quantize_scatter_c8(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, layout: str, scale_rule: str
) -> None:
    check = Checker("quantize_scatter_c8", slots.device)
    check.ids("slots", slots, 1)
    tokens = slots.shape[0]
    _check_part(check, "latent", latent, _LATENTS, LATENT, tokens)
    _check_part(check, "rope", rope, _ROPES, ROPE, tokens)
    _check_cache(check, cache, written=True)
    check.choice("layout", layout, LAYOUTS)
    check.choice("scale_rule", scale_rule, SCALE_RULES)


@_quantize_scatter_c8.public
def quantize_scatter_c8(
    latent: Tensor, rope: Tensor, slots: Tensor, cache: Tensor, *, layout: str, scale_rule: str
) -> None:
    """Quantise tokens and write them as packed C8 rows of a cache, in one pass.

    For each tile x of 128 latent values, in IEEE float32, with ``amax = max(abs(x))`` over the
    finite values of the tile (0 if there are none)::

        scale = max(amax / 448, 2**-116)                      scale_rule="amax"
              = 2**ceil(log2(max(amax / 448, 1e-4)))          scale_rule="pow2"
        code  = float8_e4m3fn(x / scale)                      nearest, ties to even, at most +-448

    then ``cache[slots[i]] = codes | rope[i] | scales`` in the order of ``layout``. Token i is
    skipped where ``slots[i]`` is negative or past the end of the cache.

    Edge values, the same for both rules:

    * The sign bit of every value is kept: -0.0 becomes 0x80.
    * A tile of zeros has codes of zero and the least scale, 2**-116 or 2**-13: never 0, so that
      nothing has to be divided by zero, and a reader gets exact zeros.
    * A NaN becomes the NaN code (0x7F or 0xFF), an infinity +-448; neither takes part in ``amax``,
      so the rest of the tile is as precise as without it.
    * The exponent of ``pow2`` is exact. A float log2 rounds to a whole number a few ulp early and
      then gives half of that scale, with which the largest value of the tile saturates.
    * The least scales are such that neither subnormal inputs nor subnormal results can change a
      code: the bits are the same on machines that flush subnormals to zero.

    Parameters
    ----------
    latent : Tensor
        ``[tokens, 512]``, bfloat16, float16 or float32. Values stand side by side; any row stride.
    rope : Tensor
        ``[tokens, 64]``, bfloat16, float16 or int16: stored as they are, never scaled. Any row
        stride.
    slots : Tensor
        ``[tokens]``, int32 or int64, any stride: destination row of each token; -1 for padding.
    cache : Tensor
        ``[rows, 656]`` or ``[blocks, block_size, 656]``, uint8, int8 or float8_e4m3fn. The block
        stride may exceed the page, and a page may start at any byte. Written.
    layout : str
        ``"ascend"`` (latent | rope | scales) or ``"core"`` (latent | scales | rope).
    scale_rule : str
        ``"amax"`` or ``"pow2"``. It is a contract with the reader: one that keeps only the exponent
        of a scale is right for ``pow2`` rows alone. :func:`dequantize_c8` reads both.

    Mutates: ``cache``, the 656 bytes of the rows named by ``slots``; every other byte is left as it
    is. Graph-safe: yes. Deterministic: bitwise, on every instruction set, where slots are unique;
    of tokens with the same slot the last one wins on the CPU, while on devices which one does is
    undefined. Cost: reads 1024 (float32: 2048) + 128 bytes and writes 656 bytes a token; no
    temporary.

    Raises
    ------
    ValueError
        A dtype, shape or stride other than above; an unknown layout or scale rule; ``cache``
        overlapping an input (CPU only).

    Source: ``pow2`` is the ``fp8_ds_mla`` writer of vLLM since its pull request 49435; ``amax`` is
    block quantisation as FlashMLA and Ascend's ``npu_dynamic_block_quant`` describe it.
    """
    _quantize_scatter_c8.call(latent, rope, slots, cache, layout=layout, scale_rule=scale_rule)


_dequantize_c8 = define_op(
    "dequantize_c8(Tensor cache, Tensor row_ids, Tensor(a!) latent, Tensor(b!) rope, *,"
    " str layout) -> ()",
    family="transfer",
)


@_dequantize_c8.fake
def _check_dequantize_c8(
    cache: Tensor, row_ids: Tensor, latent: Tensor, rope: Tensor, *, layout: str
) -> None:
    check = Checker("dequantize_c8", row_ids.device)
    _check_cache(check, cache)
    check.ids("row_ids", row_ids, 1)
    tokens = row_ids.shape[0]
    _check_part(check, "latent", latent, _LATENTS, LATENT, tokens, written=True)
    _check_part(check, "rope", rope, _ROPES, ROPE, tokens, written=True)
    check.choice("layout", layout, LAYOUTS)


@_dequantize_c8.public
def dequantize_c8(
    cache: Tensor, row_ids: Tensor, latent: Tensor, rope: Tensor, *, layout: str
) -> None:
    """Read packed C8 rows back as latent and rope values.

    ``latent[i, j] = code[j] * scale[j // 128]`` of cache row ``row_ids[i]``, multiplied in float32
    and rounded to the dtype of ``latent`` (nearest, ties to even); ``rope[i]`` = the rope bytes of
    that row. Both become zeros where ``row_ids[i]`` is negative or past the end of the cache.

    Parameters
    ----------
    cache : Tensor
        ``[rows, 656]`` or ``[blocks, block_size, 656]``, uint8, int8 or float8_e4m3fn; any block
        stride, any byte alignment. A scale may be any float32: it is used as it stands, not only
        its exponent.
    row_ids : Tensor
        ``[tokens]``, int32 or int64, any stride: row of each token, in any order, repeats allowed.
    latent : Tensor
        ``[tokens, 512]``, float32, bfloat16 or float16; values side by side, any row stride.
        Written.
    rope : Tensor
        ``[tokens, 64]``, bfloat16, float16 or int16; values side by side, any row stride. Written.
        It may be the last 64 columns of the tensor whose first 512 are ``latent``.
    layout : str
        ``"ascend"`` (latent | rope | scales) or ``"core"`` (latent | scales | rope).

    A value that is not a number (NaN code, NaN scale, zero times infinity) is written as the quiet
    NaN without sign; one that float16 cannot hold as an infinity.

    Mutates: ``latent`` and ``rope``, every element. Graph-safe: yes. Deterministic: bitwise, on
    every instruction set. Cost: reads 656 bytes and writes 512 elements + 128 bytes a token; no
    temporary.

    Raises
    ------
    ValueError
        A dtype, shape or stride other than above; an unknown layout; an output overlapping an input
        or the other output (CPU only).

    Source: the reader of :func:`scatter_c8` and :func:`quantize_scatter_c8`, for attention that
    takes no C8 rows and for tests of a writer.
    """
    _dequantize_c8.call(cache, row_ids, latent, rope, layout=layout)
