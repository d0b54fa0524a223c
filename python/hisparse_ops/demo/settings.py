"""What a demo run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from hisparse_ops._hot_buffer import Geometry
from hisparse_ops.resolver import MAX_HOT_SIZE

MODELS = ("glm_moe_dsa", "deepseek_v32")
DTYPES = ("fp32", "bf16", "c8")


def default_hot_size(top_k: int, mtp_rows: int) -> int:
    """Twice the most rows that one step can need, with the model and for its trace alike."""
    return min(2 * top_k * mtp_rows, MAX_HOT_SIZE)


@dataclass(frozen=True)
class Settings:
    """What to run; the options of the command line."""

    model: str = "glm_moe_dsa"
    context: int = 2048
    top_k: int = 256
    hot_size: int = 512
    dtype: str = "fp32"
    mtp_rows: int = 1
    requests: int = 4
    steps: int = 64
    block_size: int = 64
    resident_pages: int = 0
    seed: int = 0
    corrupt: bool = False

    @property
    def prompts(self) -> list[int]:
        """Tokens of each prompt, from ``context`` down to a bit more than half of it."""
        shorter = self.context // (2 * self.requests)
        return [self.context - r * shorter for r in range(self.requests)]

    def geometry(self) -> Geometry:
        prompts = self.prompts
        return Geometry(
            max_lengths=tuple(n + self.steps * self.mtp_rows for n in prompts),
            query_rows=self.mtp_rows,
            top_k=self.top_k,
            hot_size=self.hot_size,
            block_size=self.block_size,
            # Only pages that no step writes.
            resident_pages=tuple(
                min(self.resident_pages, (n - 1) // self.block_size) for n in prompts
            ),
        )
