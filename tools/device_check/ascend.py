"""Runs in the environment of triton-ascend: kernels through its front end and the middle end of Ascend's compiler.

The last step, from HIVM to an object file, is CANN's and on no package registry. A stub that makes no code stands in
for it, so that the exit status tells whether the vendor's front end and middle end took the kernel.

Prints one JSON object a line. ``python ascend.py --help`` lists what it can be asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import ascendnpuir  # noqa: E402
import kernels  # noqa: E402
import probes  # noqa: E402
from triton._C.libtriton import ir, llvm  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.compiler import ASTSource, make_backend  # noqa: E402

BIN = Path(ascendnpuir.__file__).parent / "bin"
TARGETS = {
    "Ascend910B3": "bishengir-compile",
    "Ascend910_9392": "bishengir-compile",
    "Ascend950PR_9589": "bishengir-compile-a5",
    "Ascend950DT_9581": "bishengir-compile-a5",
}
UB_BYTES = {"bishengir-compile": 192 << 10, "bishengir-compile-a5": 248 << 10}
"""Unified buffer that a kernel may use: on the 950, 8 of its 256 KB are the compiler's."""

MAX_NAME = 49
_A5 = {
    "compile_on_910_95": True,
    "multibuffer": False,
    "enable_auto_bind_sub_block": False,
    "enable_select_analysis": True,
}
_STUB = """#!/bin/sh
[ "$1" = --version ] && { echo "hivmc 1.2.0"; exit 0; }
while [ $# -gt 0 ]; do [ "$1" = -o ] && { : > "$2"; : > "$2.o"; }; shift; done
"""
_BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f16": 16, "bf16": 16, "f32": 32}


class Rejected(RuntimeError):
    """What the compiler says against a kernel."""


