"""The Ascend 950 form of ``resolve``: every file has the operands in the schema's order, and the host code runs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hisparse_ops
from benchmarks.cases.resolve import step
from hisparse_ops.simt import _ascend950, _launch
from hisparse_ops.testing import ascend950
from hisparse_ops.testing.buffers import assert_same_buffers, clone_args
from hisparse_ops.testing.samples import load, samples

ROOT = Path(__file__).parents[2]
DEVICE = ROOT / "ops/resolver/ascend950"
ARGUMENTS = [
    a for a in hisparse_ops.ops()["resolve"].call._schema.arguments if "Tensor" in str(a.type)
]
OPERANDS = [a.name for a in ARGUMENTS]
WRITTEN = [a.name for a in ARGUMENTS if a.alias_info and a.alias_info.is_write]
OPTIONAL = [a.name for a in ARGUMENTS if "Optional" in str(a.type)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> ascend950.Host:
    return ascend950.build(ROOT, tmp_path_factory.mktemp("ascend950"))


# --- order, types, optionality, mutability ------------------------------------------------------


def test_every_listing_is_in_the_order_of_the_schema() -> None:
    assert ascend950.listings(ROOT) == expected_listings()
    assert list(_launch.OPERANDS) == OPERANDS


def expected_listings() -> dict[str, list[str]]:
    expected = dict.fromkeys(ascend950.listings(ROOT), OPERANDS)
    expected |= {"slots of outputs": WRITTEN, "adapter, what is written": WRITTEN}
    expected |= {"adapter, what is optional": OPTIONAL}
    expected["adapter, call"] = [*OPERANDS, "all_sizes", "strides"]
    outputs = [f"{name}_out" for name in WRITTEN]
    expected["kernel, signature"] = [*OPERANDS, *outputs, "workspace", "tiling"]
    expected["kernel, by slot"] = [f"{n}_out" if n in WRITTEN else n for n in OPERANDS]
    return expected


def test_slots_have_the_names_of_what_they_are_for() -> None:
    assert [name for _, name in ascend950.slots(ROOT, "SIZES")] == list(_launch.SIZES)
    for kind in ("INPUTS", "OUTPUTS", "SIZES"):
        for slot, name in ascend950.slots(ROOT, kind):
            assert slot == "k" + name.title().replace("_", "")


def test_definition_is_the_schema(host: ascend950.Host) -> None:
    definition = host.definition()
    assert definition.op == "HisparseResolve" and definition.socs == ["ascend950"]
    assert [o.name for o in definition.inputs] == OPERANDS
    assert [o.name for o in definition.outputs] == WRITTEN
    assert definition.attrs == ["sizes", "strides"]
    for operand in definition.inputs + definition.outputs:
        # Written ones are required (slots.h says why), 64-bit ones travel as pairs of int32.
        optional = operand.name in OPTIONAL and operand.name not in WRITTEN
        assert operand.required is not optional, operand.name
        assert operand.dtype == ("int16" if operand.name == "lru_slots" else "int32"), operand.name


def test_an_update_has_the_shape_and_type_of_what_it_updates(host: ascend950.Host) -> None:
    inferred = host.infer()
    assert [OPERANDS[number] for number, _ in inferred] == WRITTEN
    assert [dtype for _, dtype in inferred] == [o.dtype for o in host.definition().outputs]


# --- tiling -------------------------------------------------------------------------------------


def call_of(args: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    """Elements, sizes and strides as the adapter passes them."""
    numbers = _launch.sizes(args)
    elements, strides = [], []
    for name in OPERANDS:
        t = args.get(name)
        span = -1
        if t is not None:
            span = 0 if t.numel() == 0 else 1 + last_element(t)
            span *= t.element_size() // 4 if t.element_size() == 8 else 1
        elements.append(span)
        strides += [*(t.stride() if t is not None else ()), 0, 0][:2]
    return elements, [numbers[name] for name in _launch.SIZES], strides


def last_element(t: Tensor) -> int:
    return sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def test_tiling_launches_a_block_a_row_at_most_one_an_aiv(host: ascend950.Host) -> None:
    for sample in samples("resolve"):
        elements, sizes, strides = call_of(sample.args())
        for cores in (1, 3, 64):
            host.set_vector_cores(cores)
            launch = host.tile(elements, sizes, strides)
            assert launch is not None, sample.name
            assert launch[0] == max(1, min(cores, sizes[0])), sample.name


@pytest.mark.parametrize("name", ["int64 ids, gaps", "stable lengths, resident", "plain decode"])
def test_tiling_takes_no_less_than_what_the_kernel_reads(host: ascend950.Host, name: str) -> None:
    args = next(s for s in samples("resolve") if s.name == name).args()
    elements, sizes, strides = call_of(args)
    numbers = _launch.sizes(args)
    assert host.tile(elements, sizes, strides) is not None
    rows_of = {"topk_indices": "rows", "request_ids": "rows", "hot_owner": "num_states"}
    rows_of |= {"lru_slots": "num_states", "resident_block_table": "num_states"}
    rows_of |= dict.fromkeys(WRITTEN[2:-1], "rows")
    for i, operand in enumerate(OPERANDS):
        t = args.get(operand)
        if t is None:
            continue
        used = t if operand == "stats" else t[: numbers[rows_of.get(operand, "num_requests")]]
        if operand == "hot_block_table":
            used = used[:, : -(-numbers["hot_size"] // numbers["block_size"])]
        least = (1 + last_element(used)) * (2 if t.element_size() == 8 else 1)
        for held, fits in ((least, True), (least - 1, False), (0, False)):
            call = [*elements[:i], held, *elements[i + 1 :]]
            assert (host.tile(call, sizes, strides) is not None) is fits, (operand, held)


@pytest.mark.parametrize("size", ["rows", "top_k", "num_requests", "num_states", "hot_size"])
def test_tiling_refuses_negative_sizes(host: ascend950.Host, size: str) -> None:
    elements, sizes, strides = call_of(next(samples("resolve")).args())
    sizes[_launch.SIZES.index(size)] = -1
    assert host.tile(elements, sizes, strides) is None


def test_tiling_refuses_lists_of_another_length(host: ascend950.Host) -> None:
    elements, sizes, strides = call_of(next(samples("resolve")).args())
    assert host.tile(elements, sizes[:-1], strides) is None
    assert host.tile(elements, sizes, [*strides, 0]) is None


@pytest.mark.parametrize(("union_limit", "fits"), [(8192, True), (9884, True), (16384, False)])
def test_tiling_sets_aside_the_ub_that_the_kernel_needs(
    host: ascend950.Host, union_limit: int, fits: bool
) -> None:
    """Beyond 216 KiB it refuses, as the launcher does with both numbers."""
    args = step(torch.Generator(), requests=8, rows=4, hot_size=16384, hit_rate=0.5)
    args["max_union_rows"] = union_limit
    elements, sizes, strides = call_of(args)
    host.set_vector_cores(64)
    launch = host.tile(elements, sizes, strides)
    needed = _launch.shared_bytes(32, 2048, union_limit, 16384)
    assert (needed <= _ascend950.USER_UB_BYTES) is fits
    assert launch == ((32, needed) if fits else None)
    if not fits:
        with pytest.raises(ValueError, match=f"at most 221184 bytes .* got {needed} bytes"):
            _launch.check_budget(_launch.sizes(args), _ascend950.USER_UB_BYTES)


# --- the whole way ------------------------------------------------------------------------------


@pytest.mark.nightly
def test_launcher_to_kernel_equals_the_cpu_op(tmp_path: Path) -> None:
    """Launcher, adapter, definition, tiling, kernel entry and body, on every sample."""
    host = ascend950.build(ROOT, tmp_path, kernel=True)
    resolve = _ascend950.launcher(torch.ops.hisparse_ascend950.resolve.default)
    for number, sample in enumerate(samples("resolve", "nightly")):
        host.set_vector_cores(1 + number % 5)
        args = sample.args()
        expected = clone_args(args)
        hisparse_ops.ops()["resolve"].call(**expected)
        resolve(**args)
        assert_same_buffers(args, expected)


# --- the build ----------------------------------------------------------------------------------


def make_cann(root: Path, *, header: bool, version: str) -> Path:
    (root / "share/info/toolkit").mkdir(parents=True)
    if header:
        (root / "x86_64-linux/include/simt_api").mkdir(parents=True)
        (root / "x86_64-linux/include/simt_api/asc_simt.h").touch()
    if version:
        (root / "share/info/toolkit/version.info").write_text(f"Version={version}\ninner=1\n")
    return root


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
def test_build_without_cann_says_why() -> None:
    env = {name: value for name, value in os.environ.items() if name != "ASCEND_HOME_PATH"}
    done = subprocess.run([DEVICE / "build.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ASCEND_HOME_PATH is not set" in done.stderr


@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed")
@pytest.mark.parametrize(
    ("soc", "header", "version", "reason"),
    [
        ("ascend950", True, "9.2.1", ""),
        ("ascend950dt_9582", True, "10.0.0.beta1", ""),
        ("ascend950", True, "9.1.0", "CANN must be 9.2 or later, got 9.1.0"),
        ("ascend950", True, "", "no version of CANN is found in {home}"),
        ("ascend950", False, "9.2.1", "CANN in {home} has no simt_api/asc_simt.h"),
        ("ascend910b", True, "9.2.1", "SOC must be an ascend950, whose vector cores run SIMT code"),
    ],
)
def test_a_cann_that_cannot_do_it_is_named(
    tmp_path: Path, soc: str, header: bool, version: str, reason: str
) -> None:
    home = make_cann(tmp_path / "cann", header=header, version=version)
    command = ["cmake", f"-DSOC={soc}", f"-DASCEND_HOME_PATH={home}"]
    done = subprocess.run(
        [*command, "-P", DEVICE / "simt_cann.cmake"], capture_output=True, text=True
    )
    assert done.returncode == 0
    printed = done.stderr.strip()
    assert printed.startswith(f"ascend950: {reason.format(home=home)}") if reason else not printed


# --- arguments that share memory ----------------------------------------------------------------


def test_what_overlaps_is_refused_in_the_words_of_the_cpu_op() -> None:
    seen = 0
    for bad in load("resolve").BAD_ARGUMENTS:
        args = next(samples("resolve")).args()
        bad.change(args)
        if "distinct host rows" in bad.error:
            _launch.check(args)  # in the values, which a launch does not read
            continue
        with pytest.raises(ValueError, match=f"^{re.escape(bad.error)}$"):
            _launch.check(args)
        seen += "overlap" in bad.error
    assert seen >= 3


def test_what_interleaves_is_taken() -> None:
    args = next(samples("resolve")).args()
    both = torch.zeros(2, 16, dtype=torch.int32)
    args["refill_host_rows"], args["refill_hot_rows"] = both[:, :8], both[:, 8:]
    _launch.check(args)
    args["refill_hot_rows"] = both[:, 7:15]
    with pytest.raises(ValueError, match="refill_hot_rows must not overlap refill_host_rows"):
        _launch.check(args)


def test_samples_pass_the_checks() -> None:
    for sample in samples("resolve"):
        _launch.check(sample.args())


@pytest.mark.nightly
def test_every_swap_of_operands_is_noticed() -> None:
    spec = importlib.util.spec_from_file_location("device_faults", ROOT / "tools/device_faults.py")
    assert spec and spec.loader
    tool = importlib.util.module_from_spec(spec)
    sys.modules["device_faults"] = tool
    spec.loader.exec_module(tool)
    count, unnoticed = tool.run(tool.PLACES, report=False)
    assert count >= 100 and unnoticed == []
