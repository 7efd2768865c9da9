"""airflow_free: stages with declared needs, kept by content, run in worker processes, swept. See README.md.

Nothing of any project that uses it may be imported here, and nothing here knows what a stage does.
"""
