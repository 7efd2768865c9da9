"""What reads what a device left: logs, graph dumps, profiles, tensor dumps.

Nothing of npucompose imports it: the core finds each reader through an entry point, as it finds anybody's.
"""
