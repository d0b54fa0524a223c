"""The answer: tables for people, JSON for programs, and a picture of concurrency against context length."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from hisparse_ops import _cli
from hisparse_ops.plan import memory, refill

_GIB = 2**30
_WIDTH = 44
_LIMITS = {
    "device_blocks": "device blocks",
    "hot_buffers": "device blocks, most of them hot buffers",
    "indexer_cache": "device blocks, most of them indexer cache",
    "prefill": "device blocks for hot buffers and prefill chunks together",
    "host_pool": "the host pool",
    "max_seqs": "max sequences",
}


@dataclass(frozen=True)
class Plan:
    """Everything that is said of one setup."""

    setup: memory.Setup
    link: refill.Link
    layout: memory.Layout
    off: memory.Off
    on: memory.On
    refills: list[refill.Refill]
    hot_sizes: dict[str, refill.HotSize | None]
    """The best hot size for each preset."""
    current: dict[str, refill.HotSize]
    """The setup's own hot size for each preset."""
    curve: list[tuple[int, int, int]]
    """Context, requests OFF, requests ON."""

    @classmethod
    def of(cls, setup: memory.Setup, link: refill.Link) -> Plan:
        """Work out all of it."""
        layout = memory.lay_out(setup)
        on = memory.plan_on(setup, layout)
        return cls(
            setup,
            link,
            layout,
            memory.plan_off(setup, layout),
            on,
            [refill.refill(setup, layout, link, on.concurrency, rate) for rate in refill.HIT_RATES],
            {p: refill.recommend(setup, layout, link, p) for p in refill.PRESETS},
            {p: refill.consider(setup, layout, link, p, setup.hot_size) for p in refill.PRESETS},
            memory.curve(setup, contexts(setup)),
        )


def contexts(setup: memory.Setup) -> list[int]:
    """Powers of two from 2048 to what the model can take beside the output, and the context of the setup."""
    most = setup.model.max_length - setup.output
    powers = {1 << i for i in range(11, 21) if 1 << i <= most}
    return sorted(powers | {setup.context})


def as_text(plan: Plan) -> str:
    """For people."""
    parts = (_head(plan), _bytes(plan), _concurrency(plan), _remarks(plan), _refills(plan))
    return "\n\n".join(["\n".join(part) for part in (*parts, _hot_sizes(plan), _picture(plan))])


def _head(plan: Plan) -> list[str]:
    setup, layout = plan.setup, plan.layout
    host = "any host pool"
    if setup.host_bytes is not None:
        of = "shared host pool" if setup.shared_host else "host pool"
        host = f"{of} {setup.host_bytes / _GIB:.4g} GiB"
    scheduling = "asynchronous" if setup.batches_in_flight > 1 else "synchronous"
    lines = [
        f"{setup.model.name}: KV {setup.kv}, indexer {setup.indexer}, TP {setup.tp}, MTP {setup.mtp},"
        f" hot size {setup.hot_size}, pages of {setup.block_size} tokens",
        f"per rank: device KV {setup.device_bytes / _GIB:.4g} GiB, {host};"
        f" chunks of {setup.batched_tokens} tokens, {scheduling} scheduling",
        f"requests: {setup.context:,} tokens in, {setup.output:,} out",
        f"{layout.layers} layers in {layout.index_layers} index groups ({_runs(layout.index_groups)}),"
        f" packed into {len(layout.cache_groups)} cache groups ({_runs(layout.cache_groups)})",
    ]
    if setup.model.note:
        lines.append(f"note: {setup.model.name} is {setup.model.note}")
    return lines


def _runs(sizes: tuple[int, ...]) -> str:
    """``2 x 1, 19 x 4, 1 x 1``: equal neighbours together."""
    return ", ".join(f"{len([*same])} x {size}" for size, same in groupby(sizes))


