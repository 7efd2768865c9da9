"""What an npucompose experiment is: its stages, keys, report, lock, sweeps, searches, and the commands that run them.

May use everything below it and `airflow_free`, which runs it. Nothing here compiles, captures or knows a device.
"""
