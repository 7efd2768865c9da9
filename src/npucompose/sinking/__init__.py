"""Static or dynamic, and why: verdicts, the table of value-dependent operators, the numbered diagnosis.

Reads captured FX graphs, the configuration and facts that a target hands in. Knows no target and starts nothing.
"""
