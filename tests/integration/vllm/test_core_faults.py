"""Faults put into the ops under vLLM Core on purpose: each must be noticed by the comparisons of the core loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")

from hisparse_vllm.testing.core_loop import CoreLoop, Settings, WrongRow, drive
from hisparse_vllm.testing.faults import FAULTS

# Configurations in which the faults matter, and the comparison that must notice.
TIGHT = {"draft_tokens": 3, "hot_size": 64, "device_blocks": 130}
SMALL = {"device_blocks": 64}
FEW_HOST_PAGES = {"device_blocks": 120, "host_pool_gib": 0.006, "hot_size": 256}
NOTICED: dict[str, tuple[dict[str, Any], str]] = {
    "wrong row": (SMALL, "decode read"),
    "resident table indexed by batch row": (SMALL, "valid counts|read of"),
    "attention block stride ignored": (SMALL, "decode read"),
    "union per batch row": (TIGHT, "decode read"),
    "plan packed per row": (TIGHT, "decode read"),
    "hits counted per distinct row": (TIGHT, "statistics"),
    "mirror skipped": (SMALL, "host page"),
    "layer offset dropped": (SMALL, "read of"),
    "stale hot row after a write": ({"device_blocks": 64, "stale_owners": True}, "stale hot row"),
    "recycled rows stay hot": (FEW_HOST_PAGES, "decode read"),
    "staging from the page before": (SMALL, "staged read"),
    "rows ahead not patched": (SMALL, "staged read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, how = NOTICED[name]
    loop = CoreLoop(Settings(**settings, seed=1), tmp_path)
    try:
        FAULTS[name](monkeypatch.setattr)
        with pytest.raises(WrongRow, match=how):
            drive(loop, requests=14)
    finally:
        loop.close()


def test_without_a_fault_nothing_is_noticed(tmp_path: Path) -> None:
    """The configurations of the faults pass by themselves."""
    for settings in (SMALL, TIGHT):
        loop = CoreLoop(Settings(**settings, seed=1), tmp_path)
        drive(loop, requests=4)
        loop.close()
