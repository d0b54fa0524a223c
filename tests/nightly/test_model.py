"""Random programs over the ops against a table of what was written: attention must see exactly that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import hisparse_ops as hs
from hisparse_ops.testing import model
from hisparse_ops.testing.model import World, drive

REQUEST = st.integers(0, model.REQUESTS - 1)


class Programs(RuleBasedStateMachine):
    """Hypothesis chooses the actions, and shrinks a program that fails."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(request=REQUEST, length=st.integers(1, model.CONTEXT))
    def admit(self, request: int, length: int) -> None:
        self.world.admit(request, length)

    @rule(request=REQUEST)
    def free(self, request: int) -> None:
        self.world.free(request)

    @rule(request=REQUEST, count=st.integers(1, 4))
    def write(self, request: int, count: int) -> None:
        self.world.write(request, count)

    @rule(request=REQUEST, count=st.integers(1, 4), invalidate=st.booleans())
    def reject(self, request: int, count: int, invalidate: bool) -> None:
        self.world.reject(request, count, invalidate)

    @rule(request=REQUEST)
    def settle(self, request: int) -> None:
        self.world.settle(request)

    @rule(request=REQUEST)
    def recycle(self, request: int) -> None:
        self.world.recycle_last_page(request)

    @rule(request=REQUEST, page=st.integers(0, model.PAGES - 1), back=st.booleans())
    def move(self, request: int, page: int, back: bool) -> None:
        (self.world.restore if back else self.world.spill)(request, page)

    @rule(seed=st.integers(0, 2**20), mtp=st.integers(1, model.MTP), padding=st.integers(0, 2))
    def step(self, seed: int, mtp: int, padding: int) -> None:
        self.world.step(seed, mtp, padding)

    @invariant()
    def state_is_true(self) -> None:
        self.world.prove()


def test_programs_that_hypothesis_finds(tier: str) -> None:
    run_state_machine_as_test(
        Programs,
        settings=settings(
            max_examples=400 if tier == "nightly" else 10,
            stateful_step_count=60,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("seed", range(2))
def test_long_random_programs(seed: int, tier: str) -> None:
    counts = drive(seed, 200_000 if tier == "nightly" else 3_000)
    assert counts.hits > 0 and counts.loads > model.HOT and counts.rows_checked > 0


def test_random_programs_pass_validation() -> None:
    """What an engine does is healthy: no rule of validation is in its way."""
    with hs.validate():
        drive(7, 1500)


def lose(op: str) -> Callable[[World], Callable[..., None]]:
    """An engine that forgets one op."""

    def spoil(world: World) -> Callable[..., None]:
        whole = world.call

        def call(function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            if function is not getattr(hs, op):
                whole(function, *args, **kwargs)

        return call

    return spoil


@pytest.mark.parametrize(
    "forgotten",
    [
        "reset_requests",
        "invalidate_recycled",
        "invalidate_written",
        "gather_compact",
        "gather_plan",
        "copy_row_spans",
        "copy_pages",
        "scatter_rows",
    ],
)
def test_the_model_notices_a_forgotten_op(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = World.__init__

    def init(self: World, *args: Any) -> None:
        original(self, *args)
        self.call = lose(forgotten)(self)  # type: ignore[method-assign]

    monkeypatch.setattr(World, "__init__", init)
    with pytest.raises((AssertionError, hs.ValidationError)):
        drive(1, 30_000)


def test_the_model_notices_one_wrong_row() -> None:
    world = World()
    world.admit(0, 20)
    world.step(2, 3, 0)
    slot = int((world.owner[world.states[0]] >= 0).nonzero()[0])
    block = int(world.hot_table[0, slot // model.BLOCK])
    world.slab[1][block, slot % model.BLOCK] += 1
    with pytest.raises(
        hs.ValidationError, match="must name the host row whose bytes its slot holds"
    ):
        world.prove()
    with pytest.raises(AssertionError, match="attention sees"):
        for seed in range(20):
            world.step(seed, 3, 0)


def test_captured_step_replays_a_program() -> None:
    """The resolver and gather of a step, compiled once, over tables that the program changes between replays."""
    world = World()
    whole = world.call
    compiled = {
        hs.resolve: torch.compile(hs.resolve, fullgraph=True, backend="aot_eager", dynamic=False),
        hs.gather_compact: torch.compile(
            hs.gather_compact, fullgraph=True, backend="aot_eager", dynamic=False
        ),
    }

    def call(function: Any, *args: Any, **kwargs: Any) -> None:
        whole(compiled.get(function, function), *args, **kwargs)

    world.call = call  # type: ignore[method-assign]
    world.admit(0, 9)
    world.admit(1, 14)
    for turn in range(12):
        world.step(2 * turn, 2, 1)
        world.write(turn % 2, 1)
        world.restore(turn % 2, turn % 3)
        world.reject(1, 2, invalidate=bool(turn % 2))
        world.spill(turn % 2, (turn + 1) % 3)
    world.settle(1)
    world.prove()
