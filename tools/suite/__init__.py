"""Checks, tests, fuzzing, and the generators of checked-in files."""
