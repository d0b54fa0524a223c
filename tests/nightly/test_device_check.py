"""The device check: what it reads, says and writes; in the nightly tier the whole of it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hisparse_ops import triton
from tools.device_check import __main__ as cli
from tools.device_check import faults, kernels, table

ROOT = Path(__file__).parents[2]

HIVM = """
  func.func private @f_vf_0() {
    %c64_i64 = arith.constant 64 : i64
    %0 = hivm.hir.pointer_cast(%c64_i64) : memref<1024xi1, #hivm.address_space<ub>>
  }
  func.func @f() {
    %c32768_i64 = arith.constant 32768 : i64
    %c0_i64 = arith.constant 0 : i64
    %6 = llvm.mlir.constant(8192 : i64) : i64
    %1 = hivm.hir.pointer_cast(%c0_i64, %c32768_i64) : memref<256x8xi32, #hivm.address_space<ub>>
    %2 = hivm.hir.pointer_cast(%6) : memref<16xf32, #hivm.address_space<ub>>
    %3 = hivm.hir.pointer_cast(%c0_i64) : memref<0xi32, #hivm.address_space<ub>>
    %4 = hivm.hir.pointer_cast(%9) [%c3] : memref<?xi32>
  }
"""


@pytest.fixture(scope="module")
def ascend() -> ModuleType:
    """ascend.py without the packages of its environment: what it reads and changes is plain text."""
    source = (ROOT / "tools/device_check/ascend.py").read_text()
    source = re.sub(
        r"^(import ascendnpuir|import kernels|import probes|from triton.*)  # noqa: E402$",
        "",
        source,
        flags=re.M,
    )
    source = source.replace("Path(ascendnpuir.__file__).parent", "Path()")
    spec = importlib.util.spec_from_loader("device_check_ascend", loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(ROOT / "tools/device_check/ascend.py")
    exec(compile(source, "ascend.py", "exec"), module.__dict__)
    return module


def test_ub_is_the_end_of_the_buffer_that_lies_furthest(ascend: ModuleType) -> None:
    assert ascend.ub_bytes(HIVM) == 32768 + 256 * 8 * 4
    assert ascend.ub_bytes(HIVM.split("func.func @f()")[0]) == 64 + 1024 // 8
    assert ascend.ub_bytes("module {}") == 0


def test_one_occurrence_is_changed(ascend: ModuleType) -> None:
    text = "a = slt, b = slt, c = sltu"
    assert ascend.changed(text, r"slt\b", "sle", 1) == "a = slt, b = sle, c = sltu"
    with pytest.raises(ascend.Rejected, match="occurs 2 times, asked for number 2"):
        ascend.changed(text, r"slt\b", "sle", 2)


def test_addresses_become_calls(ascend: ModuleType) -> None:
    text = (
        "module {\n  func.func @k() {\n"
        "    %4 = hivm.hir.pointer_cast(%9) [%c3] : memref<?xi32>\n"
        "    annotation.mark %4 {address_space = #hivm.address_space<gm>} : memref<?xi32>\n  }\n}\n"
    )
    assert ascend.portable(text) == (
        "module {\n  func.func private @at_address_i32(i64) -> memref<?xi32>\n  func.func @k() {\n"
        "    %4 = func.call @at_address_i32(%9) : (i64) -> memref<?xi32>\n  }\n}\n"
    )


def some_table() -> table.Table:
    seen = table.empty(["gather_compact", "pad_slots"])
    seen["gather_compact"]["interpreted"] = table.Cell(36)
    seen["pad_slots"]["cubin"] = table.Cell(8, ["pad_slots-i32 for sm_90: no"])
    seen["pad_slots"]["taken by Ascend's compiler"] = table.Cell(16, note=", 48.1 KB of UB")
    return seen


def test_table_says_what_failed_and_what_was_not_tried() -> None:
    assert table.markdown(some_table()).splitlines()[2:] == [
        "| gather_compact | 36 | no | no | no | no |",
        "| pad_slots | no | 1 of 8 FAILED | 16, 48.1 KB of UB | no | no |",
    ]
    assert table.failures(some_table()) == ["pad_slots, cubin: pad_slots-i32 for sm_90: no"]
    assert "1 of 8 FAILED" in table.text(some_table())


def test_table_is_put_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.document(page, some_table())
    written = page.read_text()
    assert "old" not in written and table.markdown(some_table()) in written
    assert written.startswith("before\n") and written.endswith("\nafter\n")
    page.write_text("no markers")
    with pytest.raises(ValueError, match="must have the lines"):
        table.document(page, some_table())


def test_a_missing_environment_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HISPARSE_ASCEND_ENV", str(tmp_path))
    with pytest.raises(SystemExit, match="run `make device-check`, which makes it"):
        cli.ascend_python()


def test_document_wants_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.parse_args(["--document", "--op", "pad_slots"])
    assert "--document must go without --op" in capsys.readouterr().err


def test_every_op_with_a_kernel_is_checked() -> None:
    assert set(kernels.names()) == set(triton.OPS)


def test_every_family_has_nine_faults() -> None:
    for op in faults._PLANTED:
        assert sum(fault.op == op for fault in faults.FAULTS) >= 9
    assert len(set(faults.FAULTS)) == len(faults.FAULTS)


def test_documented_table_has_every_kernel() -> None:
    """And nothing failed when it was written."""
    page = (ROOT / "docs/backends.md").read_text()
    found = re.search(rf"{re.escape(table.BEGIN)}\n(.*?){re.escape(table.END)}", page, re.S)
    assert found is not None and "FAILED" not in found.group(1)
    rows = re.findall(r"^\| (\w+) \|", found.group(1), re.M)[1:]
    assert rows == list(triton.OPS)


@pytest.mark.nightly
def test_kernels_pass() -> None:
    """Skipped where there is no environment of triton-ascend: `make nightly` makes it."""
    folder = Path(os.environ.get("HISPARSE_ASCEND_ENV", ROOT / ".venv-ascend"))
    if not (folder / "bin" / "python").exists():
        pytest.skip(f"no environment of triton-ascend in {folder}; `make device-check` makes it")
    import subprocess

    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tools.device_check", "--no-seams"]  # the suite has them
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
