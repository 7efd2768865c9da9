"""Many experiments from one command line: planned at once, run in processes of their own, kept in a ledger.

How one of them runs is not said here, nor where its worker is: that is `experiment/run.py` and an executor's.
"""
