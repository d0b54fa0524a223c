"""docs/vllm/faults.md lists the faults that there are, and who notices each. Needs no vLLM."""

from __future__ import annotations

import ast
from pathlib import Path

from hisparse_vllm.testing.faults import FAULTS

ROOT = Path(__file__).parents[3]


def keys_of(test: str, name: str) -> set[str]:
    """Keys of a dict that a test module defines, read without importing vLLM."""
    tree = ast.parse((ROOT / "tests/integration/vllm" / test).read_text())
    for node in tree.body:
        target = getattr(node, "target", None)
        if isinstance(node, ast.AnnAssign) and getattr(target, "id", None) == name:
            assert isinstance(node.value, ast.Dict)
            return {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    raise AssertionError(f"{test} defines no {name}")


def test_the_table_lists_every_fault_and_who_notices_it() -> None:
    text = (ROOT / "docs/vllm/faults.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")][1:]
    listed = {cells[0].strip(): cells[3] for cells in rows}
    assert list(listed) == list(FAULTS)
    assert keys_of("test_core_faults.py", "NOTICED") == set(FAULTS)
    in_the_engine = {name for name, where in listed.items() if "engine" in where}
    assert in_the_engine == keys_of("test_engine.py", "IN_THE_ENGINE")
