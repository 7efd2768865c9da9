"""One compiled graph and its recordings: which signatures get one, which go, and graphs in parts.

No kernel and no plan of memory lives here.
"""
