"""A simulated capture: the machine that a model believes to run on, and what the runtime's public rules refuse of it.

What the rules are stands beside this folder; no verdict is made here.
"""
