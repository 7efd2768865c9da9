"""What a later process finds of an earlier one: recordings of frozen graphs, Inductor's code, and the keys of both.

A file that is not as it was written, or that others could have written, is not believed; it is made anew.
"""
