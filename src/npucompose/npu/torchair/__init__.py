"""The vendor's TorchAir as a target: configuration, hooks, refusals, what came out.

Here may live what every target on TorchAir shares; nothing of one device, and nothing of the simulator.
"""
