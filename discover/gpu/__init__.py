"""GPU kernels and their plain versions, and the one place that knows which device computes."""
