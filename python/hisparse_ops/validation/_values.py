"""What the value checks share: an error that names the element, and the rules most arguments have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

INT32_MAX = 2**31 - 1


class ValidationError(ValueError):
    """An element that no healthy program holds: ``<op>: <argument>[row, column] must <rule>, got <value>``."""

    def __init__(self, op: str, argument: str, index: tuple[int, ...], rule: str, value: str):
        place = f"[{', '.join(str(i) for i in index)}]" if index else ""
        super().__init__(f"{op}: {argument}{place} must {rule}, got {value}")
        self.op, self.argument, self.index = op, argument, index
        self.rule, self.value = rule, value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.op, self.argument, self.index, self.rule, self.value)


VALIDATORS: dict[str, Callable[..., None]] = {}
"""Op -> its value checks, which take the arguments of the op."""


def validates(op: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enter the value checks of an op."""

    def enter(check: Callable[..., None]) -> Callable[..., None]:
        VALIDATORS[op] = check
        return check

    return enter


def on_host(t: Tensor) -> Tensor:
    """Indices as int64 on the host, where they are checked; a device tensor is copied, which waits for it."""
    return t.detach().to("cpu", torch.int64)


def distinct(values: Tensor) -> Tensor:
    """Each value once, ascending."""
    unique: Tensor = values.unique()  # type: ignore[no-untyped-call]
    return unique


def first(wrong: Tensor) -> tuple[int, ...] | None:
    """Index of the first True in row-major order."""
    found = wrong.nonzero()
    return tuple(int(i) for i in found[0]) if len(found) else None


@dataclass(frozen=True)
class Values:
    """The value checks of one op call. ``where`` masks the elements that count; the others are padding."""

    op: str

    def fail(self, argument: str, index: Sequence[int], rule: str, value: object) -> NoReturn:
        raise ValidationError(self.op, argument, tuple(index), rule, str(value))

    def reject(
        self,
        argument: str,
        values: Tensor,
        wrong: Tensor,
        rule: str,
        prefix: Sequence[int] = (),
    ) -> None:
        """Fail at the first element of ``wrong``; ``prefix`` stands before its index."""
        index = first(wrong)
        if index is not None:
            self.fail(argument, (*prefix, *index), rule, values[index].item())

    def within(
        self,
        argument: str,
        values: Tensor,
        low: int,
        high: int,
        what: str,
        where: Tensor | None = None,
        prefix: Sequence[int] = (),
    ) -> None:
        """``low <= value < high``; ``low`` -1 or 0 stands for "nothing" where an argument has that."""
        wrong = (values < low) | (values >= high)
        if where is not None:
            wrong &= where
        self.reject(argument, values, wrong, f"be {what}", prefix)

    def unique(
        self,
        argument: str,
        values: Tensor,
        where: Tensor,
        rule: str = "be listed once",
        prefix: Sequence[int] = (),
    ) -> None:
        """No value twice among the elements that count; the second one, in row-major order, is named."""
        flat, counted = values.flatten(), where.flatten().nonzero()[:, 0]
        order = torch.sort(flat[counted], stable=True)
        again = order.indices[1:][order.values[1:] == order.values[:-1]]
        if len(again):
            at = int(counted[again.min()])
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(at), values.shape))
            self.fail(argument, (*prefix, *index), rule, f"{flat[at].item()} again")

    def ids(self, argument: str, t: Tensor, high: int, what: str) -> Tensor:
        """Ids below ``high``, or -1 for padding; anything else fails. Returns them on the host."""
        values = on_host(t)
        self.within(argument, values, -1, high, f"-1 or {what} below {high}")
        return values


def named_rows(ids: Tensor, count: int) -> Tensor:
    """The rows of a table that ``ids`` name, each once, ascending."""
    return distinct(ids[(ids >= 0) & (ids < count)])


def check_owners(
    check: Values, argument: str, owner: Tensor, states: Tensor, host_rows: int = INT32_MAX + 1
) -> None:
    """Owners of the state rows in use: -1 or a row of the host cache, each held by one slot of its state row.

    Two slots with one owner mean that a row was loaded twice; a write would be seen in both copies or, worse,
    be missed in one.
    """
    limit = "" if host_rows > INT32_MAX else f" below {host_rows}"
    for state in states.tolist():
        row = on_host(owner[state])
        what = f"-1 or a host row{limit}"
        check.within(argument, row, -1, host_rows, what, prefix=(state,))
        check.unique(argument, row, row >= 0, "own a host row that no other slot owns", (state,))


def check_lru(check: Values, argument: str, lru: Tensor, states: Tensor) -> None:
    """LRU rows of the state rows in use are permutations: a slot that is missing is never used again, one that
    stands twice is given to two host rows."""
    hot_size = lru.shape[1]
    for state in states.tolist():
        row = on_host(lru[state])
        check.within(argument, row, 0, hot_size, f"a slot below {hot_size}", prefix=(state,))
        check.unique(argument, row, row >= 0, "list every slot once", (state,))


def check_slots(check: Values, argument: str, t: Tensor, rows: int) -> Tensor:
    """Destination rows of tokens: -1 for padding or a row, and no row twice. Returns a mask of the real ones.

    Two tokens with one slot are two requests that write the same row: one of them reads the other's bytes.
    """
    values = check.ids(argument, t, rows, "a row")
    check.unique(argument, values, values >= 0, "name each row once")
    return values >= 0
