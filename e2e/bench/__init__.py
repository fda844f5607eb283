"""Benchmarks of the gateway and its peers in CPU time per request: ratios within one run on one machine.

Load generator and mock upstream share one core; the measured peer has another one to itself. README.md describes the
method.
"""
