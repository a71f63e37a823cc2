"""Level 4: kernels in the kernel language, one file an op family, one source for every target."""
