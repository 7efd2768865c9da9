"""The genuine TorchAir as a target: configuration, hooks, what came out. Knows no device and no simulated runtime."""
