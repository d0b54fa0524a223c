"""check_state and the post-mortem: a true state passes, every single lie is named, files are read with care."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hisparse_ops as hs
from hisparse_ops.__main__ import main
from hisparse_ops.validation import PostMortemError

REQUESTS, TOP_K, HOT, BLOCK, PAGES, WIDTH, LAYERS = 2, 4, 12, 4, 6, 8, 2


class Server:
    """Two requests whose first page is resident, after some steps."""

    def __init__(self) -> None:
        gen = torch.Generator().manual_seed(0)
        blocks = REQUESTS * PAGES
        self.source = (1 + torch.randperm(blocks, generator=gen)).view(REQUESTS, -1).int()
        hot_blocks = REQUESTS * HOT // BLOCK
        self.hot_table = (1 + torch.arange(hot_blocks)).view(REQUESTS, -1).int()
        self.states = torch.tensor([1, 0], dtype=torch.int32)
        self.resident = torch.zeros(REQUESTS, PAGES, dtype=torch.int32)
        self.resident[self.states.long(), 0] = torch.tensor(
            [hot_blocks + 1, hot_blocks + 2], dtype=torch.int32
        )
        self.owner, self.lru = hs.new_hot_state(REQUESTS, HOT)
        host_rows = (1 + blocks) * BLOCK
        self.host = [torch.randn(host_rows, WIDTH, generator=gen) for _ in range(LAYERS)]
        self.hot = [torch.zeros(hot_blocks + 3, BLOCK, WIDTH) for _ in range(LAYERS)]
        for host, hot in zip(self.host, self.hot, strict=True):
            for request, state in enumerate(self.states.tolist()):
                block = int(self.source[request, 0])
                hot[self.resident[state, 0]] = host[block * BLOCK : (block + 1) * BLOCK]
        for _ in range(8):
            self.step(
                torch.stack(
                    [torch.randperm(PAGES * BLOCK, generator=gen)[:TOP_K] for _ in range(REQUESTS)]
                )
            )

    def args(self, topk: Tensor) -> dict[str, Any]:
        entry = (REQUESTS, TOP_K)
        names = ("attention_indices", "refill_host_rows", "refill_hot_rows")
        return {
            "topk_indices": topk,
            "request_ids": torch.arange(REQUESTS),
            "request_state_indices": self.states,
            "source_block_table": self.source,
            "hot_block_table": self.hot_table,
            "hot_owner": self.owner,
            "lru_slots": self.lru,
            **{name: torch.zeros(entry, dtype=torch.int32) for name in names},
            "valid_counts": torch.zeros(REQUESTS, dtype=torch.int32),
            "refill_counts": torch.zeros(REQUESTS, dtype=torch.int32),
            "host_rows": len(self.host[0]),
            "num_blocks": len(self.hot[0]),
            "block_size": BLOCK,
            "resident_block_table": self.resident,
            "stable_lengths": torch.full((REQUESTS,), PAGES * BLOCK),
        }

    def step(self, topk: Tensor) -> None:
        args = self.args(topk)
        hs.resolve(**args)
        plan = args["refill_host_rows"], args["refill_hot_rows"], args["refill_counts"]
        for host, hot in zip(self.host, self.hot, strict=True):
            hs.gather_compact(host, hot, *plan)

    def check(self, **options: Any) -> hs.StateReport:
        return hs.check_state(
            self.owner,
            self.lru,
            self.hot_table,
            self.states,
            self.host,
            self.hot,
            source_block_table=self.source,
            resident_block_table=self.resident,
            lengths=torch.full((REQUESTS,), 18),
            **options,
        )


def test_a_true_state_is_proved() -> None:
    report = Server().check()
    owned = int((Server().owner >= 0).sum())
    assert (report.requests, report.owned_slots) == (REQUESTS, owned)
    assert report.resident_rows == REQUESTS * BLOCK
    assert report.bytes_compared == (owned + REQUESTS * BLOCK) * WIDTH * 4 * LAYERS


def owned_slot(s: Server, state: int = 1) -> tuple[int, int]:
    """An owned slot, and its physical row."""
    slot = int((s.owner[state] >= 0).nonzero()[3])
    request = s.states.tolist().index(state)
    return slot, int(s.hot_table[request, slot // BLOCK]) * BLOCK + slot % BLOCK


def change_hot_byte(s: Server) -> str:
    slot, row = owned_slot(s)
    s.hot[1].view(torch.uint8).view(-1, WIDTH * 4)[row, 5] ^= 1
    return f"hot_owner[1, {slot}] must name the host row whose bytes its slot holds"


def write_host_without_invalidating(s: Server) -> str:
    slot, _ = owned_slot(s)
    s.host[0][s.owner[1, slot]] += 1
    return f"hot_owner[1, {slot}] must name the host row whose bytes its slot holds"


def own_a_row_of_another_request(s: Server) -> str:
    slot, _ = owned_slot(s)
    s.owner[1, slot] = int(s.source[1, 2]) * BLOCK
    return f"hot_owner[1, {slot}] must be a host row of request 0"


def own_twice(s: Server) -> str:
    first, second = (s.owner[1] >= 0).nonzero()[:2, 0].tolist()
    s.owner[1, second] = s.owner[1, first]
    return f"hot_owner[1, {second}] must own a host row that no other slot owns"


def own_past_the_host(s: Server) -> str:
    s.owner[1, 4] = len(s.host[0])
    return "hot_owner[1, 4] must be -1 or a host row below"


def break_the_lru(s: Server) -> str:
    s.lru[0, 7] = s.lru[0, 2]
    return "lru_slots[0, 7] must list every slot once"


def unmap_a_hot_block(s: Server) -> str:
    s.hot_table[1, 2] = 0
    return "hot_block_table[1, 2] must be a device block"


def share_a_hot_block(s: Server) -> str:
    s.hot_table[1, 2] = s.hot_table[0, 0]
    return "hot_block_table[1, 2] must be the block of one hot buffer column only"


def share_a_state_row(s: Server) -> str:
    s.states[1] = 1
    return "request_state_indices[1] must be a state row of its own"


def change_a_resident_row(s: Server) -> str:
    s.hot[0][s.resident[0, 0], 3, 0] += 1
    return "resident_block_table[0, 0] must name the page whose bytes the host holds"


LIES: list[Callable[[Server], str]] = [
    change_hot_byte,
    write_host_without_invalidating,
    own_a_row_of_another_request,
    own_twice,
    own_past_the_host,
    break_the_lru,
    unmap_a_hot_block,
    share_a_hot_block,
    share_a_state_row,
    change_a_resident_row,
]


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named(lie: Callable[[Server], str]) -> None:
    s = Server()
    expected = lie(s)
    with pytest.raises(hs.ValidationError) as caught:
        s.check()
    assert str(caught.value).startswith(f"check_state: {expected}")


def test_chosen_requests_alone_are_checked() -> None:
    s = Server()
    break_the_lru(s)  # of state row 0, request 1
    assert s.check(requests=[0]).requests == 1
    with pytest.raises(hs.ValidationError, match=r"requests\[0\] must be a request below 2, got 2"):
        s.check(requests=[2])


def dump(spoil: bool = False) -> hs.PostMortem:
    s = Server()
    if spoil:
        s.lru[1, 0] = 99
    args = s.args(torch.tensor([[8, 9, 10, 1], [4, 5, 6, 7]]))
    return hs.PostMortem.of_call(args, 0)


def test_dump_goes_through_json_and_replays_the_call(tmp_path: Path) -> None:
    made = dump()
    made.save(tmp_path / "a.json")
    assert hs.PostMortem.load(tmp_path / "a.json") == made
    s = Server()
    args = s.args(torch.tensor([[8, 9, 10, 1], [4, 5, 6, 7]]))
    alone = made.args()
    hs.resolve(**args)
    hs.resolve(**alone)
    assert torch.equal(alone["hot_owner"][0], args["hot_owner"][1])
    assert torch.equal(alone["lru_slots"][0], args["lru_slots"][1])
    assert torch.equal(alone["attention_indices"][0], args["attention_indices"][0])


def test_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    dump().save(path)
    assert main(["postmortem", str(path)]) == 0
    out = capsys.readouterr().out
    assert "request 0, state row 1" in out and "validation: nothing found" in out
    assert "lost to this state" not in out
    dump(spoil=True).save(path)
    assert main(["postmortem", str(path)]) == 1
    out = capsys.readouterr().out
    assert "lru_slots[0, 0] must be a slot below 12, got 99" in out


def test_request_without_state_has_no_dump() -> None:
    args = Server().args(torch.zeros(2, 4, dtype=torch.int64))
    args["request_state_indices"] = torch.tensor([-1, 0])
    with pytest.raises(PostMortemError, match="request 0 has no state row: -1"):
        hs.PostMortem.of_call(args, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"version": 2},
        {"hot_owner": "x"},
        {"hot_owner": [1.5]},
        {"hot_owner": [2**40]},
        {"lru_slots": [2**20] * 12},
        {"hot_owner": []},
        {"topk_indices": [[1], [1, 2]]},
        {"topk_indices": 3},
        {"sizes": {"block_size": 0, "num_blocks": 1, "host_rows": 1}},
        {"sizes": {"block_size": 4}},
        {"sizes": {"block_size": 2**40, "num_blocks": 2**40, "host_rows": 1}},
        {"sizes": {"block_size": 4, "num_blocks": 9, "host_rows": 9, "layout": "rows"}},
        {"sizes": {"other": 1}},
        {"extra": 1},
        {"stable_length": [1]},
    ],
)
def test_foreign_file_is_one_sentence(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(json.loads(dump().json()) | change))
    assert main(["postmortem", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"python -m hisparse_ops: {path}: ") and error.count("\n") == 1


def test_truncated_file_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, path = dump().json().encode(), tmp_path / "a.json"
    for length in range(0, len(whole), 23):
        path.write_bytes(whole[:length])
        assert main(["postmortem", str(path)]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    path.write_bytes(b"\xff\xfe\x00" + bytes(range(256)))
    assert main(["postmortem", str(path)]) == 2
    assert main(["postmortem", str(tmp_path / "none.json")]) == 2
