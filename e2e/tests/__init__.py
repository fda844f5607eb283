"""Tests that cross process borders."""
