"""Other kernels than this machine's: Debian's packages of them, and Braid run on them."""
