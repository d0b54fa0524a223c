"""The full-visible table and its rule of eligibility (vllm-ascend #15813)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hisparse_ops


@pytest.fixture
def table() -> Tensor:
    table = torch.empty(2049, 2048, dtype=torch.int32)
    hisparse_ops.fill_full_visible(table)
    return table


def indices(table: Tensor, context: int, tokens: int, requests: int = 1) -> Tensor | None:
    return hisparse_ops.full_visible_indices(
        table,
        context_length=context,
        num_tokens=tokens,
        num_requests=requests,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("context,tokens", [(0, 64), (128, 64), (0, 2048), (2047, 1)])
def test_every_token_sees_all_before_it(table: Tensor, context: int, tokens: int) -> None:
    rows = indices(table, context, tokens)
    assert rows is not None and rows.shape == (tokens, 2048)
    for token in (0, tokens - 1):
        visible = context + token + 1
        assert rows[token, :visible].tolist() == list(range(visible))
        assert (rows[token, visible:] == -1).all()
    assert rows.data_ptr() == table[context + 1].data_ptr(), "a slice, not a copy"


@pytest.mark.parametrize(
    "context,tokens,requests",
    [(0, 2049, 1), (2048, 1, 1), (1, 2048, 1), (-1, 5, 1), (0, 0, 1), (0, 5, 2), (0, 5, 0)],
)
def test_everything_else_goes_to_the_indexer(
    table: Tensor, context: int, tokens: int, requests: int
) -> None:
    assert indices(table, context, tokens, requests) is None


def test_a_table_elsewhere_is_not_copied() -> None:
    elsewhere = torch.empty(9, 8, dtype=torch.int32, device="meta")
    assert indices(elsewhere, 0, 4) is None
