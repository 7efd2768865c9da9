"""One job in one fresh process: started, watched without spinning, ended with all that it started. Knows no stage.

The worker side is `airflow_free.inside`: it imports "module:function", calls `function(payload, tell)` and sends what
it returns. A sweep's jobs are forked from one process that has torch loaded (`airflow_free.pool`); this is a pool of
one that has nothing loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_free.outcome import Limits, Outcome
from airflow_free.pool import Order, Pool
from airflow_free.stage import Tell, silent

LIMITS = Limits()


def run_in_worker(
    entry: str,
    payload: Mapping[str, Any],
    *,
    time_limit_s: float,
    log_path: Path,
    limits: Limits = LIMITS,
    on_event: Tell = silent,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Call `entry` ("module:function") with `payload` in a new process and wait for it.

    The worker has this process's sys.path, working folder and what passes of its environment (and `env`); what it
    prints is appended to `log_path`, as far as `limits` allow. On timeout, on Ctrl-C, at its end and at the end of this
    process it is ended with everything that it started, whatever session that moved to. Blocks in select: no processor
    time is taken from what is measured.
    """
    with Pool(log_path) as pool:
        pool.start(
            Order(
                number=0,
                entry=entry,
                payload=payload,
                time_limit_s=time_limit_s,
                log_path=log_path,
                limits=limits,
                env=env or {},
            )
        )
        while True:
            for _, news in pool.news():
                if isinstance(news, Outcome):
                    return news
                on_event(news)
