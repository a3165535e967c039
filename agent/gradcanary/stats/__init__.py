"""Kernels that measure gradients and weights, and read no value."""
