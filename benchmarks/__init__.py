"""Timings of every op on the shapes of real models: ``python -m benchmarks --help``."""
