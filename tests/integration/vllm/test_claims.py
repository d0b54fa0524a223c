"""docs/vllm/claims.md names tests that exist, and says of every claim where it stands. Needs no vLLM."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
CLAIMS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in (ROOT / "docs/vllm/claims.md").read_text().splitlines()
    if line.startswith("| ")
][1:]


def test_every_claim_is_shown_or_waits() -> None:
    assert len(CLAIMS) >= 20
    for claim, state, by in CLAIMS:
        assert claim and by and state in ("shown", "waits"), (claim, state)


def test_what_is_shown_is_shown_by_a_test_that_exists() -> None:
    for claim, state, by in CLAIMS:
        found = re.fullmatch(r"`(test_\w+\.py)::(test_\w+)`", by)
        assert (found is not None) == (state == "shown"), claim
        if found:
            tree = ast.parse((HERE / found[1]).read_text())
            names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert found[2] in names, f"{claim}: there is no {by}"


def test_paths_named_exist() -> None:
    for claim, _, by in CLAIMS:
        for path in re.findall(r"`((?:tests|tools)/[\w/.]+)`", by):
            assert (ROOT / path).exists(), f"{claim}: {path}"
