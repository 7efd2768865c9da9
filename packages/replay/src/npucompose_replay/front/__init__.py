"""What callers call: a compiled graph with its recordings, graphs in parts, handles without torch.compile around.

No kernel and no plan of memory lives here.
"""
