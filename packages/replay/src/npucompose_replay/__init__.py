"""Capture and replay of FX graphs, whatever target asks: plan, memory, executors, caches, detached handles.

No target, no mode and no report lives here, and nothing here imports one.
"""
