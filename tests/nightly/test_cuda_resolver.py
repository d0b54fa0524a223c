"""The CUDA form of ``resolve``: how it is called, found and refused, without a card; with nvcc, that it builds."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import hisparse_ops
from hisparse_ops import simt
from hisparse_ops.simt import _cuda, _launch
from hisparse_ops.testing.samples import load, samples

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's C interface, compiled by this host's C++ compiler from the same header."""
    target = tmp_path_factory.mktemp("cuda") / "libstub.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-shared", "-fPIC", f"-I{ROOT / 'ops'}"]
    source = ROOT / "tests/stubs/cuda_library.cpp"
    subprocess.run([*command, str(source), "-o", str(target)], check=True)
    return target


# --- the call -----------------------------------------------------------------------------------


def test_call_has_the_layout_of_the_header(stub: Path) -> None:
    assert _cuda.Library(stub).layout() == _cuda.layout()


def test_library_sees_what_is_packed(stub: Path) -> None:
    library, raw = _cuda.Library(stub), ctypes.CDLL(str(stub))
    for name in ("stream", "lru_slots", "stats"):
        getattr(raw, name).restype = ctypes.c_void_p
    for name in ("hot_size", "wide", "topk_column_stride", "stats_stride"):
        getattr(raw, name).restype = ctypes.c_int64
    for sample in samples("resolve"):
        args = sample.args()
        library.launch(_cuda.pack(args), 77)
        topk, stats = args["topk_indices"], args.get("stats")
        assert raw.stream() == 77
        assert raw.lru_slots() == args["lru_slots"].data_ptr()
        assert raw.stats() == (stats.data_ptr() if stats is not None else None)
        assert raw.stats_stride() == (stats.stride(0) if stats is not None else 0)
        assert raw.hot_size() == args["hot_owner"].shape[1]
        assert raw.topk_column_stride() == topk.stride(1)
        assert bool(raw.wide() & 1) is (topk.dtype is torch.int64)


def test_sizes_are_what_the_contract_says() -> None:
    args = next(s for s in samples("resolve") if s.name == "stable lengths, resident").args()
    args["request_state_indices"] = args["request_state_indices"][:2]
    args["resident_block_table"] = args["resident_block_table"][:3]
    numbers = _launch.sizes(args)
    assert tuple(numbers) == _launch.SIZES
    assert numbers["num_requests"] == 2 and numbers["num_states"] == 3
    assert numbers["source_block_size"] == numbers["resident_block_size"] == args["block_size"]
    assert numbers["attention_block_stride"] == args["block_size"]
    assert numbers["union_limit"] == args["hot_owner"].shape[1] and numbers["prefix"] == 0
    assert numbers["given"] == sum(
        1 << i for i, name in enumerate(_launch.OPERANDS) if args.get(name) is not None
    )
    args |= {"layout": "prefix", "max_union_rows": 33, "attention_block_stride": 9}
    args |= {"source_block_size": 3, "resident_block_size": 5}
    numbers = _launch.sizes(args)
    assert numbers["union_limit"] == 33 and numbers["prefix"] == 1
    assert numbers["attention_block_stride"] == 9
    assert (numbers["source_block_size"], numbers["resident_block_size"]) == (3, 5)


def test_positional_arguments_get_their_names() -> None:
    args = next(samples("resolve")).args()
    keywords = {k: args[k] for k in ("host_rows", "num_blocks", "block_size")}
    positional = [args[a.name] for a in SCHEMA if not a.kwarg_only]
    named = _launch.by_name(tuple(positional), keywords)
    assert list(named) == [a.name for a in SCHEMA if not a.kwarg_only] + list(keywords)
    assert all(named[name] is args[name] for name in named)


SCHEMA = hisparse_ops.ops()["resolve"].call._schema.arguments


def test_a_refused_launch_says_why(stub: Path) -> None:
    library, raw = _cuda.Library(stub), ctypes.CDLL(str(stub))
    raw.answer_with(35)
    try:
        with pytest.raises(RuntimeError, match=r"^resolve: the CUDA kernel cannot .*: no driver$"):
            library.launch(_cuda.pack(next(samples("resolve")).args()), 0)
    finally:
        raw.answer_with(0)


# --- finding it ---------------------------------------------------------------------------------


def test_status_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(_cuda.VARIABLE, str(tmp_path / "absent.so"))
    assert "make cuda-library" in simt._register_cuda() and "absent.so" in simt._register_cuda()
    (tmp_path / "broken.so").write_text("no library")
    monkeypatch.setenv(_cuda.VARIABLE, str(tmp_path / "broken.so"))
    assert simt._register_cuda().startswith("not usable: ")
    assert "resolve" not in hisparse_ops.backends()["cuda"].ops


def test_a_library_of_another_version_is_refused(
    stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_launch, "OPERANDS", (*_launch.OPERANDS[1::-1], *_launch.OPERANDS[2:]))
    with pytest.raises(OSError, match="of another version of hisparse-ops; build it again"):
        _cuda.Library(stub)


