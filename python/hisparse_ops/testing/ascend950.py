"""The Ascend 950 sources of ``resolve``, built for this host over stubs of CANN's types (``tests/stubs/cann``).

What comes out runs the op as ACLNN would: definition, tiling, shape inference and, with ``kernel=True``, the adapter
and the kernel entry in the emulation of the SIMT layer.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.cpp_extension import include_paths, library_paths

from hisparse_ops.testing.emulation import compiler

DTYPES = {3: "int32", 6: "int16", 9: "int64"}


@dataclass(frozen=True)
class Operand:
    """An input or output as the definition has it."""

    name: str
    required: bool
    dtype: str


@dataclass(frozen=True)
class Definition:
    """What ``op_host`` registers."""

    op: str
    inputs: list[Operand]
    outputs: list[Operand]
    attrs: list[str]
    socs: list[str]


class Host:
    """The built library."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.definition.restype = ctypes.c_char_p

    def definition(self) -> Definition:
        found = Definition("", [], [], [], [])
        for line in self._library.definition().decode().splitlines():
            kind, name, *rest = line.split()
            if kind == "op":
                found = Definition(name, [], [], [], [])
            elif kind in ("input", "output"):
                operand = Operand(name, rest[0] == "required", DTYPES[int(rest[1])])
                (found.inputs if kind == "input" else found.outputs).append(operand)
            else:
                (found.attrs if kind == "attr" else found.socs).append(name)
        return found

    def infer(self) -> list[tuple[int, str]]:
        """For every output the number of the input whose shape it gets, and its type."""
        count = len(self.definition().outputs)
        sizes, types = (ctypes.c_int64 * count)(), (ctypes.c_int32 * count)()
        assert self._library.infer(sizes, types) == 0
        return [(size - 1, DTYPES[dtype]) for size, dtype in zip(sizes, types, strict=True)]

    def tile(
        self, elements: list[int], sizes: list[int], strides: list[int]
    ) -> tuple[int, int] | None:
        """Blocks and bytes of UB that tiling chooses, or None if it refuses."""
        blocks, ub = ctypes.c_uint32(), ctypes.c_uint32()
        refused = self._library.tile(
            (ctypes.c_int64 * len(elements))(*elements),
            (ctypes.c_int64 * len(sizes))(*sizes),
            ctypes.c_int64(len(sizes)),
            (ctypes.c_int64 * len(strides))(*strides),
            ctypes.c_int64(len(strides)),
            ctypes.byref(blocks),
            ctypes.byref(ub),
        )
        return None if refused else (blocks.value, ub.value)

    def set_vector_cores(self, cores: int) -> None:
        self._library.set_vector_cores(ctypes.c_uint32(cores))


def listings(root: Path) -> dict[str, list[str]]:
    """The operands, in order, at every place of the tree at ``root`` that lists them; but for the definition."""
    device = root / "ops/resolver/ascend950"
    adapter = (device / "torch_adapter/resolve_npu.cpp").read_text()
    kernel = (device / "op_kernel/hisparse_resolve.cpp").read_text()
    launcher = (root / "python/hisparse_ops/simt/_launch.py").read_text()
    schema = "".join(re.findall(r'"(.*?)"', _part(adapter, r"m\.def\((.*?)\);")))
    made = re.findall(
        r"(\w+) =\s+(?:stats \? )?operands\.\w+\(Input::(\w+), \"(\w+)\", \*?(\w+)", adapter
    )
    local = {name: operand for name, _, operand, _ in made}
    passed = _part(adapter, r"EXEC_NPU_CMD\(aclnnHisparseResolve,(.*?)\);").split(",")
    return {
        "slots of inputs": [name for _, name in slots(root, "INPUTS")],
        "slots of outputs": [name for _, name in slots(root, "OUTPUTS")],
        "launcher": re.findall(r'"(\w+)"', _part(launcher, r"^OPERANDS = \((.*?)^\)")),
        "adapter, signature": re.findall(
            r"& (\w+)[,)]", _part(adapter, r"^void resolve\((.*?)\) \{") + ","
        ),
        "adapter, schema": re.findall(r"Tensor\S* (\w+)", schema),
        "adapter, what is written": re.findall(r"Tensor\(\w!\)\S* (\w+)", schema),
        "adapter, what is optional": re.findall(r"Tensor(?:\(\w!\))?\? (\w+)", schema),
        "adapter, slots": [_operand(slot) for _, slot, _, _ in made],
        "adapter, names": [name for _, _, name, _ in made],
        "adapter, tensors": [source for *_, source in made],
        "kernel, signature": re.findall(
            r"GM_ADDR (\w+)", _part(kernel, r"void hisparse_resolve\((.*?)\) \{")
        ),
        "kernel, by slot": re.findall(r"\w+", _part(kernel, r"by_slot\[\] = \{(.*?)\}")),
        "adapter, call": [local.get(item.strip(), item.strip()) for item in passed],
    }


def slots(root: Path, name: str) -> list[tuple[str, str]]:
    """(enumerator, operand) of a list of ``slots.h``."""
    text = (root / "ops/resolver/simt/slots.h").read_text()
    body = _part(text, rf"#define HISPARSE_RESOLVE_{name}\(X\)(.*?[^\\])\n")
    return re.findall(r"X\((\w+), (\w+)\)", body)


def _part(text: str, pattern: str) -> str:
    found = re.search(pattern, text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise AssertionError(f"no place reads {pattern}")
    return found.group(1)


def _operand(slot: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", slot.removeprefix("k")).lower()


def build(root: Path, out: Path, *, kernel: bool = False) -> Host:
    """Compile the sources of the tree at ``root`` into ``out``; RuntimeError with the compiler's words.

    With ``kernel`` also the adapter, for CPU tensors, and the kernel's entry over the emulation; the library then
    brings ``torch.ops.hisparse_ascend950.resolve``.
    """
    device = root / "ops/resolver/ascend950"
    stubs = root / "tests/stubs"
    sources = [*sorted((device / "op_host").glob("*.cpp")), stubs / "cann/host.cpp"]
    includes = [root / "ops", device, device / "op_host", device / "op_kernel", stubs / "cann"]
    target = out / f"libascend950_{'whole' if kernel else 'host'}.so"
    command = [compiler(), "-std=c++17", "-O1", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += ["-Wall", "-Wextra", "-Werror", *(f"-I{path}" for path in includes)]
    if kernel:
        sources += [device / "torch_adapter/resolve_npu.cpp", stubs / "cann/kernel.cpp"]
        sources.append(stubs / "simt/fibers/emulator.cpp")
        command += ["-Wno-unused-parameter", "-DHISPARSE_DEVICE_KEY=CPU"]
        command += [f"-isystem{path}" for path in include_paths()]
        command += [f"-L{path}" for path in library_paths()]
        command += [*map(str, sources), "-o", str(target), "-ltorch_cpu", "-ltorch", "-lc10"]
    else:
        command += [*map(str, sources), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    if kernel:
        torch.ops.load_library(str(target))  # type: ignore[no-untyped-call]
    return Host(target)