def linalg(variant: Any, target: str) -> str:
    """The front end: Triton's IR of a variant, then linalg on tensors and memrefs."""
    if len(variant.kernel.fn.__name__) > MAX_NAME:
        raise Rejected(f"the name has more than {MAX_NAME} characters")
    where = GPUTarget("npu", target, 0)
    backend = make_backend(where)
    options = backend.parse_options(dict(_A5) if _is_a5(target) else {})
    stages: dict[str, Callable[..., Any]] = {}
    backend.add_stages(stages, options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(
        fn=variant.kernel, signature=variant.signature, constants=dict(variant.constants)
    )
    metadata = {"hash": "0", "target": where, **options.__dict__}
    try:
        module = source.make_ir(
            options, backend.get_codegen_implementation(), backend.get_module_map(), context
        )
        text = stages["ttadapter"](stages["ttir"](module, metadata), metadata)
    except Exception as error:
        raise Rejected(f"front end: {error}") from error
    return re.sub(r', mix_mode\s*=\s*"[^"]*"', "", str(text))


def _is_a5(target: str) -> bool:
    return TARGETS[target].endswith("a5")


def hivm(text: str, target: str, stubs: Path) -> str:
    """The middle end: buffers placed, on-chip memory planned, library calls chosen."""
    compiler = TARGETS[target]
    with tempfile.TemporaryDirectory() as folder:
        source, result = Path(folder, "in.mlir"), Path(folder, "module.hivm.opt.mlir")
        source.write_text(text)
        command = [str(BIN / compiler), str(source), f"--target={target}"]
        command += ["--enable-hfusion-compile=true", "--enable-triton-kernel-compile=true"]
        command += [] if _is_a5(target) else ["--enable-hivm-compile=true"]
        command += [f"--save-temps={folder}", "-o", str(Path(folder, "out"))]
        env = os.environ | {"PATH": f"{stubs}:{BIN}:{os.environ['PATH']}"}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode or not result.exists():
            raise Rejected(f"middle end: {(done.stdout + done.stderr)[-600:]}")
        return result.read_text()


_CONSTANT = re.compile(r"(%\w+) = (?:arith\.constant (-?\d+)|llvm\.mlir\.constant\((-?\d+)) : i64")
_BUFFER = re.compile(
    r"pointer_cast\(([^)]*)\).*: memref<((?:\d+x)*)(\w+), #hivm\.address_space<ub>>"
)


def ub_bytes(text: str) -> int:
    """Bytes of the unified buffer that planned HIVM uses: the end of the buffer that lies furthest."""
    end = 0
    constants: dict[str, int] = {}  # of the function at hand: names come again in the next one
    for line in text.splitlines():
        if found := _CONSTANT.search(line):
            constants[found[1]] = int(found[2] or found[3])
        elif found := _BUFFER.search(line):
            bits = _BITS[found[3]]
            for extent in found[2].split("x")[:-1]:
                bits *= int(extent)
            for start in re.findall(r"%\w+", found[1]):
                end = max(end, constants[start] + -(-bits // 8))
    return end


def check(op: str, variant: Any, target: str, stubs: Path) -> dict[str, Any]:
    """What the compiler for ``target`` makes of a variant."""
    found = {
        "op": op,
        "variant": variant.name,
        "target": target,
        "limit": UB_BYTES[TARGETS[target]],
    }
    try:
        used = ub_bytes(hivm(linalg(variant, target), target, stubs))
    except Rejected as error:
        return {**found, "error": str(error)}
    found["ub_bytes"] = used
    if used > found["limit"]:
        return {**found, "error": f"needs {used} bytes of UB, {found['limit']} are there"}
    if 0 < variant.ub_bytes < used:
        return {**found, "error": f"needs {used} bytes of UB, the kernel says {variant.ub_bytes}"}
    return found


def check_probe(probe: Any, target: str, stubs: Path) -> dict[str, Any]:
    """What the compiler makes of a probe, and what it must."""
    must_be_refused = target in probes.REFUSED.get(probe.name, ())
    return {**check(probe.name, probe, target, stubs), "must_be_refused": must_be_refused}


def make_stubs(folder: Path) -> Path:
    """What stands in for CANN's last step."""
    for name in ("hivmc", "hivmc-a5"):
        Path(folder, name).write_text(_STUB)
        Path(folder, name).chmod(0o755)
    return folder


LOWER = [
    "--convert-elementwise-to-linalg",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true bufferize-function-boundaries=false",
    "--convert-linalg-to-loops",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--memref-expand",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-arith-to-llvm",
    "--convert-math-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--reconcile-unrealized-casts",
]


_POINTER = re.compile(r"hivm\.hir\.pointer_cast\((%\w+)\) \[%\w+\] : memref<\?x(\w+)>")


def portable(text: str) -> str:
    """Linalg without what only an NPU has: addresses read from a table become memrefs by a call into C."""
    text, count = _POINTER.subn(r"func.call @at_address_\2(\1) : (i64) -> memref<?x\2>", text)
    text = re.sub(r"^ *annotation\.mark .*\n", "", text, flags=re.MULTILINE)
    if not count:
        return text
    elements = sorted(set(re.findall(r"@at_address_(\w+)\(", text)))
    lines = [f"  func.func private @at_address_{e}(i64) -> memref<?x{e}>" for e in elements]
    return text.replace("module {\n", "module {\n" + "\n".join(lines) + "\n", 1)


def build_for_cpu(text: str, library: Path) -> None:
    """The linalg of a kernel as a library for this CPU, by the compiler's own passes and gcc."""
    text = portable(text)
    with tempfile.TemporaryDirectory() as folder:
        source, lowered = Path(folder, "in.mlir"), Path(folder, "llvm.mlir")
        source.write_text(text)
        command = [str(BIN / "bishengir-opt"), str(source), *LOWER, "-o", str(lowered)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise Rejected(f"lowering for the CPU: {done.stderr[-600:]}")
        assembly = Path(folder, "kernel.s")
        assembly.write_text(_assembly(lowered))
        command = ["gcc", "-O2", "-fPIC", "-shared", "-o", str(library), str(assembly)]
        subprocess.run([*command, str(HERE / "memrefs.c")], check=True)


def _assembly(lowered: Path) -> str:
    context = ir.context()
    ir.load_dialects(context)
    module = ir.parse_mlir_module(str(lowered), context)
    module.context = context
    llvm.init_targets()
    llvm_module = llvm.to_module(module, llvm.context())
    triple = "x86_64-unknown-linux-gnu"
    llvm.attach_datalayout(llvm_module, triple, "", "")
    llvm.optimize_module(llvm_module, llvm.OPTIMIZE_O2)
    text: str = llvm.translate_to_asm(str(llvm_module), triple, "", "", [], True, False)
    return text


def build(spec: dict[str, Any], target: str, folder: Path) -> dict[str, Any]:
    """A library in ``folder`` of the specialisation that a launcher asked for, its linalg changed where asked for."""
    variant = kernels.specialisation(spec)
    library = folder / f"{spec['key']}.so"
    try:
        text = linalg(variant, target)
        for pattern, replacement, occurrence in spec.get("changes", []):
            text = changed(text, pattern, replacement, occurrence)
        build_for_cpu(text, library)
    except Rejected as error:
        return {"key": spec["key"], "error": str(error)}
    return {"key": spec["key"], "library": str(library)}


def changed(text: str, pattern: str, replacement: str, occurrence: int) -> str:
    """``text`` with one occurrence of the pattern replaced."""
    places = list(re.finditer(pattern, text))
    if occurrence >= len(places):
        raise Rejected(f"{pattern} occurs {len(places)} times, asked for number {occurrence}")
    place = places[occurrence]
    return text[: place.start()] + place.expand(replacement) + text[place.end() :]


def chosen(ops: list[str] | None) -> Iterator[tuple[str, Any]]:
    for op in ops or kernels.names():
        for variant in kernels.variants(op):
            yield op, variant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["gate", "probes", "build"])
    parser.add_argument("--op", action="append", help="gate: one op (all)")
    parser.add_argument("--target", action="append", choices=list(TARGETS), help="one target (all)")
    parser.add_argument(
        "--folder", type=Path, help="build: where libraries go; specs come in, one a line"
    )
    options = parser.parse_args()
    targets = options.target or list(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        stubs = make_stubs(Path(folder))
        work: list[Callable[[], dict[str, Any]]] = []
        if options.mode == "gate":
            work = [
                partial(check, op, v, t, stubs) for t in targets for op, v in chosen(options.op)
            ]
        elif options.mode == "build":
            specs = [json.loads(line) for line in sys.stdin]
            work = [partial(build, spec, targets[0], options.folder) for spec in specs]
        else:
            work = [partial(check_probe, v, t, stubs) for t in targets for v in probes.PROBES]
        # The compilers are programs of their own: threads are enough to keep the cores busy.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for found in pool.map(lambda task: task(), work):
                print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
