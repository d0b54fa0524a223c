"""Samples, guarded buffers and whole-buffer comparison, shared by tests and benchmarks."""
