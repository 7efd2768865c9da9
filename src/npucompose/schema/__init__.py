"""What a person asks for, as checked values: one attrs class for each section of the configuration.

No result may live here, no table of a vendor's, and nothing that runs; no torch is loaded.
"""
