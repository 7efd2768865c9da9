"""The crews: one file for each executor."""
