"""What npucompose brings and its core does without: each file is found through an entry point, as anybody's would be.

Nothing of it is imported by npucompose or airflow_free; what a newcomer has to read, and what others build on, may not
live here.
"""
