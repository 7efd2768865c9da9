"""What stands in for a cold process: it has a warm one forked, with this process's files, folder and environment.

    python -IS nursery_client.py ADDRESS KIND [WORD…]

Imports nothing that costs. Signals that come here go on to the other; its end is the end here, a death by a signal too;
when this process is killed, so is the other (`nursery` sees the hang-up). Where the environment asks for a process that
reads it from its beginning, this process becomes that cold one.
"""

import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
FILES = "NPUCOMPOSE_TEST_FILES"
"""Numbers of the open files, beside 0, 1 and 2, that the other process gets under the same numbers."""


def main(address: str, *words: str) -> int:
    extra = [int(number) for number in os.environ.pop(FILES, "").split()]
    waiting: list[int] = []
    child = 0

    def forward(number: int, frame: object) -> None:
        if child:
            os.kill(child, number)  # not reaped before its end is told, below
        else:
            waiting.append(number)

    ignored = [number for number in FORWARDED if signal.getsignal(number) is signal.SIG_IGN]
    for number in set(FORWARDED) - set(ignored):
        signal.signal(number, forward)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect("\0" + address)
    order = {
        "words": words,
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "files": [0, 1, 2, *extra],
        "leads": os.getsid(0) == os.getpid(),
        "ignored": [int(number) for number in ignored],
    }
    text = json.dumps(order).encode()
    socket.send_fds(connection, [len(text).to_bytes(4, "big")], [0, 1, 2, *extra])
    connection.sendall(text)
    answers = connection.makefile("r")
    begun = json.loads(answers.readline())
    if "cold" in begun:
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        os.execv(begun["cold"][0], begun["cold"])
    child = begun["pid"]
    for number in waiting:
        os.kill(child, number)
    status = json.loads(answers.readline() or '{"ended": -9}')["ended"]
    connection.close()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
