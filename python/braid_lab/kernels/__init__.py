"""Stock kernels of Debian, booted here, and a scenario that covers the whole product."""
