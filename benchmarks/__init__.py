"""What the kernels cost: cost-model figures, host cost, and the harness for an NPU."""
