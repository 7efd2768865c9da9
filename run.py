"""python run.py mode=reduce-overhead passes=stream_plan: compose, check, run in a worker, print the summary."""

import sys

from npucompose.cli import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], program="run.py"))
