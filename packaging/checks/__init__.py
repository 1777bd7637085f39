"""Tests of the packages and of the binaries for other machines: `make package-test`."""
