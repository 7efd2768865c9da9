"""Which sizes to record for a server: planned from a trace of its steps, within a budget of recordings and memory."""
