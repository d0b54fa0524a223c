"""The native resolver of devices: one SIMT kernel body, launched on CUDA and on Ascend 950."""
