"""vLLM Core's HiSparse modules on the CPU: what they take to be CUDA, and what stands in for it.

Core's runtime, worker and index groups name CUDA's streams, events, pinned memory and registration. On the CPU every
copy is done when the call returns, so a stream is program order and an event has always happened. :data:`ADAPTERS` is
the whole list of what is replaced there, each with its reason. A replacement changes a name *inside one of Core's
HiSparse modules*; ``torch`` itself and the rest of vLLM stay as they are.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from hisparse_vllm import host_pool

RUNTIME = "vllm.v1.hisparse.runtime"
WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.hisparse.worker"
INDEX_GROUP = "vllm.v1.attention.backends.mla.index_group"


class CpuEvent:
    """An event that has happened: the work before it was done when its call returned."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def record(self, stream: object = None) -> None:
        pass

    def wait(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


class CpuStream:
    """Program order, which is all the order there is."""

    device = torch.device("cpu")

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> CpuStream:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        pass

    def wait_event(self, event: object) -> None:
        pass

    def record_event(self, event: CpuEvent | None = None) -> CpuEvent:
        return event or CpuEvent()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


_STREAM = CpuStream()


def current_stream() -> CpuStream:
    return _STREAM


class _Over:
    """A module with some of its names replaced; every other name is the module's own."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Code:
    """What CUDA's runtime returns."""

    def __init__(self, value: int) -> None:
        self.value = value


class _Cudart:
    """Core lets its host pool go by CUDA's runtime; the pool is :mod:`hisparse_vllm.host_pool`'s."""

    def cudaHostUnregister(self, address: int) -> _Code:
        return _Code(host_pool.release(address))

    def cudaGetLastError(self) -> None:
        pass


def _pageable(make: Any) -> Any:
    """``torch.empty`` or ``torch.tensor`` without pinning, which needs an accelerator."""

    def call(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return make(*args, **kwargs)

    return call


def cpu_torch() -> Any:
    """``torch`` as Core's HiSparse modules see it on the CPU."""
    return _Over(
        torch,
        Stream=CpuStream,
        Event=CpuEvent,
        empty=_pageable(torch.empty),
        tensor=_pageable(torch.tensor),
        accelerator=_Over(
            torch.accelerator, current_device_index=lambda: 0, synchronize=lambda *args: None
        ),
        cuda=_Over(
            torch.cuda,
            Stream=CpuStream,
            Event=CpuEvent,
            stream=lambda stream: stream,
            is_current_stream_capturing=lambda: False,
            cudart=_Cudart,
        ),
    )


@dataclass(frozen=True)
class Adapter:
    """One name of one of vLLM's modules, replaced."""

    module: str
    name: str
    """``name``, or ``Class.name``."""
    replacement: Any
    why: str


_TORCH = cpu_torch()
_SYNCHRONOUS = "copies on the CPU are done when their call returns: nothing to wait for"

ADAPTERS = (
    Adapter(
        RUNTIME, "torch", _TORCH, "streams, events, pinned memory and the device index are CUDA's"
    ),
    Adapter(WORKER, "torch", _TORCH, "streams, events and pinned memory are CUDA's"),
    Adapter(INDEX_GROUP, "torch", _TORCH, "streams and events are CUDA's"),
    Adapter(RUNTIME, "current_stream", current_stream, _SYNCHRONOUS),
    Adapter(WORKER, "current_stream", current_stream, _SYNCHRONOUS),
    Adapter(INDEX_GROUP, "current_stream", current_stream, _SYNCHRONOUS),
    Adapter(
        RUNTIME,
        "allocate_pinned_host_pool",
        host_pool.allocate,
        "cudaHostRegister needs a CUDA driver; the pool is ours, with the device's own registration",
    ),
    Adapter(
        RUNTIME,
        "check_hisparse_host_memory",
        host_pool.check_available,
        "Core looks at the machine's memory only, not at the limit of a container",
    ),
)

_replaced: dict[Adapter, Any] = {}


def install(adapters: tuple[Adapter, ...] = ADAPTERS) -> None:
    """Put adapters in place. A second call does nothing."""
    for adapter in adapters:
        if adapter not in _replaced:
            owner, name = _owner(adapter)
            _replaced[adapter] = getattr(owner, name)
            setattr(owner, name, adapter.replacement)


def uninstall(adapters: tuple[Adapter, ...] = ADAPTERS) -> None:
    """Give Core's modules their own names back."""
    for adapter in adapters:
        if adapter in _replaced:
            owner, name = _owner(adapter)
            setattr(owner, name, _replaced.pop(adapter))


def _owner(adapter: Adapter) -> tuple[Any, str]:
    """What has the adapter's name: the module, or a class of it where the name is ``Class.method``."""
    module = importlib.import_module(adapter.module)
    *classes, name = adapter.name.split(".")
    return (getattr(module, classes[0]) if classes else module), name
