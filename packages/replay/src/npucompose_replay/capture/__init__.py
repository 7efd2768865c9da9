"""An FX graph -> a plan: it is run once on real values, and every kernel call is written down.

Who runs a plan, and in which memory, is not decided here.
"""
