"""Tiers, and settings that every test runs under."""

from __future__ import annotations

import os

import pytest

# An op whose output aliases an input is an error, not a warning. Read when torch is imported.
os.environ["TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING"] = "1"

# The device kernels are interpreted here. Read when Triton is imported, which the compiler of torch does too.
os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=("default", "nightly"),
        default="default",
        help="default: a few samples per property, under 15 minutes; nightly: all of them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out of the default tier (deselected, not skipped)."""
    if config.getoption("--tier") == "nightly":
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


@pytest.fixture(scope="session")
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--tier"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``op`` runs over the registry, ``sample`` over (op, sample), ``bad`` over (op, bad argument).

    ``default_sample`` leaves out the nightly samples: products of sizes, where every path is taken already.
    """
    import hisparse_ops
    from hisparse_ops.testing import samples

    tier = metafunc.config.getoption("--tier")
    names = list(hisparse_ops.ops())
    for fixture, of_tier in (("sample", tier), ("default_sample", "default")):
        if fixture in metafunc.fixturenames:
            cases = [(name, s) for name in names for s in samples.samples(name, of_tier)]
            ids = [f"{name}-{s.name}" for name, s in cases]
            metafunc.parametrize(f"op,{fixture}", cases, ids=ids)
            return
    if "bad" in metafunc.fixturenames:
        wrong = [(name, b) for name in names for b in samples.load(name).BAD_ARGUMENTS]
        metafunc.parametrize("op,bad", wrong, ids=[f"{name}-{b.name}" for name, b in wrong])
    elif "op" in metafunc.fixturenames:
        metafunc.parametrize("op", names)
