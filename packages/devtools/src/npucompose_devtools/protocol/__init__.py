"""The host's side of an aclgraph's replay, explored in every order: who waits for ever, what is read stale.

`check(read_protocol(path))` is exhaustive within the protocol's own loops; `page_of(finding)` draws what it found. A
protocol is data: threads, streams, events, graphs and one line a step. Knows no torch, no device and no engine.
"""
