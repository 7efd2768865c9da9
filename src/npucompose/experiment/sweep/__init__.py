"""Many experiments from one command line: planned at once, run in processes of their own, kept in a ledger."""
