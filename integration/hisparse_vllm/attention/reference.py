"""Sparse multi-head latent attention in plain torch: what the CPU platform runs, and what device kernels are held to.

Absorbed form: every query head attends to one latent row per token, ``[latent | rope]``, and its value is the latent
part of the same row. Rows are picked by attention indices in *prefix* layout, one query row per batch entry: entries
``0 .. counts[i] - 1`` of row i are valid, as Ascend's kernels read them.
"""

from __future__ import annotations

import torch
from torch import Tensor

import hisparse_ops

C8_ROW_BYTES = 656
_CHUNK_BYTES = 64 << 20


def read_rows(cache: Tensor, indices: Tensor, latent: int, rope: int, dtype: torch.dtype) -> Tensor:
    """Rows ``indices`` of a paged cache as ``[*indices.shape, latent + rope]`` values.

    ``cache`` is ``[blocks, block_size, latent + rope]`` of values, or ``[blocks, block_size, 656]`` bytes of C8 rows in
    Core's layout. A negative index reads as zeros.
    """
    flat = indices.reshape(-1)
    out = torch.empty(len(flat), latent + rope, dtype=dtype, device=cache.device)
    if cache.dtype in (torch.uint8, torch.int8):
        hisparse_ops.dequantize_c8(cache, flat, out[:, :latent], out[:, latent:], layout="core")
    else:
        size = cache.shape[1]
        safe = flat.clamp(min=0).long()
        out.copy_(cache[safe // size, safe % size])
        out[flat < 0] = 0
    return out.view(*indices.shape, latent + rope)


def sparse_mla(
    query: Tensor,
    cache: Tensor,
    indices: Tensor,
    counts: Tensor,
    *,
    scale: float,
    latent: int,
) -> tuple[Tensor, Tensor]:
    """Attention of ``query`` over the rows that ``indices`` pick.

    Parameters
    ----------
    query : Tensor
        ``[rows, heads, latent + rope]``.
    cache : Tensor
        As for :func:`read_rows`.
    indices : Tensor
        ``[rows, top_k]`` int32 or int64, attention indices in prefix layout.
    counts : Tensor
        ``[rows]`` integer: entries of the row that are valid. 0 gives zeros and a log-sum-exp of -inf.
    scale : float
        Factor on the scores.
    latent : int
        Width of the latent part.

    Returns
    -------
    ``[rows, heads, latent]`` in the dtype of ``query``, and the natural log-sum-exp ``[rows, heads]`` in float32.
    """
    rows, heads, width = query.shape
    out = torch.zeros(rows, heads, latent, dtype=query.dtype, device=query.device)
    lse = torch.full((rows, heads), float("-inf"), device=query.device)
    longest = int(counts.max()) if rows else 0
    if not longest:
        return out, lse
    step = max(1, _CHUNK_BYTES // (4 * longest * (width + heads)))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        picked = indices[part, :longest]
        values = read_rows(cache, picked, latent, width - latent, query.dtype).float()
        scores = torch.einsum("thd,tkd->thk", query[part].float(), values) * scale
        masked = torch.arange(longest, device=query.device) >= counts[part, None]
        scores.masked_fill_(masked[:, None, :], float("-inf"))
        lse[part] = torch.logsumexp(scores, -1)
        weights = torch.softmax(scores, -1).nan_to_num_(0.0)
        out[part] = torch.einsum("thk,tkd->thd", weights, values[..., :latent]).to(out.dtype)
    return out, lse
