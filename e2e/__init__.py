"""End-to-end tests and benchmarks: everything that involves more than one process."""
