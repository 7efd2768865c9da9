"""Timing samples, numerics against eager, the environment and memory of this process.

Importing a module of this package loads no torch, and none knows a target.
"""