def test_a_library_that_is_there_is_registered(stub: Path) -> None:
    """In a process of its own: a registration stays."""
    program = (
        "import hisparse_ops as h\n"
        "print(h.simt.status('cuda')); print('resolve' in h.backends()['cuda'].ops)"
    )
    env = os.environ | {_cuda.VARIABLE: str(stub)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{stub} for nothing", "True"], done.stderr


# --- the real library ---------------------------------------------------------------------------

needs_nvcc = pytest.mark.skipif(tool("build_cuda").nvcc() is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("nvcc") / _cuda.LIBRARY
    tool("build_cuda").build(target)
    return target


@needs_nvcc
def test_library_has_code_for_every_card_it_names(library: Path) -> None:
    found = {(kind, arch) for kind, arch in device_code(library.read_bytes())}
    assert _cuda.Library(library).targets() == "sm_80 sm_90a sm_100a compute_80"
    assert found >= {(SASS, 80), (SASS, 90), (SASS, 100), (PTX, 80)}


PTX, SASS = 1, 2


def device_code(binary: bytes) -> Iterator[tuple[int, int]]:
    """(kind, architecture) of what the fat binaries of a library hold."""
    at = -1
    while (at := binary.find(b"\x50\xed\x55\xba", at + 1)) >= 0:
        _, _, header, size = struct.unpack_from("<IHHQ", binary, at)
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, length, bytes_ = struct.unpack_from("<HHIQ", binary, entry)
            yield kind, struct.unpack_from("<I", binary, entry + 28)[0]
            entry += length + bytes_


@needs_nvcc
def test_library_exports_its_interface_alone_and_no_torch(library: Path) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert sorted(re.findall(r" T (\w+)", listed)) == [
        "hisparse_cuda_error",
        "hisparse_cuda_shared_bytes",
        "hisparse_cuda_targets",
        "hisparse_resolve_cuda",
        "hisparse_resolve_layout",
        "hisparse_resolve_slots",
    ]
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    assert "torch" not in needed and "cudart" not in needed and "libcuda" not in needed


@needs_nvcc
def test_library_loads_without_a_driver_and_says_so_at_a_launch(library: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a driver; tools/cuda_resolver_check.py says more")
    loaded = _cuda.Library(library)
    reason = "^resolve: the CUDA kernel cannot be launched: CUDA driver version is insufficient"
    with pytest.raises(RuntimeError, match=reason):
        loaded.launch(_cuda.pack(next(samples("resolve")).args()), 0)
    with pytest.raises(RuntimeError, match=reason):
        loaded.shared_bytes(0)


@needs_nvcc
def test_library_has_the_layout_of_the_package(library: Path) -> None:
    assert _cuda.Library(library).layout() == _cuda.layout()


def test_without_nvcc_the_build_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDACXX", raising=False)
    with pytest.raises(RuntimeError, match="nvcc is not found: put it on the path"):
        tool("build_cuda").build(tmp_path / "x.so")


# --- the script for a card ----------------------------------------------------------------------


def test_script_for_a_card_is_rehearsed(capsys: pytest.CaptureFixture[str]) -> None:
    script = tool("cuda_resolver_check")
    arguments = ["--device", "cpu", "--tier", "default", "--repeat", "1", "--timings", "1"]
    assert script.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "samples: ok" in printed and "wrong arguments: ok" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_script_for_a_card_wants_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tool("cuda_resolver_check").main([])
    assert "torch sees no CUDA card" in capsys.readouterr().err


def test_script_for_a_card_notices_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    script = tool("cuda_resolver_check")
    assert set(script.ON_CPU_ONLY) <= {b.name for b in load("resolve").BAD_ARGUMENTS}
    right = script.RESOLVE
    calls = 0

    def wrong(**args: object) -> None:
        nonlocal calls
        right(**args)
        calls += 1
        if calls % 2 == 0:  # the second of the two calls on a sample is the device's
            args["valid_counts"].add_(1)  # type: ignore[attr-defined]

    monkeypatch.setattr(script, "RESOLVE", wrong)
    found = dict(script.check_samples("default", "cpu"))
    assert len(found) > 20 and "valid_counts" in found["plain decode"]


def test_script_times_what_was_asked() -> None:
    script = tool("cuda_resolver_check")
    rows = {(t.hot_size, t.batch, t.mtp, t.miss_percent) for t in script.TIMINGS}
    assert {hot for hot, *_ in rows} == {4096, 10240} and {mtp for _, _, mtp, _ in rows} == {1, 3}
    assert {batch for _, batch, *_ in rows} == {1, 2, 8, 32}
    assert {miss for *_, miss in rows} == {0.1, 20.0, 100.0}
    args = script.Timing(1, 1, 4096, 20.0).args()
    hot = set(args["hot_owner"][0].tolist())
    source, size = args["source_block_table"][0], args["block_size"]
    topk = args["topk_indices"].long()
    held = (source[topk // size] * size + topk % size).unique().tolist()
    assert 0.15 < 1 - sum(row in hot for row in held) / len(held) < 0.25
