"""Every op on every sample against its oracle, comparing whole buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hisparse_ops
from hisparse_ops import reference
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import Sample

ISAS = hisparse_ops.cpu_isas()


@pytest.fixture
def restore_machine() -> Iterator[None]:
    isa, threads = hisparse_ops.cpu_isa(), torch.get_num_threads()
    yield
    hisparse_ops.set_cpu_isa(isa)
    torch.set_num_threads(threads)


def expected_args(op: str, args: dict[str, Any]) -> dict[str, Any]:
    expected = clone_args(args)
    reference.load(op)(**expected)
    return expected


def unspecified(op: str, args: dict[str, Any]) -> dict[str, torch.Tensor] | None:
    mask = getattr(samples.load(op), "unspecified", None)
    return mask(args) if mask else None


@pytest.mark.parametrize("isa", ISAS)
def test_matches_oracle(op: str, sample: Sample, isa: str, restore_machine: None) -> None:
    hisparse_ops.set_cpu_isa(isa)
    args = sample.args()
    expected = expected_args(op, args)
    hisparse_ops.ops()[op].call(**args)
    assert_same_buffers(args, expected, unspecified(op, expected))


def test_is_the_same_on_any_number_of_threads(
    op: str, sample: Sample, restore_machine: None
) -> None:
    """Bit for bit, undefined elements included."""
    results = []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        args = sample.args()
        hisparse_ops.ops()[op].call(**args)
        results.append(args)
    assert_same_buffers(results[1], results[0])
    assert_same_buffers(results[2], results[0])


def test_public_function_is_the_op(op: str) -> None:
    """The documented Python function takes the schema's arguments by name and runs the op."""
    sample = next(samples.samples(op))
    by_op, by_function = sample.args(), sample.args()
    hisparse_ops.ops()[op].call(**by_op)
    getattr(hisparse_ops, op)(**by_function)
    assert_same_buffers(by_function, by_op)


def test_every_sample_has_its_own_name(op: str, tier: str) -> None:
    names = [s.name for s in samples.samples(op, tier)]
    assert len(names) == len(set(names))
    default = {s.name for s in samples.samples(op)}
    assert default <= {s.name for s in samples.samples(op, "nightly")}
