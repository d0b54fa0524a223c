"""The one place that holds the version; the binary and the wheel are built from it."""

__version__ = "0.1.0"
