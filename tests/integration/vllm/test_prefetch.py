"""An index group's refill starts when its leader has resolved: in decode, and in MTP verification."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hisparse_ops
from hisparse_vllm import prefetch


@pytest.mark.parametrize(
    ("decode", "tokens", "decode_tokens", "expected"),
    [
        (False, 8, 8, True),  # verification
        (True, 4, 4, False),  # decode: Core's own condition holds
        (False, 8, 4, False),  # mixed with a prefill
        (False, 0, 0, False),  # no batch
    ],
)
def test_which_batches_verify(
    decode: bool, tokens: int, decode_tokens: int, expected: bool
) -> None:
    handle = SimpleNamespace(
        decode_batch=decode, num_actual_tokens=tokens, num_decode_tokens=decode_tokens
    )
    assert prefetch.verifies(handle) == expected


@pytest.mark.parametrize("draft_tokens", [0, 1, 3])
def test_a_group_is_refilled_when_its_leader_has_resolved(
    draft_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")
    from hisparse_vllm.testing.core_loop import CoreLoop, Settings

    loop = CoreLoop(
        Settings(draft_tokens=draft_tokens, layers=6, leader_every=3, device_blocks=160), tmp_path
    )
    order: list[str] = []
    for name in ("resolve", "gather_compact", "scatter_rows"):
        real = getattr(hisparse_ops, name)

        def told(*args: Any, real: Any = real, name: str = name, **named: Any) -> None:
            order.append(name)
            real(*args, **named)

        monkeypatch.setattr(hisparse_ops, name, told)
    loop.add("r", list(range(2, 40)), 12)
    steps = 0
    while loop.unfinished:
        order.clear()
        loop.step()
        if not order or not loop.last_was_decode:
            continue
        steps += 1
        # A layer writes its row, its leader resolves, and all three layers of the group are refilled at once.
        led = ["scatter_rows", "resolve", *["gather_compact"] * 3, "scatter_rows", "scatter_rows"]
        assert order[:14] == led + led, order
    assert steps >= 3
    loop.close()
