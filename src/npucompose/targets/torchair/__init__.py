"""The vendor's TorchAir as a target: configuration, hooks, refusals, what came out.

Here may live what every target on TorchAir shares, and `npu`, which adds little to it; nothing of the simulator.
"""
