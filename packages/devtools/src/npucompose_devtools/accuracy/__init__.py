"""Two dumps of one step, eager and graph, operator by operator up to the first that differs beyond its contract.

Knows no form of a dump: readers (`npucompose.readers`) list the operators and load the tensors.
"""
