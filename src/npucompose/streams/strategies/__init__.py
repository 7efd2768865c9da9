"""Ways to choose streams and an order for a graph's kernels, a file each.

Here: strategies, which know only numbers; each names its source.
Not here: which of them are asked, and which answer is the best: `assignment` and the simulation say.
"""
