"""CUDA graphs of FX graphs: the calls of torch.cuda, the recording, its results.

Nothing of the target `cuda` and its options.
"""
