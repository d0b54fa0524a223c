"""Tools for tests and simulations over the installed vLLM Core."""
