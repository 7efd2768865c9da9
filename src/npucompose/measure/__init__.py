"""Timing samples, memory, numerics against eager, the environment. Importing the room loads no torch."""
