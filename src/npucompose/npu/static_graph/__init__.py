"""Static or dynamic, and why: verdicts, the table of value-dependent operators, the numbered diagnosis, its page.

Here: rules about captured FX graphs, the configuration and facts that a target hands in. Not here: a target, anything
that is started, or the form of a log or dump.
"""
