"""Tests of common client libraries against both planes and a real engine."""
