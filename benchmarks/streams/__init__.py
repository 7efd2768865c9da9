"""What plans of streams are worth and what planning costs: `python -m benchmarks.streams`, or `make bench-streams`."""
