"""Will a model be captured as an NPU graph: the rules of a capture, a simulated one, the verdict, and its page.

Here: the public rules of the runtime as data, a model's call under them, what FX graphs show of them, what captures
take of a device. Not here: a target, anything that is compiled or started.
"""
