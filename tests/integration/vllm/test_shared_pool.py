"""A pool shared by processes: one memory, 0600, and nothing left behind whatever dies. Needs no vLLM."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from hisparse_vllm import host_pool, shared_pool
from hisparse_vllm.shared_pool import SharedPoolError, open_shared

SPAWN = multiprocessing.get_context("spawn")
SIZE = 1 << 20


def nothing() -> None:
    pass


def rank(number: int, folder: str, barrier: Any, written: Any, results: Any) -> None:
    memory = open_shared("test", SIZE, number, barrier.wait, Path(folder))
    memory[number] = 100 + number
    written.wait()
    results.put((number, list(memory[:4]), len(memory)))


def test_ranks_share_one_memory_without_a_name(tmp_path: Path) -> None:
    ranks = 4
    barrier, written, results = SPAWN.Barrier(ranks), SPAWN.Barrier(ranks), SPAWN.Queue()
    started = [
        SPAWN.Process(target=rank, args=(i, str(tmp_path), barrier, written, results))
        for i in range(ranks)
    ]
    for process in started:
        process.start()
    seen = [results.get(timeout=60) for _ in started]
    for process in started:
        process.join(60)
        assert process.exitcode == 0
    assert {tuple(values) for _, values, _ in seen} == {(100, 101, 102, 103)}
    assert {size for _, _, size in seen} == {SIZE}
    assert not list(tmp_path.iterdir())


def die_while_others_come(folder: str, ready: Any) -> None:
    def barrier() -> None:
        ready.set()
        time.sleep(60)

    open_shared("test", SIZE, 0, barrier, Path(folder))


def killed_creator(folder: Path) -> Path:
    ready = SPAWN.Event()
    process = SPAWN.Process(target=die_while_others_come, args=(str(folder), ready))
    process.start()
    assert ready.wait(60)
    (path,) = folder.iterdir()
    mode = stat.S_IMODE(path.stat().st_mode)
    assert mode == 0o600, oct(mode)
    with pytest.raises(SharedPoolError, match="must not be in use, got one whose creator is alive"):
        open_shared("test", SIZE, 0, nothing, folder)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    return path


def test_a_pool_of_a_killed_creator_is_taken_over(tmp_path: Path) -> None:
    path = killed_creator(tmp_path)
    assert path.exists()
    memory = open_shared("test", SIZE, 0, nothing, tmp_path)
    assert not any(memory[:4096]) and not path.exists()


def test_a_pool_of_a_killed_creator_is_removed_on_demand(tmp_path: Path) -> None:
    path = killed_creator(tmp_path)
    assert shared_pool.remove_stale(tmp_path) == [path]
    assert shared_pool.remove_stale(tmp_path) == []


def test_a_failure_before_all_ranks_are_there_leaves_no_name(tmp_path: Path) -> None:
    def broken() -> None:
        raise TimeoutError("a rank did not come")

    with pytest.raises(TimeoutError):
        open_shared("test", SIZE, 0, broken, tmp_path)
    assert not list(tmp_path.iterdir())


def a_file(folder: Path, size: int = SIZE, mode: int = 0o600) -> Path:
    path = folder / "hisparse-test"
    path.write_bytes(bytes(size))
    path.chmod(mode)
    return path


def test_ranks_that_differ_in_size_are_told(tmp_path: Path) -> None:
    a_file(tmp_path, 4096)
    with pytest.raises(SharedPoolError, match=f"must have {SIZE} bytes, got 4096: ranks differ"):
        open_shared("test", SIZE, 1, nothing, tmp_path)


def test_a_file_that_others_may_open_is_refused(tmp_path: Path) -> None:
    a_file(tmp_path, mode=0o644)
    with pytest.raises(SharedPoolError, match=r"this user alone \(0600\), got uid .* mode 0644"):
        open_shared("test", SIZE, 1, nothing, tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    (tmp_path / "hisparse-test").symlink_to(elsewhere)
    with pytest.raises(SharedPoolError, match="must belong to this user"):
        open_shared("test", SIZE, 0, nothing, tmp_path)
    with pytest.raises(SharedPoolError, match="must be there"):
        open_shared("test", SIZE, 1, nothing, tmp_path)
    assert elsewhere.read_bytes() == b"precious"


def test_a_pool_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SharedPoolError, match="the shared host pool must be there"):
        open_shared("test", SIZE, 1, nothing, tmp_path)


def test_a_full_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        SharedPoolError, match=r"must have room for the shared host pool of 0\.0 GiB"
    ):
        open_shared("test", SIZE, 0, nothing, tmp_path)
    assert not list(tmp_path.iterdir())


def test_it_can_be_a_host_pool(tmp_path: Path) -> None:
    from hisparse_vllm.registration import Unmapped

    memory = open_shared("test", SIZE, 0, nothing, tmp_path)
    pool = host_pool.HostPool(SIZE, Unmapped(), memory=memory)
    pool.tensor[5] = 9
    assert memory[5] == 9
    pool.close()
