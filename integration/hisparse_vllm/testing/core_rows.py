"""KV rows whose bytes say whose they are: what every read and every mirrored page is compared with.

A row is a function of the tokens up to its position and of its layer, as a real KV row is. So a row served from a
prefix another request wrote must match, and one that a rejected draft token left behind must not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_A = np.uint64(0x9E3779B97F4A7C15)
_B = np.uint64(0xBF58476D1CE4E5B9)
_C = np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def prefix_keys(tokens: Sequence[int], start: int = 0, before: int = 0) -> np.ndarray:
    """One 64-bit key for each of ``tokens``, of itself and all before it.

    ``before`` is the key of position ``start - 1``; position enters too, so equal tokens never share a key.
    """
    keys = np.empty(len(tokens), dtype=np.uint64)
    key = before
    for i, token in enumerate(tokens):
        key = ((key ^ (int(token) + 1)) * 0x100000001B3 + start + i + 1) & _MASK
        keys[i] = key
    return keys


def row_bytes(keys: np.ndarray, layer: int, width: int) -> Tensor:
    """The rows of ``keys`` in ``layer`` as ``[len(keys), width]`` uint8; ``width`` divides by 8."""
    words = np.arange(width // 8, dtype=np.uint64) + np.uint64(layer << 20)
    with np.errstate(over="ignore"):
        x = keys[:, None] * _A + words[None, :] * _B
        x = (x ^ (x >> np.uint64(30))) * _B
        x = (x ^ (x >> np.uint64(27))) * _C
        x ^= x >> np.uint64(31)
    return torch.from_numpy(x.view(np.uint8).reshape(len(keys), width))
