"""What reads what a device left (logs, dumps, profiles), and explores what it takes (kits, sizes, protocols).

Nothing of npucompose imports it: the core finds each reader and command through an entry point, as it finds anybody's.
"""
