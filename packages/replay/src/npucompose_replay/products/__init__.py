"""Who computes the products of a frozen graph: libraries that take part, times of each, and what won.

Forms of a graph that make more of them alike are here too; nothing of it records.
"""
