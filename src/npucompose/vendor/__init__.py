"""What others decide, as data: the option trees of TorchAir, npugraph_ex and Inductor, their versions, the SoCs.

Nothing of ours may live here that an experiment says or a run reports; no vendor's package is imported.
"""
