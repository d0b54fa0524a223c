"""Validation: healthy calls pass, each kind of corrupted input is named, and off it costs and changes nothing."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator

import pytest
import torch

import hisparse_ops
from hisparse_ops import reference, validation
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.corruptions import CORRUPTIONS, Corruption
from hisparse_ops.testing.samples import Sample
from hisparse_ops.testing.tame import is_wild, tame

KINDS = [pytest.param(c, id=f"{c.op}-{c.name}") for c in CORRUPTIONS]


@pytest.fixture(autouse=True)
def validation_is_off_again() -> Iterator[None]:
    assert not hisparse_ops.is_validating()
    yield
    hisparse_ops.validate(False)


def has_validator(op: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"hisparse::{op}", "BackendSelect")


def test_every_op_has_value_checks(op: str) -> None:
    assert set(validation.VALIDATORS) == set(hisparse_ops.ops())
    hisparse_ops.validate(True)
    assert has_validator(op)


def test_healthy_calls_pass_and_do_the_same(op: str, sample: Sample) -> None:
    args = tame(op, sample.args())
    expected = clone_args(args)
    hisparse_ops.ops()[op].call(**expected)
    with hisparse_ops.validate():
        hisparse_ops.ops()[op].call(**args)
    assert_same_buffers(args, expected)


def test_a_sample_without_wild_values_passes_as_it_is(op: str) -> None:
    untouched = [s for s in samples.samples(op) if not is_wild(op, s.args())]
    with hisparse_ops.validate():
        for sample in untouched:
            hisparse_ops.ops()[op].call(**sample.args())
    if op not in ("invalidate_written", "invalidate_recycled"):  # their owners are any numbers
        assert untouched


def test_there_are_kinds_for_every_op_that_reads_values() -> None:
    assert {c.op for c in CORRUPTIONS} == set(hisparse_ops.ops()) - {"fill_full_visible"}
    names = [(c.op, c.name) for c in CORRUPTIONS]
    assert len(names) == len(set(names)) >= 91


@pytest.mark.parametrize("corruption", KINDS)
def test_corruption_is_named_and_nothing_is_written(corruption: Corruption) -> None:
    args = corruption.args()
    before = clone_args(args)
    expected = f"{corruption.op}: {corruption.error}"
    with hisparse_ops.validate(), pytest.raises(hisparse_ops.ValidationError) as caught:
        hisparse_ops.ops()[corruption.op].call(**args)
    assert str(caught.value) == expected
    assert_same_buffers(args, before)


@pytest.mark.parametrize("corruption", KINDS)
def test_without_validation_the_op_still_does_what_the_oracle_does(corruption: Corruption) -> None:
    """Whole buffers: not a byte outside the documented destinations."""
    args = corruption.args()
    expected = clone_args(args)
    if "max_union_rows" in args:  # the one value that the CPU op refuses as well
        with pytest.raises(ValueError, match="must need at most"):
            hisparse_ops.ops()[corruption.op].call(**args)
        assert_same_buffers(args, expected)
        return
    reference.load(corruption.op)(**expected)
    hisparse_ops.ops()[corruption.op].call(**args)
    mask = getattr(samples.load(corruption.op), "unspecified", None)
    assert_same_buffers(args, expected, mask(expected) if mask else None)


def pad(slots: list[int], count: int = 2) -> torch.Tensor:
    out = torch.full((len(slots),), 7, dtype=torch.int64)
    hisparse_ops.pad_slots(torch.tensor(slots), torch.tensor([count]), out)
    return out


def test_off_no_kernel_stands_before_the_op(op: str) -> None:
    assert not has_validator(op)
    with hisparse_ops.validate():
        assert has_validator(op)
    assert not has_validator(op)


def test_function_switches_and_the_block_restores() -> None:
    hisparse_ops.validate(True)
    with hisparse_ops.validate(False):
        assert not hisparse_ops.is_validating()
        assert pad([5, -9]).tolist() == [5, -9]
    assert hisparse_ops.is_validating()
    with pytest.raises(ValueError, match=re.escape("slots[1] must be -1 or a slot, got -9")):
        pad([5, -9])
    hisparse_ops.validate(False)
    assert pad([5, -9]).tolist() == [5, -9]


def test_a_block_that_raises_restores() -> None:
    with pytest.raises(hisparse_ops.ValidationError), hisparse_ops.validate():
        pad([5, 5])
    assert not hisparse_ops.is_validating()


def test_error_has_its_parts_and_pickles() -> None:
    with hisparse_ops.validate(), pytest.raises(hisparse_ops.ValidationError) as caught:
        pad([5, 5])
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.op, error.argument, error.index) == ("pad_slots", "slots", (1,))
    assert (error.rule, error.value) == ("name each row once", "5 again")
    assert str(error) == str(caught.value)


def test_metadata_is_refused_in_the_same_words() -> None:
    with hisparse_ops.validate(), pytest.raises(ValueError) as caught:
        hisparse_ops.pad_slots(
            torch.tensor([1.0]), torch.tensor([1]), torch.zeros(1, dtype=torch.int32)
        )
    assert str(caught.value) == "pad_slots: slots must be int32 or int64, got float32"


def test_torch_ops_and_compiled_graphs_are_covered() -> None:
    def step(slots: torch.Tensor, count: torch.Tensor, out: torch.Tensor) -> None:
        torch.ops.hisparse.pad_slots(slots, count, out)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    good, bad = torch.tensor([3, 4]), torch.tensor([3, 3])
    count, out = torch.tensor([2]), torch.zeros(2, dtype=torch.int64)
    compiled(good, count, out)
    with hisparse_ops.validate():
        for call in (step, compiled):
            call(good, count, out)
            with pytest.raises(hisparse_ops.ValidationError):
                call(bad, count, out)
    compiled(bad, count, out)
    assert out.tolist() == [3, 3]


def test_inference_mode_is_covered() -> None:
    with hisparse_ops.validate(), torch.inference_mode():
        with pytest.raises(hisparse_ops.ValidationError):
            pad([5, 5])
        pad([5, 6])


def test_meta_tensors_have_no_values() -> None:
    slots = torch.empty(4, dtype=torch.int64, device="meta")
    count = torch.empty(1, dtype=torch.int64, device="meta")
    with hisparse_ops.validate():
        hisparse_ops.pad_slots(slots, count, torch.empty_like(slots))


def test_recorded_calls_are_checked_outside_the_graph() -> None:
    slots, count = torch.tensor([3, 4]), torch.tensor([2])
    out = torch.zeros(2, dtype=torch.int64)
    with hisparse_ops.record() as calls:
        hisparse_ops.pad_slots(slots, count, out)
    assert not hisparse_ops.is_validating()
    calls.check()
    slots[1] = 3  # what a replay would read
    with pytest.raises(hisparse_ops.ValidationError, match=r"slots\[1\] must name each row once"):
        calls.check()


def test_while_a_graph_is_captured_no_value_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CUDA stream that captures: the call goes through, a recorder remembers it, without one it is said."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr("hisparse_ops.validation._switch._warned", False)
    with hisparse_ops.validate(), pytest.warns(UserWarning, match="is not checked"):
        pad([5, 5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with hisparse_ops.record() as calls:
            pad([5, 5])
    with pytest.raises(hisparse_ops.ValidationError):
        calls.check()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("1", "True"),
        ("0", "False"),
        ("", "False"),
        ("yes", "HISPARSE_VALIDATE must be 0 or 1, got yes"),
    ],
)
def test_environment_turns_it_on(asked: str, said: str) -> None:
    program = "import hisparse_ops; print(hisparse_ops.is_validating())"
    env = os.environ | {"HISPARSE_VALIDATE": asked}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env)
    assert said in (done.stdout if said in ("True", "False") else done.stderr)
