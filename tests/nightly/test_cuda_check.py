"""The script for a card, as far as it goes without one."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from hisparse_ops import triton
from hisparse_ops.testing import samples
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args, to_device

pytest.importorskip("triton", reason="triton is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_check", ROOT / "tools/cuda_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
def test_rehearsal_finds_nothing(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "report.json"
    assert tool.main(["--device", "cpu", "--tier", "default", "--report", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["samples: ok", "wrong arguments: ok"]
    found = json.loads(path.read_text())
    assert found == {"device": "no card", "tier": "default", "failures": [], "timings": []}


def test_a_wrong_kernel_is_reported(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tool.triton, "OPS", ("pad_slots",))
    monkeypatch.setattr(tool, "run", lambda op, args, device: args["out"].zero_())
    assert tool.main(["--device", "cpu", "--tier", "default"]) == 1
    printed = capsys.readouterr().out
    assert "pad_slots, 5 of 8: out:" in printed and "was taken" in printed


def test_without_a_card_it_says_so(
    tool: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        tool.main([])
    assert "torch sees no CUDA card; --device cpu rehearses without one" in capsys.readouterr().err


class Recorder:
    """Stands in for a captured graph: what was captured runs again at each replay."""

    calls: list[Any] = []  # noqa: RUF012

    def replay(self) -> None:
        for op, args in self.calls:
            import hisparse_ops

            hisparse_ops.ops()[op].call(**args)


def test_replays_change_what_the_captured_call_reads(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop over replays, with the CPU op in place of the card: right, and noticed where a replay is skipped."""
    import contextlib

    import hisparse_ops

    @contextlib.contextmanager
    def capture(graph: Recorder) -> Iterator[None]:
        graph.calls = [last[-1]]
        yield
        graph.calls = [last[-1]]

    last: list[Any] = []

    def run(op: str, args: dict[str, Any], device: str) -> None:
        last.append((op, args))
        hisparse_ops.ops()[op].call(**args)

    monkeypatch.setattr(tool, "run", run)
    monkeypatch.setattr(tool, "to_device", lambda args, device: to_device(args, "cpu"))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorder)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    for op in ("gather_compact", "pad_slots", "invalidate_written"):
        monkeypatch.setattr(tool.triton, "OPS", (op,))
        assert list(tool.check_replay("default")) == []
    monkeypatch.setattr(Recorder, "replay", lambda self: None)
    assert list(tool.check_replay("default"))


def test_other_contents_fit_the_same_buffers(tool: ModuleType) -> None:
    """Else a replay with other contents would be no test for most samples."""
    for op in triton.OPS:
        fitting = 0
        cases = list(samples.samples(op))
        for sample in cases:
            args = sample.args()
            fitting += tool.refill(args, tool.other_contents(sample, 1))
        assert fitting >= 0.7 * len(cases), op


def test_arguments_move_with_what_stands_around_them() -> None:
    args = next(samples.samples("scatter_rows")).args()
    moved = to_device(args, "cpu")
    assert_same_buffers(moved, clone_args(args))
    moved["caches"][0].zero_()
    assert not torch.equal(moved["caches"][0], args["caches"][0])


def test_timed_cases_exist(tool: ModuleType) -> None:
    for op, titles in tool.TIMED.items():
        assert set(titles) <= set(importlib.import_module(f"benchmarks.cases.{op}").CASES)
