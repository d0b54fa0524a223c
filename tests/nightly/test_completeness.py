"""An op is whole or it is not there: every piece of every op, and proof that a missing one is seen."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import hisparse_ops
from hisparse_ops import reference
from hisparse_ops.testing import samples

ROOT = Path(__file__).parents[2]
DOCSTRING = ("Parameters\n", "Raises\n", "Mutates:", "Graph-safe:", "Deterministic:", "Source:")


def files(op: str, family: str) -> dict[str, str]:
    """What each op has in the tree, by kind; a name may be a pattern."""
    return {
        "kernel": f"ops/{family}/{op}_cpu.cpp",
        "oracle": f"python/hisparse_ops/reference/{op}.py",
        "samples": f"python/hisparse_ops/testing/samples/{op}.py",
        "test": f"tests/nightly/test_{op}.py",
        "benchmark case": f"benchmarks/cases/{op}.py",
        "doc page": f"docs/ops/{op}.md",
    }


def missing_files(root: Path) -> list[str]:
    return [
        f"{name}: no {kind} ({path})"
        for name, op in hisparse_ops.ops().items()
        for kind, path in files(name, op.family).items()
        if not (root / path).is_file()
    ]


def stray_files(root: Path) -> list[str]:
    """Files of a stem that no op has."""
    known = {
        path for name, op in hisparse_ops.ops().items() for path in files(name, op.family).values()
    }
    places = ("python/hisparse_ops/reference", "python/hisparse_ops/testing/samples")
    places += ("benchmarks/cases", "docs/ops")
    found = [
        p for place in places for p in (root / place).glob("*.*") if p.suffix in (".py", ".md")
    ]
    found += (root / "ops").glob("*/*_cpu.cpp")
    names = [str(p.relative_to(root)) for p in found if p.stem != "README" and p.name[0] != "_"]
    return sorted(set(names) - known)


def test_every_op_has_every_file() -> None:
    assert missing_files(ROOT) == []


def test_no_file_is_left_over() -> None:
    assert stray_files(ROOT) == []


@pytest.mark.parametrize("kind", list(files("x", "y")))
def test_a_deleted_file_is_seen(kind: str, tmp_path: Path) -> None:
    for place in ("ops", "python", "tests", "benchmarks", "docs"):
        ignore = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / place, tmp_path / place, ignore=ignore)
    name, op = next(iter(hisparse_ops.ops().items()))
    path = files(name, op.family)[kind]
    (tmp_path / path).unlink()
    assert missing_files(tmp_path) == [f"{name}: no {kind} ({path})"]


def test_op_is_declared_whole(op: str) -> None:
    entry = hisparse_ops.ops()[op]
    assert entry.family in ("resolver", "gather", "transfer", "invalidate")
    assert entry.schema.endswith(") -> ()"), "a mutating op returns nothing"
    assert entry.mutates, "these ops exist to write their arguments"
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hisparse::{op}", "CPU")
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"hisparse::{op}", "Meta")
    assert torch.Tag.pt2_compliant_tag in entry.call.tags
    assert torch.Tag.needs_exact_strides in entry.call.tags


def test_everything_takes_the_arguments_of_the_schema(op: str) -> None:
    entry = hisparse_ops.ops()[op]
    schema = [(a.name, a.kwarg_only) for a in entry.call._schema.arguments]
    public: list[Callable[..., None]] = [entry.function, entry.check, reference.load(op)]
    for function in public:
        parameters = inspect.signature(function).parameters.values()
        assert [(p.name, p.kind is p.KEYWORD_ONLY) for p in parameters] == schema, function
    assert getattr(hisparse_ops, op) is entry.function and op in hisparse_ops.__all__


def test_docstring_is_whole(op: str) -> None:
    entry = hisparse_ops.ops()[op]
    text = inspect.getdoc(entry.function) or ""
    assert [section for section in DOCSTRING if section not in text] == []
    for argument in entry.call._schema.arguments:
        assert re.search(rf"^{argument.name}\b|, {argument.name}\b", text, re.MULTILINE), (
            argument.name
        )
    for name in entry.mutates:
        mutates = text.split("Mutates:")[1].split("Graph-safe")[0]
        assert f"``{name}``" in mutates or "every output" in mutates, f"{name} is written"


def test_samples_reach_every_argument(op: str) -> None:
    """Optional arguments are given by some sample and left out by another."""
    given: dict[str, set[bool]] = {}
    arguments = hisparse_ops.ops()[op].call._schema.arguments
    for sample in samples.samples(op):
        args = sample.args()
        for a in arguments:
            given.setdefault(a.name, set()).add(args.get(a.name) is not None)
    for a in arguments:
        assert True in given[a.name], f"no sample gives {a.name}"


def test_bad_arguments_reach_every_argument(op: str) -> None:
    wrong = {b.error.split(": ")[1].split(" must ")[0] for b in samples.load(op).BAD_ARGUMENTS}
    wrong = {re.sub(r"\[\d+\]", "", name) for name in wrong}
    missing = {a.name for a in hisparse_ops.ops()[op].call._schema.arguments} - wrong
    assert missing == set(), "nothing shows that a wrong value is refused"


def test_native_cores_know_no_torch() -> None:
    """Adapters use the stable ABI alone, cores use none of torch."""
    for path in (ROOT / "ops").glob("**/*"):
        if path.suffix not in (".h", ".cpp"):
            continue
        includes = re.findall(r'#include [<"](\S+)[>"]', path.read_text())
        torch_headers = [i for i in includes if i.startswith(("torch/", "ATen/", "c10/"))]
        if path.name.endswith("_cpu.cpp") or path.name in ("check.h", "parallel.h"):
            stable = ("torch/csrc/stable/", "torch/headeronly/")
            assert [i for i in torch_headers if not i.startswith(stable)] == [], path
        elif path.parent.name == "torch_adapter":
            continue  # built where it runs, against that torch and torch_npu
        else:
            assert torch_headers == [], path


def test_no_two_types_of_the_cores_share_a_name() -> None:
    """One namespace, many translation units: two would be merged by the linker, undefined and unnoticed."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "ops").glob("*/*.h")):
        for name in re.findall(r"^(?:struct|class) (\w+)[^;]*?\{", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(path.name)
    assert found and {n: places for n, places in found.items() if len(places) > 1} == {}


def test_oracles_are_never_dispatched_to() -> None:
    """The package proper imports neither oracles nor samples, nor the integration package."""
    package = ROOT / "python/hisparse_ops"
    for path in package.glob("**/*.py"):
        if path.relative_to(package).parts[0] in ("reference", "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                names = [a.name for a in node.names]
            for name in names:
                forbidden = ("hisparse_ops.reference", "hisparse_ops.testing", "hisparse_vllm")
                assert not name.startswith(forbidden), path
