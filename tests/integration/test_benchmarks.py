"""The benchmarks measure what they say: baselines give the op's result, and a missed floor is a failure."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import hisparse_ops
from benchmarks import __main__ as cli
from benchmarks import table
from benchmarks.bare import bare_op, empty_args
from benchmarks.decode_step import DecodeStep
from benchmarks.measure import Contender, Times, clone_args, measure, wrong_results
from benchmarks.scaling import arguments
from hisparse_ops.testing.buffers import assert_same_buffers

SMALL = [
    ("resolve", "deepseek-v32-one-request"),
    ("gather_compact", "plan-16x656B"),
    ("copy_resident_rows", "rows-16x1152B"),
    ("copy_resident_rows", "GLM-5.2/lookahead-patch-8192-of-which-20%"),
    ("quantize_scatter_c8", "dsv32-decode-256"),
    ("quantize_scatter_c8", "glm52-mtp3"),
    ("invalidate_written", "DeepSeek-V3.2/decode"),
]


@pytest.mark.parametrize("name, case", SMALL)
def test_baselines_give_the_result_of_the_op(name: str, case: str) -> None:
    args = cli.make_args(cli.cases_of(name).CASES[case])
    beside = importlib.import_module(f"benchmarks.baselines.{name}").contenders(args)
    assert len(beside) >= 2 and wrong_results(name, args, beside) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "case", ["glm52-mtp3", "glm52-mtp3-all-hits", "glm52-mtp3-cold", "glm52-mtp3-resident"]
)
def test_resolvers_agree_at_production_size(case: str) -> None:
    args = cli.make_args(cli.cases_of("resolve").CASES[case])
    assert wrong_results("resolve", args, cli.contenders("resolve", args)) == []


def test_a_wrong_baseline_is_named() -> None:
    args = cli.make_args(cli.cases_of("pad_slots").CASES["GLM-5.2/decode-32x4"])
    mine = clone_args(args)
    idle = Contender("idle", lambda: None, result=lambda: {"out": mine["out"]})
    assert wrong_results("pad_slots", args, [idle]) == ["idle"]


@pytest.mark.nightly
@pytest.mark.parametrize("hit_rate", [1.0, 0.93])
def test_the_decode_step_is_exact(hit_rate: float) -> None:
    assert DecodeStep(hit_rate).is_exact()


def test_contenders_take_turns() -> None:
    calls: list[str] = []
    measure([Contender(name, lambda name=name: calls.append(name)) for name in "ab"], 6)  # type: ignore[misc]
    assert calls == [*"aaaabbbb"] * 2


def times(**seconds: float) -> dict[str, Times]:
    return {n: Times(n, n != "hisparse", torch.tensor([s])) for n, s in seconds.items()}


def test_the_limit_is_the_fastest_way_after_a_bare_call() -> None:
    found = times(**{"hisparse": 4.0, "slow": 5.0, "fast": 2.0, "bare call": 1.0})
    assert table.share_of_limit("case", 0.9, 1.0).measured(found) == 0.75
    assert table.times_the_limit("case", 2).measured(found) == pytest.approx(4 / 3)
    assert table.faster_than("slow", "case", 1).measured(found) == 1.25


@pytest.mark.parametrize(
    "ratio, value, missed",
    [
        (table.faster_than("torch", "case", 2), 2.0, False),
        (table.faster_than("torch", "case", 2), 1.9, True),
        (table.times_the_limit("case", 2), 99.0, False),  # a goal is no floor
        (table.Ratio("us", "case", lambda _: 0, 5, at_most=True), 5.1, True),
    ],
)
def test_a_missed_floor_is_remembered(
    ratio: table.Ratio, value: float, missed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = table.Table()
    rows.add("op", ratio, value)
    assert bool(rows.missed) == missed
    assert ("MISSED" in capsys.readouterr().out) == missed


def test_a_missed_floor_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("add_empty_calls", "add_threads", "add_decode_step"):
        monkeypatch.setattr(table, name, lambda *_: None)
    lines = [
        lambda t, _: t.add("op", table.faster_than("torch", "case", 2), 3.0),
        lambda t, _: t.add("op", table.faster_than("torch", "case", 2), 1.0),
    ]
    for line, status in zip(lines, (0, 1), strict=True):
        monkeypatch.setattr(table, "add_ratios", line)
        assert table.run_table(cli.parse_args(["table"])) == status


def test_every_ratio_names_a_case_and_a_contender() -> None:
    for op, ratios in table.RATIOS.items():
        assert {r.case for r in ratios} <= set(cli.cases_of(op).CASES)
    assert {case for op, case in table.THREADS if case not in cli.cases_of(op).CASES} == set()


def test_every_op_has_a_call_without_work() -> None:
    for op in hisparse_ops.ops():
        args = empty_args(op)
        before = clone_args(args)
        hisparse_ops.ops()[op].call(**args)
        assert_same_buffers(args, before)


@pytest.mark.nightly
def test_a_bare_op_takes_any_schema() -> None:
    for op in hisparse_ops.ops():
        assert bare_op(op)(**empty_args(op)) is None


def test_sweeps_make_steps_that_can_run() -> None:
    for changes in ({"hot_size": 4096}, {"context": 32768}, {"hit_rate": 0.0}, {"top_k": 64}):
        args: dict[str, Any] = arguments(**changes)
        hisparse_ops.ops()["resolve"].call(**args)


@pytest.mark.nightly
def test_figures_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"figures.{kind}" for kind in ("json", "csv", "png")]
    argv = ["--op", "gather_compact", "--case", "plan-16x656B", "--repeats", "3", "--refcheck"]
    argv += ["--json", str(files[0]), "--csv", str(files[1]), "--plot", str(files[2])]
    assert cli.main(argv) == 0
    figures = json.loads(files[0].read_text())
    names = [row["contender"] for row in figures["figures"]]
    assert names[0] == "hisparse" and {"torch", "row copy", "bare call"} <= set(names)
    assert figures["conditions"]["isa"] == hisparse_ops.cpu_isa()
    assert len(files[1].read_text().splitlines()) == 1 + len(names)
    assert files[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--op", "resolve", "--case", "nope"], "--case must be one of glm52-mtp3,"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_explained(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = cli.main(argv)
    except SystemExit as stop:
        status = int(stop.code or 0)
    assert status == 2 and said in capsys.readouterr().err
