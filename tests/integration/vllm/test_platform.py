"""The plugin and its platform in the installed vLLM."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here: `make test-integration` has it")

from hisparse_vllm import plugin
from hisparse_vllm.core import device, version
from hisparse_vllm.testing import tiny_configs


def engine_config(folder: Path, **arguments: Any) -> Any:
    return tiny_configs.engine_config(tiny_configs.glm_moe_dsa(folder), **arguments)


def test_vllm_takes_the_platform() -> None:
    from vllm.platforms import current_platform

    assert type(current_platform).__name__ == "HiSparseCpuPlatform"
    assert current_platform.is_cpu() and not current_platform.is_cuda()


@pytest.mark.parametrize("where", ["cuda", "xpu", "libtpu", "vllm_ascend"])
def test_a_machine_with_a_device_keeps_its_platform(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plugin.platform() == "hisparse_vllm.platform.HiSparseCpuPlatform"
    if where in ("cuda", "xpu"):
        monkeypatch.setattr(getattr(torch, where), "device_count", lambda: 1)
    else:
        real = plugin.find_spec
        monkeypatch.setattr(plugin, "find_spec", lambda name: name == where or real(name))
    assert plugin.platform() is None


def test_a_platform_from_elsewhere_is_extended_once(tmp_path: Path) -> None:
    """As vllm-ascend's is: its own hooks run, and HiSparse is put aside and given back around Core's gate."""
    from vllm.platforms.cpu import CpuPlatform

    from hisparse_vllm import platform

    class Theirs(CpuPlatform):
        asked: ClassVar[list[str]] = []

        @classmethod
        def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
            cls.asked.append("defaults")

        @classmethod
        def check_and_update_config(cls, vllm_config: Any) -> None:
            cls.asked.append("check")

    platform.extend(Theirs)
    platform.extend(Theirs)
    config = engine_config(tmp_path)
    hisparse, transfer = config.attention_config.hisparse_config, config.kv_transfer_config
    Theirs.apply_config_platform_defaults(config)
    assert config.attention_config.hisparse_config is None and config.kv_transfer_config is None
    Theirs.check_and_update_config(config)
    assert config.attention_config.hisparse_config == hisparse
    assert config.kv_transfer_config is transfer and Theirs.asked == ["defaults", "check"]


def test_one_flag_turns_it_on(tmp_path: Path) -> None:
    config = engine_config(tmp_path)
    assert config.attention_config.hisparse_config is not None
    assert config.kv_transfer_config.kv_connector == "HiSparseConnector"
    assert config.use_v2_model_runner


def test_settings_survive_the_gate(tmp_path: Path) -> None:
    from vllm.config.attention import HiSparseConfig

    config = engine_config(
        tmp_path,
        attention_config={"hisparse_config": HiSparseConfig(192, eager_host_mirror=False)},
    )
    assert config.attention_config.hisparse_config == HiSparseConfig(192, eager_host_mirror=False)


def test_off_is_the_same_engine_without_it(tmp_path: Path) -> None:
    on, off = engine_config(tmp_path), engine_config(tmp_path, kv_transfer_config=None)
    assert off.attention_config.hisparse_config is None and off.kv_transfer_config is None
    for config in (on, off):
        assert config.cache_config.block_size == 64
        assert config.cache_config.enable_prefix_caching
        assert config.scheduler_config.enable_chunked_prefill
        assert config.scheduler_config.max_num_batched_tokens == 128


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"attention_config": {"hisparse_config": {"device_buffer_size": 32}}},
            r"device_buffer_size must hold the top-k .* got 32 \(below 64\)",
        ),
        ({"kv_cache_dtype": "int4_per_token_head"}, "kv_cache_dtype must not be INT4"),
        ({"additional_config": {"sparse_kv_offload": True}}, "sparse_kv_offload must be off"),
    ],
)
def test_vllm_refuses_by_the_rules(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"HiSparse: {message}"):
        engine_config(tmp_path, **arguments)


@pytest.mark.parametrize("adapter", device.ADAPTERS, ids=lambda a: f"{a.module}.{a.name}")
def test_adapters_stand_for_names_that_core_has(adapter: device.Adapter) -> None:
    device.uninstall()
    try:
        assert hasattr(importlib.import_module(adapter.module), adapter.name)
    finally:
        device.install()


def test_adapters_leave_torch_alone() -> None:
    runtime = importlib.import_module(device.RUNTIME)
    assert runtime.torch is not torch and runtime.torch.Stream is device.CpuStream
    assert torch.Stream is not device.CpuStream
    device.uninstall()
    assert runtime.torch is torch
    device.install()


def test_core_is_told_by_what_it_has() -> None:
    found = version.core()
    assert found.batch_block_table == found.version.startswith("0.32.")
    assert found.draft_finalizer != found.batch_block_table
    assert not found.grouped_invalidation
    assert hasattr(version.planning(), "get_kv_cache_groups")
