"""The device kernels as far as they can be taken without a device; ``python -m tools.device_check --help``."""
