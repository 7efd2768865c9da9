"""Command lines and start scripts of vLLM, vllm-ascend and sglang in the shapes of public ones, written by hand: what a
shell does around an engine's options, and the options themselves. None is a copy."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen


@frozen
class Started:
    about: str
    text: str
    mode: str
    """Of the recipe."""
    sizes: Sequence[int] | None = None
    says: Sequence[str] = ()
    """What the notes and lines have to name."""
    runs: bool = True
    """A shell gives the engine these words; False where it gives none, or others of two commands."""


FULL = '{"cudagraph_mode": "FULL"}'
DECODE = '{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [4, 8, 16]}'
EX = '{"ascend_compilation_config": {"enable_npugraph_ex": true}, "enable_cpu_binding": true}'
ASCEND = "export HCCL_OP_EXPANSION_MODE=AIV\nexport PYTORCH_NPU_ALLOC_CONF=expandable_segments:True\n"
GE, ACL, NPU, EAGER = "max-autotune", "reduce-overhead", "npugraph_ex", "eager"
V, A = "vllm serve org/model", f"{ASCEND}vllm serve org/model"
S = "python3 -m sglang.launch_server --model-path org/model"
ON = "--device npu --attention-backend ascend"

STARTED = (
    # What a shell does.
    Started("# within a word", f"{V} --served-model-name a#1 --enforce-eager", EAGER, says=("served_model_name=a#1",)),
    Started("# before an option", f"{V} -O3 # --enforce-eager\n", GE),
    Started("# in quotes", f"{V} --served-model-name '# x' \"a # b\" -O0", EAGER, says=("# x", "a # b")),
    Started(
        "a commented line ends the command",
        f"{V} \\\n  -O0 \\\n  # --port 1 \\\n  --seed 3\n",
        EAGER,
        says=("--seed (line 4)",),
    ),
    Started("a commented start above", f"# vllm serve old -O3\n{V} --enforce-eager", EAGER),
    Started("a start that is searched for", f"pkill -f 'vllm serve|api' || true\n{V} -O0", EAGER, says=("pkill",)),
    Started(
        "continued lines of Windows",
        f"{V} \\\r\n  --enforce-eager \\\r\n  --port 1\r\n",
        EAGER,
        says=("port=1",),
        runs=False,
    ),
    Started("quotes within a word", f"{V} --served-model-name 'a b'\"c d\"e\\ f -O0", EAGER, says=("a bc de f",)),
    Started("an empty word", f"{V} --chat-template '' --enforce-eager", EAGER, says=("chat_template=",)),
    Started(
        "redirections",
        f"nohup {V} -O0 --port 80 > serve.log 2>&1 &\nwait",
        EAGER,
        says=("nohup >serve.log 2>&1", "port=80"),
    ),
    Started("appended, both", f"{V} --enforce-eager &>> serve.log", EAGER, says=("&>>serve.log",)),
    Started("a pipe", f"{V} --enforce-eager 2>&1 | tee serve.log", EAGER, says=("tee", "2>&1")),
    Started("a variable of the command", f"A=1 VLLM_USE_V1=1 {V} -O0", EAGER, says=("A=1", "VLLM_USE_V1=1")),
    Started(
        "exports",
        f"export VLLM_USE_V1=1 OMP_NUM_THREADS=8\n{V} -O0",
        EAGER,
        says=("export VLLM_USE_V1=1", "export OMP_NUM_THREADS=8"),
    ),
    Started("a secret", f"export HF_TOKEN=hf_abc\n{V} -O0 --api-key sk-1", EAGER, says=("HF_TOKEN=…", "api_key=…")),
    Started(
        "a variable that is known", f"CC='{FULL}'\n{V} --compilation-config \"$CC\" -O0", ACL, says=("line 1: CC=",)
    ),
    Started(
        "a model that is known",
        "MODEL=/data/m\nPORT=80\nvllm serve $MODEL --port ${PORT} -O0",
        EAGER,
        says=("model_tag=/data/m", "port=80", "PORT=80"),
    ),
    Started(
        "a list of words",
        'ARGS=(\n  --port 80 # here\n  --enforce-eager\n)\nvllm serve m "${ARGS[@]}" --seed 1',
        EAGER,
        says=("port=80", "seed=1"),
    ),
    Started("words of a variable", "MORE='--seed 1 --enforce-eager'\nvllm serve m $MORE", EAGER, says=("seed=1",)),
    Started(
        "a variable that is not known",
        f'{V} --port 1 --compilation-config "$CC"',
        GE,
        says=("compilation_config=$CC", "$CC is not known"),
    ),
    Started(
        "one under a condition",
        f"CC='{FULL}'\nif true; then CC='{{}}'; fi\n{V} -cc \"$CC\"",
        GE,
        says=("$CC is not known", "line 2: CC={}"),
        runs=False,
    ),
    Started(
        "one after a file of others",
        f"PORT=1\nsource set_env.sh\n{V} -O0 --port $PORT",
        EAGER,
        says=("port=$PORT", "source (line 2)"),
        runs=False,
    ),
    Started(
        "one with a default",
        f"{V} -O0 --port ${{MORE:-8000}} --seed $((1 + 1))",
        EAGER,
        says=("${MORE:-8000}", "$((1 + 1))"),
        runs=False,
    ),
    Started(
        "what a command prints",
        f'{V} -O0 --host $(hostname -I | cut -d" " -f1) --seed `date +%s`',
        EAGER,
        says=("$(hostname", "`date"),
    ),
    Started(
        "sizes within a configuration",
        f'{V} -cc "{{\\"mode\\": 0, \\"cudagraph_mode\\": \\"FULL\\", \\"cudagraph_capture_sizes\\": ${{SIZES}}}}"',
        ACL,
        says=("${SIZES} is not known",),
    ),
    Started(
        "sizes in single quotes",
        f'{V} -cc \'{{"mode": 0, "cudagraph_mode": "FULL", "cudagraph_capture_sizes": ${{SIZES}}}}\'',
        ACL,
        says=("in single quotes a shell leaves it",),
        runs=False,
    ),
    Started(
        "a role between the quotes",
        f"""{V} -O0 --kv-transfer-config '{{"kv_role": "'$ROLE'", "kv_port": "'"$PORT"'", "n": 1}}'""",
        EAGER,
        says=("kv_role=$ROLE", "kv_port=$PORT", "kv_transfer_config.n=1"),
    ),
    Started("the script's own words", f'{V} --enforce-eager "$@"', EAGER, says=("$@",)),
    Started(
        "words after a configuration", f"{V} -cc '{FULL}' ${{MORE}} -O0", ACL, says=("${MORE}: it stands behind -cc",)
    ),
    Started(
        "places to fill",
        "vllm serve <model> --tensor-parallel-size <TP> --enforce-eager",
        EAGER,
        says=("model_tag=<model>", "tensor_parallel_size=<TP>"),
        runs=False,
    ),
    Started(
        "a command that is a text",
        f'bash -c "cd /data && {V} --enforce-eager --port 1"',
        EAGER,
        says=("port=1", "a text within line 1"),
        runs=False,
    ),
    Started(
        "a file that is written",
        f"cat > serve.sh <<'EOF'\n{V} -O0 --seed 7\nEOF\n",
        EAGER,
        says=("seed=7",),
        runs=False,
    ),
    Started(
        "a container",
        "docker run --rm -e HCCL_BUFFSIZE=512 -v /m:/m img:1 vllm serve /m --enforce-eager",
        EAGER,
        says=("docker run --rm -e -v /m:/m img:1", "HCCL_BUFFSIZE=512"),
    ),
    Started(
        "cores",
        "numactl -C 0-7 -m 0 python -m vllm.entrypoints.openai.api_server --model m -O0",
        EAGER,
        says=("numactl -C 0-7 -m 0 python -m", "model=m"),
    ),
    Started(
        "the two of a condition",
        f'if [ "$ROLE" = p ]; then\n  {V} -O0\nelse\n  {V} -O3\nfi',
        EAGER,
        says=("of 2 commands",),
        runs=False,
    ),
    Started(
        "a function",
        f"serve() {{\n  local port=$1\n  {V} --port $port -O0\n}}\nserve 80",
        EAGER,
        says=("port=$port",),
        runs=False,
    ),
    Started(
        "a loop",
        f"for i in 0 1; do\n  {V} -O0 --data-parallel-rank $i &\ndone",
        EAGER,
        says=("data_parallel_rank=$i",),
        runs=False,
    ),
    # vLLM's options.
    Started("nothing about compiling", f"{V} --max-model-len 4096 -tp 2", GE, says=("max_model_len=4096", "tp=2")),
    Started("parts", f"{V} -cc.mode=0 -cc.cudagraph_mode FULL -cc.cudagraph_capture_sizes+=4,2", ACL, [2, 4]),
    Started(
        "sizes of their own", f"{V} --compilation-config.mode 3 --cudagraph-capture-sizes 8 1 --port 1", GE, [1, 8]
    ),
    Started(
        "a level as a configuration", f"{V} --compilation-config 3", GE, says=("compilation_config=3: a number alone",)
    ),
    Started("no flag", f"{V} --enforce-eager --no-enforce-eager -O1", GE, says=("given twice",)),
    Started(
        "the model behind a flag",
        "vllm serve --enforce-eager org/model",
        EAGER,
        says=("org/model: it stands behind --enforce-eager",),
    ),
    Started(
        "a drafter that runs eagerly",
        f"""{V} -cc '{DECODE}' --speculative-config '{{"method": "mtp", "enforce_eager": true}}'""",
        GE,
        [4, 8, 16],
        says=("speculative_config.enforce_eager=true",),
    ),
    Started(
        "underscores", f"{V} --max_model_len 10 --compilation_config '{FULL}' -O0", ACL, says=("max_model_len=10",)
    ),
    Started("an option of a later version", f"{V} -O0 --of_a-later 3 -x", EAGER, says=("of_a_later=3", "x=true")),
    # vllm-ascend's.
    Started(
        "nothing but Ascend's variables",
        f"{A} --max-model-len 4096",
        ACL,
        says=("vllm-ascend runs it: the script sets HCCL_OP_EXPANSION_MODE",),
    ),
    Started(
        "captured for decoding",
        f"{A} --compilation-config '{DECODE}' --async-scheduling",
        NPU,
        [4, 8, 16],
        says=("async_scheduling=true",),
    ),
    Started(
        "npugraph_ex",
        f"{A} --compilation-config '{FULL}' --additional-config '{EX}'",
        NPU,
        says=("enable_cpu_binding=true",),
    ),
    Started("0.9's graphs", f"""{A} --additional-config '{{"torchair_graph_config": {{"enabled": true}}}}'""", GE),
    Started(
        "eager there",
        f"export ASCEND_LAUNCH_BLOCKING=1\n{V} --enforce-eager --quantization ascend",
        EAGER,
        says=("export ASCEND_LAUNCH_BLOCKING=1", "quantization=ascend"),
    ),
    Started(
        "a library that is loaded first",
        f"export LD_PRELOAD=/usr/lib/libjemalloc.so.2:$LD_PRELOAD\n{A} --enforce-eager",
        EAGER,
        says=("LD_PRELOAD=/usr/lib/libjemalloc.so.2:$LD_PRELOAD",),
    ),
    # sglang's.
    Started(
        "sglang", f"{S} {ON} --tp-size 4 --mem-fraction-static 0.8", ACL, says=("tp_size=4", "mem_fraction_static=0.8")
    ),
    Started(
        "its sizes",
        f"{S} {ON} --cuda-graph-bs 8 1 2 --disable-radix-cache",
        ACL,
        [1, 2, 8],
        says=("disable_radix_cache=true",),
    ),
    Started(
        "compiled",
        f"{S} {ON} --enable-torch-compile --torch-compile-max-bs 16 --cuda-graph-bs 16",
        NPU,
        [16],
        says=("torch_compile_max_bs=16",),
    ),
    Started("without graphs", f"{S} {ON} --disable-cuda-graph --cuda-graph-bs 1", EAGER, says=("cuda_graph_bs=1",)),
    Started(
        "its variables",
        f"export STREAMS_PER_DEVICE=32\nexport SGLANG_SET_CPU_AFFINITY=1\n{S} {ON} --cuda-graph-max-bs 8",
        ACL,
        says=("STREAMS_PER_DEVICE=32", "SGLANG_SET_CPU_AFFINITY=1", "cuda_graph_max_bs=8"),
    ),
    Started(
        "its addresses",
        f"H=('10.0.0.1' '10.0.0.2')\n{S} {ON} --dist-init-addr ${{H[0]}}:5000",
        ACL,
        says=("dist_init_addr=${H[0]}:5000", "H=(10.0.0.1 10.0.0.2)"),
        runs=False,
    ),
    Started(
        "another device",
        f"{S} --device cuda --enable-torch-compile",
        ACL,
        says=("enable_torch_compile=true: what it compiles on cuda",),
    ),
    Started("as a command", "sglang serve --model-path m --disable-cuda-graph --tp 2", EAGER, says=("tp=2",)),
)
