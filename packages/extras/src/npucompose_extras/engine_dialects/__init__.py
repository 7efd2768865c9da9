"""Dialects of the engines themselves: vLLM, read and written, and sglang on an NPU, written.

Facts only: what a key means is read from the version that each module names.
"""
