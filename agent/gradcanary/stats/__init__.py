"""Kernels that measure gradients and weights. Nothing is read here, and there is no state of the loop."""
