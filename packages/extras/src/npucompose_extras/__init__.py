"""What few need: dialects of engines, pretrained models, Paddle's operators, trackers, the search, halved batches.

Nothing of npucompose imports it: each is found through an entry point, as anybody's would be. What a newcomer has to
read, and what others build on, may not live here.
"""
