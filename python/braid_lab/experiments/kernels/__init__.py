"""Which kernels the product runs on."""
