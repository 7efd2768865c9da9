"""What a vendor decides: how its compiler is configured, whether a graph becomes static, whether it can be captured.

The vendor's tables lie in `vendor/`, the devices in `targets/`.
"""
