"""vLLM's engine on a tiny random model, with every KV row that attention reads compared with the row written.

With the weights that vLLM makes up for a dummy model attention hardly matters, and a wrong row changes no token. Here
weights are random at a scale at which it does.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hisparse_vllm.testing import tiny_configs


@dataclass(frozen=True)
class Result:
    """What an engine made of its prompts, and what was seen while it did."""

    tokens: dict[str, list[int]]
    logprobs: dict[str, list[float]]
    rows: Counter[str]
    """Rows compared, by where they were read from."""
    preemptions: int
    hot_hits: int
    hot_loads: int


class WrongRow(AssertionError):
    """A row read is not the row written to that slot."""


class RowLog:
    """An observer that keeps the last row written to every slot of every layer."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[int, Tensor]] = {}
        self.compared: Counter[str] = Counter()

    def wrote(self, layer: str, slots: Tensor, rows: Tensor) -> None:
        kept = self.rows.setdefault(layer, {})
        as_bytes = rows.contiguous().view(torch.uint8)
        for slot, row in zip(slots.tolist(), as_bytes, strict=True):
            kept[slot] = row.clone()

    def read(self, layer: str, slots: Tensor, rows: Tensor, how: str) -> None:
        if not len(slots):
            return
        kept = self.rows[layer]
        expected = torch.stack([kept[slot] for slot in slots.tolist()])
        wrong = (rows.contiguous().view(torch.uint8) != expected).any(1).nonzero()
        if len(wrong):
            raise WrongRow(
                f"{how} read of {layer}: slot {int(slots[wrong[0]])} ({len(wrong)} of {len(slots)} wrong)"
            )
        self.compared[how] += len(slots)


def scale_weights(model: torch.nn.Module, config: Any, seed: int = 7) -> None:
    """Random weights at which every layer's attention matters for the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_floating_point():
                continue
            if weight.dim() >= 2:
                gain = 2.0 if "o_proj" in name else 1.5
                std = (
                    0.25 if "embed" in name or "lm_head" in name else gain / weight.shape[-1] ** 0.5
                )
                weight.copy_(torch.randn(weight.shape, generator=generator) * std)
            elif "norm" in name:
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
        for module in model.modules():
            if type(module).__name__ == "MLAAttention":
                module.process_weights_after_loading(config.model_config.dtype)


@contextmanager
def row_log() -> Iterator[RowLog]:
    """Compare every row that attention reads while this is open."""
    from hisparse_vllm.attention import observer

    log = RowLog()
    observer.observe(log)
    try:
        yield log
    finally:
        observer.observe(None)


def run(
    model: Path,
    prompts: dict[str, list[int]],
    max_tokens: int,
    *,
    device_blocks: int,
    **arguments: Any,
) -> Result:
    """Generate greedily with ``device_blocks`` KV blocks; ``kv_transfer_config=None`` turns HiSparse off."""
    from vllm import SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    gc.collect()  # an engine before this one ends vLLM's process groups when it is freed
    config = tiny_configs.engine_config(
        model,
        num_gpu_blocks_override=device_blocks,
        kv_cache_memory_bytes=1 << 28,
        **arguments,
    )
    engine = LLMEngine.from_vllm_config(config, disable_log_stats=True)
    core = engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    scale_weights(runner.model, config)
    draft = getattr(getattr(runner, "speculator", None), "model", None)
    if draft is not None:
        scale_weights(draft, config, seed=8)
    for name, prompt in prompts.items():
        engine.add_request(
            name,
            {"prompt_token_ids": prompt},
            SamplingParams(
                max_tokens=max_tokens,
                temperature=0,
                ignore_eos=True,
                detokenize=False,
                logprobs=1,
            ),
        )
    tokens: dict[str, list[int]] = {}
    logprobs: dict[str, list[float]] = {}
    preemptions = 0
    schedule = core.scheduler.schedule

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal preemptions
        scheduled = schedule(*args, **kwargs)
        preemptions += len(scheduled.preempted_req_ids or ())
        return scheduled

    core.scheduler.schedule = counted
    try:
        with row_log() as log:
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        best = output.outputs[0]
                        tokens[output.request_id] = list(best.token_ids)
                        logprobs[output.request_id] = [
                            next(iter(step.values())).logprob for step in best.logprobs
                        ]
        hits, loads = _hot_counts(config)
    finally:
        core.shutdown()
    return Result(tokens, logprobs, log.compared, preemptions, hits, loads)


def _hot_counts(config: Any) -> tuple[int, int]:
    """References answered by hot rows and rows loaded, of all index groups."""
    layers = config.compilation_config.static_forward_context.values()
    handles = [handle for x in layers if (handle := getattr(x, "hisparse_cache", None)) is not None]
    stats = [h.runtime.index_group.swap_stats for h in handles if h.runtime.is_group_leader]
    hits, loads = torch.stack(stats).view(torch.int64).sum(0).tolist() if stats else (0, 0)
    return hits, loads
