"""The refill of a whole index group starts when its leader has resolved, in MTP verification as in decode.

vLLM 0.32 and 0.33 do so in decode batches of one row a request only; in verification every follower waits for its own
refill. Core's change 63801 lifts that, and with it this module does nothing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from hisparse_vllm.core.device import RUNTIME, Adapter
from hisparse_vllm.core.device import install as install_adapters


class _Decoding:
    """A cache handle in a batch of verification rows, seen as in decode."""

    decode_batch = True

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


def verifies(handle: Any) -> bool:
    """Whether all rows of the batch are decode rows, several of a request among them."""
    return not handle.decode_batch and 0 < handle.num_actual_tokens == handle.num_decode_tokens


def ahead(stage_group: Callable[..., None]) -> Callable[..., None]:
    """Core's ``_resolve_and_stage_group``, which then refills the followers of a verification batch too."""

    def resolve_and_stage_group(runtime: Any, *, resident: Any, **named: Any) -> None:
        stage_group(
            runtime, resident=_Decoding(resident) if verifies(resident) else resident, **named
        )

    return resolve_and_stage_group


def install() -> None:
    """Put the adapter in place where this Core needs it. A second call does nothing."""
    runtime = importlib.import_module(RUNTIME).HiSparseRuntime
    stage_group = runtime._resolve_and_stage_group
    if "if resident.decode_batch:" not in inspect.getsource(stage_group):
        return  # Core's own condition is another one by now, or the adapter is in place
    why = "Core 63801: followers are refilled ahead in MTP verification as in decode"
    name = "HiSparseRuntime._resolve_and_stage_group"
    install_adapters((Adapter(RUNTIME, name, ahead(stage_group), why),))
