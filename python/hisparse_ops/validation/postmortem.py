"""The state of one request in a file that a person reads and a machine replays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hisparse_ops.resolver import new_hot_state, resolve
from hisparse_ops.validation._switch import check_values, validate
from hisparse_ops.validation._values import ValidationError, on_host

FORMAT, VERSION = "hisparse-postmortem", 1

_SIZES = (
    "host_rows",
    "num_blocks",
    "block_size",
    "source_block_size",
    "attention_block_stride",
    "layout",
    "max_union_rows",
    "resident_block_size",
)
_LARGEST = 2**26
"""Elements that a table of a file may have: one request, 32768 slots and a million positions, with room."""


class PostMortemError(ValueError):
    """A file that is no post-mortem: one sentence that names the fault."""


@dataclass(frozen=True)
class PostMortem:
    """One request's part of a ``resolve`` call, before the call: request 0 in state row 0."""

    request: int
    """Its number when the dump was made."""
    state_row: int
    topk_indices: list[list[int]]
    source_block_table: list[int] | None
    hot_block_table: list[int]
    hot_owner: list[int]
    lru_slots: list[int]
    resident_block_table: list[int] | None
    stable_length: int | None
    sizes: dict[str, Any]

    @classmethod
    def of_call(cls, args: Mapping[str, Any], request: int) -> PostMortem:
        """From the arguments of :func:`hisparse_ops.resolve`, by name, as they are before the call."""
        state = int(args["request_state_indices"][request])
        if not 0 <= state < len(args["hot_owner"]):
            raise PostMortemError(f"request {request} has no state row: {state}")

        def row(name: str, at: int) -> list[int] | None:
            table = args.get(name)
            return None if table is None else [int(v) for v in on_host(table[at]).tolist()]

        rows = on_host(args["request_ids"]) == request
        topk: list[list[int]] = on_host(args["topk_indices"])[rows].tolist()
        stable = args.get("stable_lengths")
        return cls(
            request,
            state,
            topk,
            row("source_block_table", request),
            row("hot_block_table", request) or [],
            row("hot_owner", state) or [],
            row("lru_slots", state) or [],
            row("resident_block_table", state),
            None if stable is None else int(stable[request]),
            {name: args[name] for name in _SIZES if args.get(name) is not None},
        )

    def json(self) -> str:
        """One JSON object."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)})

    def save(self, path: str | Path) -> None:
        """Write the JSON to a file."""
        Path(path).write_text(self.json() + "\n")

    @classmethod
    def load(cls, path: str | Path) -> PostMortem:
        """Read a file of :meth:`save`; any fault of it is a :class:`PostMortemError`."""
        try:
            text = Path(path).read_text()
            data = json.loads(text)
        except FileNotFoundError:
            raise PostMortemError(f"{path}: no such file") from None
        except (ValueError, RecursionError):
            raise PostMortemError(f"{path}: not a post-mortem, or a truncated one") from None
        try:
            dump = cls._from_data(data)
            dump.args()  # tables that no tensor holds
            return dump
        except PostMortemError as error:
            raise PostMortemError(f"{path}: {error}") from None

    @classmethod
    def _from_data(cls, data: Any) -> PostMortem:
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise PostMortemError(f'not a post-mortem (it does not say "format": "{FORMAT}")')
        if data.get("version") != VERSION:
            raise PostMortemError(f"version must be {VERSION}, got {data.get('version')!r}"[:200])
        fields = {k: v for k, v in data.items() if k not in ("format", "version")}
        if set(fields) != set(cls.__dataclass_fields__):
            raise PostMortemError("its fields are not those of a post-mortem")
        topk = fields["topk_indices"]
        lists = [*topk] if isinstance(topk, list) else [None]
        lists += [fields[n] for n in ("hot_block_table", "hot_owner", "lru_slots")]
        lists += [
            fields[n]
            for n in ("source_block_table", "resident_block_table")
            if fields[n] is not None
        ]
        numbers = [fields["request"], fields["state_row"]]
        numbers += [fields["stable_length"]] if fields["stable_length"] is not None else []
        sizes = fields["sizes"]
        needed = {"host_rows", "num_blocks", "block_size"}
        if not isinstance(sizes, dict) or not needed <= set(sizes) <= set(_SIZES):
            raise PostMortemError("its sizes are not those of a call")
        numbers += [v for k, v in sizes.items() if k != "layout"]
        whole = isinstance(sizes.get("layout", ""), str)
        for one in lists:
            whole = whole and isinstance(one, list) and len(one) <= _LARGEST
            numbers += one if isinstance(one, list) else []
        if not whole or not all(type(v) is int and abs(v) < 2**63 for v in numbers):
            raise PostMortemError("a table must be a list of integers")
        if len({len(row) for row in topk}) > 1:
            raise PostMortemError("the rows of topk_indices must have one length")
        return cls(**fields)

    def args(self) -> dict[str, Any]:
        """Arguments of :func:`hisparse_ops.resolve` for this request alone."""

        def table(values: list[int] | None, dtype: torch.dtype = torch.int32) -> Tensor | None:
            if values is None:
                return None
            limits = torch.iinfo(dtype)
            if any(not limits.min <= v <= limits.max for v in values):
                raise PostMortemError(f"a table holds a value that is no {dtype}")
            return torch.tensor([values], dtype=dtype)

        rows = len(self.topk_indices)
        width = len(self.topk_indices[0]) if rows else 0
        topk = torch.tensor(self.topk_indices, dtype=torch.int64).reshape(rows, width)
        entries = {
            name: torch.full((rows, width), -1, dtype=torch.int32)
            for name in ("attention_indices", "refill_host_rows", "refill_hot_rows")
        }
        counts = {
            name: torch.zeros(rows, dtype=torch.int32) for name in ("valid_counts", "refill_counts")
        }
        return {
            "topk_indices": topk,
            "request_ids": torch.zeros(rows, dtype=torch.int32),
            "request_state_indices": torch.zeros(1, dtype=torch.int32),
            "source_block_table": table(self.source_block_table),
            "hot_block_table": table(self.hot_block_table),
            "hot_owner": table(self.hot_owner),
            "lru_slots": table(self.lru_slots, torch.int16),
            **entries,
            **counts,
            **self.sizes,
            "resident_block_table": table(self.resident_block_table),
            "stable_lengths": None
            if self.stable_length is None
            else torch.tensor([self.stable_length]),
            "stats": torch.zeros(2, dtype=torch.int64),
        }

    def finding(self) -> str:
        """What validation says of the state, or an empty text."""
        try:
            check_values("resolve", **self.args())
        except ValidationError as error:
            return str(error)
        return ""

    def text(self) -> str:
        """The state for a person, a dozen lines."""
        owned = [row for row in self.hot_owner if row >= 0]
        lines = [
            f"request {self.request}, state row {self.state_row}",
            f"hot buffer: {len(self.hot_owner)} slots, {len(owned)} own a host row, {len(set(owned))} distinct",
            f"LRU, oldest first: {_some(self.lru_slots)}",
            f"owners by slot: {_some(self.hot_owner)}",
            f"hot blocks: {_some(self.hot_block_table)}",
        ]
        for name, table in (
            ("host blocks", self.source_block_table),
            ("resident blocks", self.resident_block_table),
        ):
            lines.append(f"{name}: {'none' if table is None else _some(table)}")
        lines += [f"top-k row {i}: {_some(row)}" for i, row in enumerate(self.topk_indices)]
        lines.append("sizes: " + ", ".join(f"{k} {v}" for k, v in self.sizes.items()))
        if self.stable_length is not None:
            lines.append(f"stable length: {self.stable_length}")
        lines.append(f"validation: {self.finding() or 'nothing found'}")
        return "\n".join(lines)

    def replay(self) -> str:
        """Resolve once more from this state, and once from an empty one; what differs is the state's doing."""
        here, fresh = self.args(), self.args()
        fresh["hot_owner"], fresh["lru_slots"] = new_hot_state(1, len(self.hot_owner))
        lines = []
        for name, args in (("this state", here), ("an empty state", fresh)):
            with validate(False):
                resolve(**args)
            hits, loads = args["stats"].tolist()
            valid = int(args["valid_counts"].sum())
            lines.append(f"replay from {name}: {valid} valid entries, {hits} hits, {loads} loads")
        lost = (here["attention_indices"] < 0) & (fresh["attention_indices"] >= 0)
        for row, column in lost.nonzero().tolist():
            position = int(here["topk_indices"][row, column])
            lines.append(f"lost to this state: topk_indices[{row}, {column}] = {position}")
        return "\n".join(lines)


def _some(values: list[int], count: int = 16) -> str:
    shown = " ".join(str(v) for v in values[:count])
    more = len(values) - count
    return f"{shown} .. and {more} more" if more > 0 else shown
