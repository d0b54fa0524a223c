"""The examples of the documentation run, and say what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hisparse_ops import info, registry

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{i}")
    for page in PAGES
    if page.is_file()
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example(code: str) -> None:
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_every_op_page_has_an_example_that_asserts() -> None:
    for page in (ROOT / "docs/ops").glob("*.md"):
        code = "".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
        assert "assert" in code and f"{page.stem}(" in code, page.name


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        if not page.is_file():
            continue
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_table_of_ops_is_current() -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r"<!-- ops:[^\n]*-->\n(.*?)\n<!-- /ops -->", readme, re.DOTALL)
    table = info.markdown(registry.ops().values(), registry.backends())
    assert found and found.group(1) == table, "run: python -m hisparse_ops info --markdown"
