"""airflow_free: experiments as a resumable graph of stages that needs no workflow server."""
