"""The gateway beside its peers, in CPU time per request: ratios of one run on one machine.

Load and mock upstream share one core, the peer under measurement has another one to itself; README.md says
what is measured and why it is measured so.
"""