def _bytes(plan: Plan) -> list[str]:
    layout, on = plan.layout, plan.on
    main, index = layout.layers * layout.main_row, layout.index_layers * layout.index_row
    block = layout.on_block
    return [
        f"a token, all layers   main {main:,} B ({layout.main_row} x {layout.layers}),"
        f" indexer {index:,} B ({layout.index_row} x {layout.index_layers})",
        f"  OFF, on the device  {main + index:,} B",
        f"  ON, on the device   {index:,} B, and on the host {main:,} B",
        f"a request ON          hot buffers {_mib(on.request.hot * block)}, indexer"
        f" {_mib(on.request.indexer * block)}, resident tail {_mib(on.request.tail * block)}",
        f"  on the host         {_mib(on.host_blocks_per_request * layout.host_block)}",
        f"a device block ON     {block:,} B, {_cli.percent(1 - layout.on_block_used / block)} of it"
        " padding to whole pages",
    ]


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _concurrency(plan: Plan) -> list[str]:
    off, on = plan.off, plan.on
    host = "-" if on.host is None else f"{on.host}"
    rows = [
        ("requests", "OFF", "ON"),
        ("admission: let in when all arrive together", off.admission, on.admission),
        ("prefill: taken in together on the way to hot buffers", "-", on.prefill),
        ("steady state: decode together up to the last token", off.steady, on.steady),
        ("the host pool holds", "-", host),
        ("maximum concurrency", off.concurrency, on.concurrency),
    ]
    lines = [f"{name:<54}{first:>7}{second:>7}" for name, first, second in rows]
    return [*lines, f"limited by: OFF {_LIMITS[off.limit]}; ON {_LIMITS[on.limit]}"]


def _remarks(plan: Plan) -> list[str]:
    setup, on = plan.setup, plan.on
    pool = on.balanced_host_bytes / _GIB
    pools = f"{pool:.1f} GiB, one for all ranks"
    if not setup.shared_host:
        pools = (
            f"{pool:.1f} GiB a rank, {pool * setup.tp:.1f} GiB for {_cli.counted(setup.tp, 'rank')}"
        )
    lines = [
        f"device blocks: OFF {plan.off.blocks:,} ({plan.off.blocks_per_request:,} a request),"
        f" ON {on.blocks:,} ({on.request.steady:,} a request)"
        + ("" if on.host_blocks is None else f"; host blocks {on.host_blocks:,}"),
        f"balanced host pool: {pools}",
        f"vLLM's own estimate at start, for requests of {setup.context + setup.output:,} tokens: {on.startup:.2f}",
    ]
    lines += _warnings(plan)
    return lines


def _warnings(plan: Plan) -> list[str]:
    """What a reader of the numbers should not miss."""
    on, found = plan.on, []
    if on.host == 0:
        found.append("the host pool cannot hold one request: vLLM would refuse to start")
    elif on.steady == 0:
        found.append("the device cannot hold the hot buffers and the indexer cache of one request")
    if on.limit == "device_blocks":
        found.append(
            "requests this short stay resident: hot buffers would cost more than their pages"
        )
    if 0 < on.resident < on.concurrency:
        found.append(
            f"up to {_cli.counted(on.resident, 'request')} nobody needs hot buffers; above, some are preempted once,"
            " while they change to them"
        )
    if on.admission > on.concurrency:
        found.append(
            f"the engine lets {on.admission} in, and with more than {on.concurrency} requests preempt each other"
        )
    if on.concurrency <= plan.off.concurrency:
        found.append("HiSparse gains nothing for this workload: OFF holds as many")
    return [f"note: {line}" for line in found]


def _refills(plan: Plan) -> list[str]:
    link = plan.link
    lines = [
        f"refills of {_cli.counted(plan.on.concurrency, 'request')} in a step of {link.step_seconds * 1e3:g} ms,"
        f" link {link.bytes_per_second / 1e9:g} GB/s",
        "hit rate   bytes/step   time on the link   share of the step   bandwidth to hide it",
    ]
    for one in plan.refills:
        lines.append(
            f"{100 * one.hit_rate:6.1f} %  {one.bytes_per_step / 1e6:8.1f} MB  {one.seconds * 1e3:13.2f} ms"
            f"  {100 * one.link_share:16.1f} %  {one.bytes_per_second / 1e9:16.2f} GB/s"
        )
    return lines


def _hot_sizes(plan: Plan) -> list[str]:
    lines = ["locality          hot size    requests   hit rate     refills   request steps/s"]
    for preset in refill.PRESETS:
        lines.append(_hot_line(preset, "given", plan.current[preset]))
        best = plan.hot_sizes[preset]
        if best is not None:
            lines.append(_hot_line("", "best", best))
    chosen = plan.hot_sizes[refill.PRESETS[0]]
    if chosen is None:
        return [*lines, "recommended hot size: none, no request fits"]
    return [
        *lines,
        f"recommended hot size: {chosen.hot_size} (for {refill.PRESETS[0]}; measure your own hit rate)",
    ]


def _hot_line(preset: str, kind: str, one: refill.HotSize) -> str:
    return (
        f"{preset:<11}  {kind:<5}{one.hot_size:8d}{one.concurrency:12d}{100 * one.hit_rate:9.1f} %"
        f"{one.refill_seconds * 1e3:9.1f} ms{one.requests_per_second:18.0f}"
    )


