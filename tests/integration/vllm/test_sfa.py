"""The reference of sparse MLA against dense attention in float64, and the selection it is given. Needs no vLLM."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hisparse_ops
from hisparse_vllm.attention import reference
from hisparse_vllm.attention.selection import select

LATENT, ROPE, HEADS = 512, 64, 3


def dense(query: Tensor, rows: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One query over all of ``rows``, in float64."""
    scores = query.double() @ rows.double().T * scale
    return torch.softmax(scores, -1) @ rows[:, :LATENT].double(), torch.logsumexp(scores, -1)


def random_cache(gen: torch.Generator, blocks: int, size: int, dtype: torch.dtype) -> Tensor:
    """Pages with other layers between them."""
    slab = torch.randn(blocks, 2, size, LATENT + ROPE, generator=gen).to(dtype)
    return slab[:, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_mla_is_dense_attention_over_the_rows_picked(dtype: torch.dtype) -> None:
    gen = torch.Generator().manual_seed(0)
    cache = random_cache(gen, 5, 16, dtype)
    query = torch.randn(6, HEADS, LATENT + ROPE, generator=gen).to(dtype)
    counts = torch.tensor([0, 1, 7, 40, 64, 13], dtype=torch.int32)
    indices = torch.full((6, 64), -1, dtype=torch.int32)
    for i, n in enumerate(counts.tolist()):
        indices[i, :n] = torch.randperm(80, generator=gen)[:n].int()
    out, lse = reference.sparse_mla(query, cache, indices, counts, scale=0.07, latent=LATENT)
    assert out.dtype == dtype and not out[0].any() and lse[0].isneginf().all()
    flat = cache.reshape(-1, LATENT + ROPE)
    for i, n in enumerate(counts.tolist()[1:], 1):
        expected, norm = dense(query[i], flat[indices[i, :n].long()], 0.07)
        tolerance = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(out[i].double(), expected, atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse[i].double(), norm, atol=1e-4, rtol=1e-4)


def test_large_top_k_is_done_in_pieces() -> None:
    gen = torch.Generator().manual_seed(1)
    cache = random_cache(gen, 40, 64, torch.float32)
    query = torch.randn(9, HEADS, LATENT + ROPE, generator=gen)
    indices = torch.stack([torch.randperm(2560, generator=gen)[:2048] for _ in range(9)]).int()
    counts = torch.full((9,), 2048, dtype=torch.int32)
    whole, lse = reference.sparse_mla(query, cache, indices, counts, scale=0.07, latent=LATENT)
    for i in range(9):
        row = slice(i, i + 1)
        one, norm = reference.sparse_mla(
            query[row], cache, indices[row], counts[row], scale=0.07, latent=LATENT
        )
        torch.testing.assert_close(whole[row], one)
        torch.testing.assert_close(lse[row], norm)


def test_c8_rows_are_read_as_they_were_quantised() -> None:
    gen = torch.Generator().manual_seed(2)
    latent = torch.randn(48, LATENT, generator=gen).bfloat16()
    rope = torch.randn(48, ROPE, generator=gen).bfloat16()
    cache = torch.zeros(3, 16, 656, dtype=torch.uint8)
    slots = torch.randperm(48, generator=gen)
    hisparse_ops.quantize_scatter_c8(latent, rope, slots, cache, layout="core", scale_rule="pow2")
    read = reference.read_rows(cache, slots[None], LATENT, ROPE, torch.bfloat16)[0]
    assert torch.equal(read[:, LATENT:], rope)
    torch.testing.assert_close(read[:, :LATENT].float(), latent.float(), atol=0.3, rtol=0.07)
    negative = reference.read_rows(cache, torch.tensor([-1, 5]), LATENT, ROPE, torch.bfloat16)
    assert not negative[0].any() and negative[1].any()


def test_no_rows() -> None:
    cache = torch.zeros(2, 16, LATENT + ROPE)
    none = torch.empty(0, HEADS, LATENT + ROPE)
    picked = torch.empty(0, 64, dtype=torch.int32), torch.empty(0, dtype=torch.int32)
    out, lse = reference.sparse_mla(none, cache, *picked, scale=1.0, latent=LATENT)
    assert out.shape == (0, HEADS, LATENT) and lse.shape == (0, HEADS)


def test_selection_is_in_prefix_layout() -> None:
    tables = torch.tensor([[3, 0, 5], [7, 2, -1]], dtype=torch.int32)
    positions = torch.tensor([[-1, 9, 2, 5, 11, 50], [0, 4, -1, 8, 7, 1]], dtype=torch.int32)
    picked = select(positions, tables, torch.tensor([0, 1]), 4)
    # Row 0: 5 is in a null page, 50 past the table. Row 1: 8 is in a missing page.
    assert picked.indices.tolist() == [[21, 14, 23, -1, -1, -1], [28, 8, 11, 29, -1, -1]]
    assert picked.counts.tolist() == [3, 4]


@pytest.mark.parametrize("top_k", [0, 1, 7])
def test_selection_of_nothing(top_k: int) -> None:
    positions = torch.full((2, top_k), -1, dtype=torch.int32)
    picked = select(positions, torch.zeros(1, 3, dtype=torch.int32), torch.zeros(2), 16)
    assert picked.indices.shape == (2, top_k) and picked.counts.tolist() == [0, 0]
