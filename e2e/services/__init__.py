"""Test doubles of the services around the product, and a parser for strace output."""