def _picture(plan: Plan) -> list[str]:
    """A dot for OFF and one for ON in each line, on one scale from 0."""
    most = max(1, *(max(off, on) for _, off, on in plan.curve))
    lines = [f"requests against context, output {plan.setup.output:,}:  o OFF  x ON  * both"]
    for context, off, on in plan.curve:
        cells = [" "] * (_WIDTH + 1)
        for count, mark in ((off, "o"), (on, "x")):
            place = round(count / most * _WIDTH)
            cells[place] = mark if cells[place] == " " else "*"
        here = "<" if context == plan.setup.context else " "
        lines.append(f"{context:>9,} |{''.join(cells)}|{off:6d}{on:6d} {here}".rstrip())
    return lines


def as_json(plan: Plan) -> str:
    """For programs; ``docs/plan.md`` lists the keys."""
    return json.dumps(as_dict(plan), indent=1)


def as_dict(plan: Plan) -> dict[str, Any]:
    """The JSON object."""
    setup, layout, on = plan.setup, plan.layout, plan.on
    return {
        "model": setup.model.name,
        "setup": {
            "device_kv_bytes": setup.device_bytes,
            "host_pool_bytes": setup.host_bytes,
            "shared_host_pool": setup.shared_host,
            "tp": setup.tp,
            "kv": setup.kv,
            "indexer": setup.indexer,
            "mtp": setup.mtp,
            "hot_size": setup.hot_size,
            "block_size": setup.block_size,
            "max_seqs": setup.max_seqs,
            "batched_tokens": setup.batched_tokens,
            "batches_in_flight": setup.batches_in_flight,
            "context": setup.context,
            "output": setup.output,
            "link_bytes_per_second": plan.link.bytes_per_second,
            "step_seconds": plan.link.step_seconds,
        },
        "layout": {
            "layers": layout.layers,
            "index_groups": list(layout.index_groups),
            "cache_groups": list(layout.cache_groups),
            "main_row_bytes": layout.main_row,
            "index_row_bytes": layout.index_row,
            "token_bytes_main": layout.layers * layout.main_row,
            "token_bytes_indexer": layout.index_layers * layout.index_row,
            "off_block_bytes": layout.off_block,
            "on_block_bytes": layout.on_block,
            "on_block_padding_bytes": layout.on_block - layout.on_block_used,
            "host_block_bytes": layout.host_block,
        },
        "off": asdict(plan.off),
        "on": asdict(on),
        "refills": [asdict(one) for one in plan.refills],
        "hot_sizes": {
            preset: {
                "given": asdict(plan.current[preset]),
                "best": None if best is None else asdict(best),
            }
            for preset, best in plan.hot_sizes.items()
        },
        "recommended_hot_size": _recommended(plan),
        "curve": [{"context": c, "off": off, "on": on} for c, off, on in plan.curve],
    }


def _recommended(plan: Plan) -> int | None:
    best = plan.hot_sizes[refill.PRESETS[0]]
    return None if best is None else best.hot_size


def plot(path: Path, plan: Plan) -> None:
    """Write a PNG, legible in black and white."""
    from matplotlib.figure import Figure

    setup = plan.setup
    figure = Figure(figsize=(7, 4), dpi=110, layout="constrained")
    axes = figure.subplots()
    lengths = [context for context, _, _ in plan.curve]
    for label, line, place in (("ON", "k-o", 2), ("OFF", "k--s", 1)):
        counts = [point[place] for point in plan.curve]
        axes.plot(lengths, counts, line, markerfacecolor="white", markersize=5, label=label)
    axes.axvline(setup.context, color="0.6", linewidth=0.8)
    if setup.max_seqs is not None:
        axes.axhline(setup.max_seqs, color="0.6", linestyle=":", label="max sequences")
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=1)
    most = max(max(off, on) for _, off, on in plan.curve)
    ticks = [0, *(n * 10**i for i in range(len(str(most))) for n in (1, 2, 5))]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.set_yticks([], minor=True)
    axes.set_xticks(lengths, [f"{n // 1024}K" if n % 1024 == 0 else f"{n}" for n in lengths])
    axes.set(xlabel="prompt (tokens)", ylabel="requests that fit", ylim=(0, 1.5 * max(1, most)))
    axes.grid(color="0.88")
    axes.legend(frameon=False)
    axes.set_title(
        f"{_cli.plain(setup.model.name)}: KV {setup.kv}, indexer {setup.indexer}, MTP {setup.mtp},"
        f" hot {setup.hot_size}, {setup.device_bytes / _GIB:.4g} GiB device",
        fontsize=10,
    )
    figure.savefig(path, format="png")
