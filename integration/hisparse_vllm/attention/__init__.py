"""Sparse MLA attention around the ops: a clear torch reference on the CPU, the platform's own kernels on a device."""
