"""Which sizes to record for a server: planned from a trace of its steps, within a budget of recordings and memory.

`plan(Trace.from_csv(path), SizeBudget(recordings=16))` is exact. What a recording takes is given and not measured here;
nothing here runs a model or knows an engine."""
