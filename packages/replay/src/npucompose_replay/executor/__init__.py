"""Who runs a plan: the native replayer (C++ in `src`), the portable ones, and the clock that compares them.

No graph is read here.
"""
