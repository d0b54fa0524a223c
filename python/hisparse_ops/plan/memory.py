"""How many requests fit: blocks, pools and limits, after the allocation rules of vLLM 0.32.

``docs/plan.md`` has every formula with its source. Sizes are bytes of one rank; lengths are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisparse_ops.plan.models import Model

ACTIVE_TAIL_PAGES = 2
"""Resident pages of a request that stay pinned while it reads from the host (vLLM's constant)."""

MAX_HOT_SIZE = 32768
"""Slots are int16."""


@dataclass(frozen=True)
class Setup:
    """What is asked: a model, a deployment, a workload."""

    model: Model
    device_bytes: int
    """Device memory for KV."""
    host_bytes: int | None
    """The host pool; None plans as if there were enough."""
    kv: str
    indexer: str
    tp: int
    mtp: int
    """Draft tokens of a step."""
    hot_size: int
    block_size: int
    context: int
    output: int
    max_seqs: int | None
    batched_tokens: int
    """Most tokens of a step: the largest prefill chunk."""
    batches_in_flight: int
    """1 with synchronous scheduling, 2 with asynchronous."""
    shared_host: bool
    """One host pool for all ranks of a node, instead of one each."""

    @property
    def query_rows(self) -> int:
        """Rows of a request in a decode step: its newest token and the drafts."""
        return 1 + self.mtp

    @property
    def slots(self) -> int:
        """Tokens that a request has slots for in its last step, drafts and lookahead included."""
        return self.context + self.output - 1 + 2 * self.mtp

    def pages(self, tokens: int) -> int:
        """Pages of ``tokens``."""
        return -(-tokens // self.block_size)


def default_hot_size(model: Model, mtp: int) -> int:
    """What one step may select, and one top-k to spare: vLLM's default."""
    return min((mtp + 2) * model.top_k, MAX_HOT_SIZE)


@dataclass(frozen=True)
class Layout:
    """Groups of layers, and bytes of a block of each pool."""

    main_row: int
    index_row: int
    index_groups: tuple[int, ...]
    """Layers of each index group."""
    cache_groups: tuple[int, ...]
    """Layers of each resident group; there is a hot group beside each."""
    off_block: int
    on_block: int
    on_block_used: int
    """Bytes of the largest group in ``on_block``; the rest pads."""
    host_block: int

    @property
    def layers(self) -> int:
        return sum(self.index_groups)

    @property
    def index_layers(self) -> int:
        return len(self.index_groups)


def lay_out(setup: Setup) -> Layout:
    """Pack the layers as vLLM does."""
    model = setup.model
    groups = model.index_groups(setup.mtp)
    main_page = model.row_bytes(setup.kv) * setup.block_size
    index_page = len(groups) * model.index_row_bytes(setup.indexer) * setup.block_size
    packed = _pack(groups, index_page // main_page)
    used = max(index_page, max(packed) * main_page)
    host_block = sum(groups) * main_page
    return Layout(
        main_row=model.row_bytes(setup.kv),
        index_row=model.index_row_bytes(setup.indexer),
        index_groups=tuple(groups),
        cache_groups=tuple(packed),
        off_block=sum(groups) * main_page + index_page,
        # A hot row is addressed in units of pages, so a block is whole pages of one layer.
        on_block=_round_up(used, main_page),
        on_block_used=used,
        # A shared pool is mapped memory, in pages of the operating system.
        host_block=_round_up(host_block, 4096) if setup.shared_host else host_block,
    )


def _pack(index_groups: list[int], limit: int) -> list[int]:
    """Whole index groups, in order, up to ``limit`` layers together; a larger one stands alone."""
    packed = [index_groups[0]]
    for layers in index_groups[1:]:
        if packed[-1] + layers <= limit:
            packed[-1] += layers
        else:
            packed.append(layers)
    return packed


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class Costs:
    """Device blocks of one request with HiSparse ON."""

    indexer: int
    hot: int
    tail: int
    """Resident pages pinned beside the hot buffers."""
    window: int
    """Resident pages that admission reserves; with them, a request must get hot buffers."""

    @property
    def steady(self) -> int:
        return self.indexer + self.hot + self.tail


def costs(setup: Setup, layout: Layout, tokens: int) -> Costs:
    """Blocks of a request that holds ``tokens``."""
    groups, pages = len(layout.cache_groups), setup.pages(tokens)
    return Costs(
        indexer=pages,
        hot=groups * setup.pages(setup.hot_size),
        tail=groups * min(ACTIVE_TAIL_PAGES, pages),
        window=groups * min(pages, _window(setup)),
    )


@dataclass(frozen=True)
class Off:
    """Without HiSparse: every row of every layer on the device."""

    blocks: int
    blocks_per_request: int
    admission: int
    """Requests that are let in when all arrive together."""
    steady: int
    """Requests that reach their full length without a preemption."""
    concurrency: int
    limit: str


@dataclass(frozen=True)
class On:
    """With HiSparse."""

    blocks: int
    host_blocks: int | None
    host_blocks_per_request: int
    request: Costs
    admission: int
    """Requests that are let in when all arrive together."""
    prefill: int
    """Requests that can be taken in together before chunked prefills preempt each other."""
    steady: int
    """Requests that decode together up to their last token."""
    resident: int
    """Requests that need no hot buffers at all; 0 where the prompt alone makes a request ask for them."""
    host: int | None
    """Requests that the host pool holds."""
    concurrency: int
    limit: str
    startup: float
    """The maximum concurrency that vLLM logs for ``context + output`` as its longest request."""
    balanced_host_bytes: int
    """The host pool that holds just what the device can."""


def plan_off(setup: Setup, layout: Layout) -> Off:
    """Count requests without HiSparse."""
    blocks = setup.device_bytes // layout.off_block
    usable = max(blocks - 1, 0)  # block 0 is the null block
    pages = setup.pages(setup.slots)
    steady = usable // pages
    concurrency, limit = _least({"device_blocks": steady, "max_seqs": setup.max_seqs})
    admission = _capped(usable // setup.pages(setup.context), setup.max_seqs)
    return Off(blocks, pages, admission, steady, concurrency, limit)


def plan_on(setup: Setup, layout: Layout) -> On:
    """Count requests with HiSparse."""
    blocks = setup.device_bytes // layout.on_block
    host_blocks = None if setup.host_bytes is None else setup.host_bytes // layout.host_block
    request = costs(setup, layout, setup.slots)
    pages = setup.pages(setup.slots)
    device = _on_device(setup, layout, blocks)
    host = _host_requests(host_blocks, pages)
    concurrency, limit = _least(
        {
            "device_blocks" if device.stay else _largest(request): device.steady,
            "prefill": device.prefill,
            "host_pool": host,
            "max_seqs": setup.max_seqs,
        }
    )
    prompts = _host_requests(host_blocks, setup.pages(setup.context))
    wanted = _capped(min(device.steady, device.prefill), setup.max_seqs)
    return On(
        blocks=blocks,
        host_blocks=host_blocks,
        host_blocks_per_request=pages,
        request=request,
        admission=_capped(_capped(device.admission, prompts), setup.max_seqs),
        prefill=device.prefill,
        steady=device.steady,
        resident=device.resident,
        host=host,
        concurrency=concurrency,
        limit=limit,
        startup=_startup(setup, layout, blocks, host_blocks),
        balanced_host_bytes=layout.host_block * max(wanted * pages + 1, pages + 2),
    )


@dataclass(frozen=True)
class _OnDevice:
    """What the device alone holds."""

    admission: int
    prefill: int
    steady: int
    resident: int
    stay: bool
    """Requests stay resident: fewer would fit with hot buffers."""


def _on_device(setup: Setup, layout: Layout, blocks: int) -> _OnDevice:
    usable, window = max(blocks - 1, 0), _window(setup)
    prompt, end = (costs(setup, layout, tokens) for tokens in (setup.context, setup.slots))
    steady = usable // end.steady
    prefill = _one_more(usable, prompt.steady, _boundary(setup, layout, prompt))
    admission = _one_more(usable, prompt.steady, prompt.indexer + prompt.window)
    resident = 0
    if prompt.indexer < window:
        resident = _resident(setup, layout, blocks, min(end.indexer, window - 1))
        admission = max(admission, _resident(setup, layout, blocks, prompt.indexer))
    stay = end.indexer < window and resident > steady
    if stay:
        steady, prefill = resident, max(prefill, resident)
    return _OnDevice(admission, prefill, steady, resident, stay)


def _one_more(usable: int, steady: int, last: int) -> int:
    """Requests at ``steady`` blocks, and one that needs ``last``."""
    return 0 if usable < last else 1 + (usable - last) // steady


def _boundary(setup: Setup, layout: Layout, prompt: Costs) -> int:
    """Most blocks of a request in prefill: hot buffers are allocated together with the next chunk, while the chunk
    before is still resident."""
    pages = min(setup.pages(setup.context), 2 * setup.pages(setup.batched_tokens))
    return prompt.indexer + prompt.hot + len(layout.cache_groups) * pages


def _window(setup: Setup) -> int:
    """Resident pages of a request that make it ask for hot buffers."""
    return setup.pages(setup.batches_in_flight * setup.batched_tokens)


def _resident(setup: Setup, layout: Layout, blocks: int, pages: int) -> int:
    """Requests of ``pages`` that need no hot buffers, because the pool stays above its watermark."""
    groups = len(layout.cache_groups)
    watermark = max(groups * setup.pages(setup.hot_size), blocks // 10)
    return max(blocks - 1 - watermark, 0) // (pages * (1 + groups))


def _host_requests(host_blocks: int | None, pages: int) -> int | None:
    """vLLM refuses to start unless one request fits with the null block and one to spare."""
    if host_blocks is None:
        return None
    return 0 if host_blocks < pages + 2 else (host_blocks - 1) // pages


def _largest(request: Costs) -> str:
    """What most blocks of a request that reads from the host are."""
    return "hot_buffers" if request.hot >= request.indexer else "indexer_cache"


def _startup(setup: Setup, layout: Layout, blocks: int, host_blocks: int | None) -> float:
    longest = setup.context + setup.output
    request = costs(setup, layout, longest)
    admission = request.indexer + request.hot + request.window
    found = blocks / admission
    if blocks >= admission:
        steady = request.indexer + request.hot + min(request.window, request.tail)
        found = 1 + (blocks - admission) / steady
    if host_blocks is not None:
        found = min(found, host_blocks / setup.pages(longest))
    return found


def _capped(count: int, cap: int | None) -> int:
    return count if cap is None else min(count, cap)


def _least(limits: dict[str, int | None]) -> tuple[int, str]:
    """The smallest limit and its name; the first of equals."""
    known = {name: count for name, count in limits.items() if count is not None}
    name = min(known, key=lambda name: known[name])
    return known[name], name


def curve(setup: Setup, contexts: list[int]) -> list[tuple[int, int, int]]:
    """``(context, OFF, ON)`` requests, as far as device and host hold them."""
    layout = lay_out(setup)
    found = []
    for context in contexts:
        at = replace(setup, context=context, max_seqs=None)
        found.append((context, plan_off(at, layout).concurrency, plan_on(at, layout).concurrency))
    return found
