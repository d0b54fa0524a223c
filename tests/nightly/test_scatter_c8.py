"""What the samples of scatter_c8 cannot show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hisparse_ops

F8 = torch.float8_e4m3fn


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def tokens(n: int) -> dict[str, Any]:
    return {
        "nope": random_bytes(n, 512),
        "rope": random_bytes(n, 128).view(torch.bfloat16),
        "scales": random_bytes(n, 16).view(torch.float32),
    }


def packed(args: dict[str, Any], token: int, layout: str) -> torch.Tensor:
    parts = [args[name][token].view(torch.uint8) for name in ("nope", "rope", "scales")]
    order = (0, 1, 2) if layout == "ascend" else (0, 2, 1)
    return torch.cat([parts[i] for i in order])


@pytest.mark.parametrize("layout", ["ascend", "core"])
def test_row_is_the_parts_in_the_order_of_the_layout(layout: str) -> None:
    args, cache = tokens(1), torch.zeros(1, 656, dtype=torch.uint8)
    hisparse_ops.scatter_c8(**args, slots=torch.tensor([0]), cache=cache, layout=layout)
    assert torch.equal(cache[0], packed(args, 0, layout))


@pytest.mark.parametrize("layout", ["ascend", "core"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_padding_leaves_the_first_and_the_last_row(layout: str, dtype: torch.dtype) -> None:
    """vllm-ascend #16756, #17214: -1 wrote data, scales or both before the cache or to slot 0."""
    cache, args = random_bytes(2, 4, 656), tokens(3)
    before = cache.clone()
    slots = torch.tensor([-1, 5, -1], dtype=dtype)
    hisparse_ops.scatter_c8(**args, slots=slots, cache=cache, layout=layout)
    assert torch.equal(cache[1, 1], packed(args, 1, layout))
    cache[1, 1] = before[1, 1]
    assert torch.equal(cache, before)


def test_codes_are_stored_as_bits() -> None:
    """vllm-xpu-kernels #475: a float8 tensor went into a uint8 cache by value."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(2)[None]
    cache = torch.zeros(1, 656, dtype=torch.uint8)
    args = {**tokens(1), "nope": codes.view(F8)}
    hisparse_ops.scatter_c8(**args, slots=torch.tensor([0]), cache=cache, layout="core")
    assert torch.equal(cache[0, :512], codes[0])


def test_rope_is_not_scaled() -> None:
    """vllm #42956: a scale from the latent saturated the rope; here its bits stay as they are."""
    rope = torch.tensor([[float("nan"), -0.0, 1e38, 1e-40] * 16], dtype=torch.bfloat16)
    cache = torch.zeros(1, 656, dtype=torch.uint8)
    args = {**tokens(1), "rope": rope}
    hisparse_ops.scatter_c8(**args, slots=torch.tensor([0]), cache=cache, layout="ascend")
    assert torch.equal(cache[0, 512:640], rope[0].view(torch.uint8))


@pytest.mark.parametrize("argument", ["nope", "cache"])
@pytest.mark.parametrize("other", ["float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_other_encoding_is_refused(argument: str, other: str) -> None:
    """sglang #23963: a platform chose fnuz, and every value was read with the wrong bias."""
    cache = torch.zeros(1, 656, dtype=torch.uint8)
    args = {**tokens(1), "slots": torch.tensor([0]), "cache": cache}
    args[argument] = args[argument].view(getattr(torch, other))
    with pytest.raises(ValueError, match=f"{argument} must be .*float8_e4m3fn.*, got {other}$"):
        hisparse_ops.scatter_c8(**args, layout="core")
    assert not cache.any()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_last_of_repeated_slots_wins(threads: int) -> None:
    """The order of tokens decides, not that of threads; vllm-ascend #16756 leaves it undefined."""
    n, before = 2000, torch.get_num_threads()
    args, slots = tokens(n), torch.randint(0, 50, (n,))
    cache = torch.zeros(10, 5, 656, dtype=torch.uint8)
    torch.set_num_threads(threads)
    try:
        hisparse_ops.scatter_c8(**args, slots=slots, cache=cache, layout="core")
    finally:
        torch.set_num_threads(before)
    last = {int(slot): i for i, slot in enumerate(slots)}
    for slot, token in last.items():
        assert torch.equal(cache.view(50, 656)[slot], packed(args, token, "core"))


def test_layers_of_one_storage_stay_apart() -> None:
    """vllm #57019: later layers were bound to the base offset and overwrote earlier ones."""
    slab = torch.zeros(3, 2, 4, 656, dtype=torch.uint8)  # [blocks, layers, block_size, row]
    args = [tokens(12), tokens(12)]
    for layer in range(2):
        hisparse_ops.scatter_c8(
            **args[layer], slots=torch.arange(12), cache=slab[:, layer], layout="ascend"
        )
    for layer in range(2):
        for slot in range(12):
            row = slab[slot // 4, layer, slot % 4]
            assert torch.equal(row, packed(args[layer], slot, "ascend"))


@pytest.mark.parametrize("row", [3_273_604, 6_547_207])
def test_rows_past_two_and_four_gigabytes(row: int, tmp_path: Path) -> None:
    """vllm #57602: row * 656 no longer fits int32 (uint32) from this row on."""
    blocks, args = row // 64 + 2, tokens(3)
    file = str(tmp_path / "cache")
    cache = torch.from_file(file, shared=True, size=blocks * 64 * 656, dtype=torch.uint8)
    pages = cache.view(blocks, 64, 656)
    slots = torch.tensor([row, blocks * 64 - 1, blocks * 64], dtype=torch.int32)
    hisparse_ops.scatter_c8(**args, slots=slots, cache=pages, layout="ascend")
    assert torch.equal(pages[row // 64, row % 64], packed(args, 0, "ascend"))
    assert torch.equal(pages[-1, -1], packed(args, 1, "ascend"))
    assert not cache[: 1 << 20].any()
