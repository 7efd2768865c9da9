"""Where the values of a plan lie: shared arenas, blocks, output buffers, inputs and results that callers hold.

No kernel is called here.
"""
