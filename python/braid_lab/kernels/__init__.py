"""Stock kernels of Debian, booted here, with a scenario of the whole product on each."""
