"""Times of an NPU's kernels from profiles of it: the table that stream plans take, and how well it predicts.

Knows no form of a profile: readers (`npucompose.readers`) make the rows. What looks a graph up in a table is
`streams/calibrated.py`.
"""
