"""Sixty natural mistakes: what was typed, in a folder with these files. tests/golden/failures has each answer.

`CASES` are seen before anything runs; `IN_A_WORKER` need torch and are slow.
"""

from __future__ import annotations

FILES = {
    "net.py": """\
import torch
from torch import nn


@torch.library.custom_op("mine::foo", mutates_args=())
def foo(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def without_weights(x):
    raise KeyError("weights")


def with_two_sizes(x):
    return x @ x


def without_fake(x):
    return torch.ops.mine.foo(x) + 1


def made(function):
    return Function(function), {"x": torch.ones(2, 3)}


def forgetful():
    return made(without_weights)


def misshapen():
    return made(with_two_sizes)


def fake():
    return made(without_fake)


def fine():
    return made(torch.relu)


def negative():
    return Function(torch.relu), {"x": -torch.ones(2, 3)}


def raising():
    return {}["missing"]


def number():
    return 3


def misnamed():
    return nn.Linear(3, 3), {"y": torch.ones(2, 3)}
""",
    "broken.py": "def make(:\n    pass\n",
    "importing.py": "import os\n\nimport not_installed_anywhere\n",
    "rewrites.py": """\
def exploding(graph_module, example_inputs, config):
    for node in graph_module.graph.nodes:
        node.meta["nothing"]["there"]


def knotted(graph_module, example_inputs, config):
    node = next(n for n in graph_module.graph.nodes if n.op == "call_function")
    node.args = (node,)


def short(graph_module):
    pass


def dividing(graph_module, example_inputs, config):
    import torch

    for node in graph_module.graph.nodes:
        if node.target is torch.ops.aten.relu.default:
            node.target = torch.ops.aten.log.default
    graph_module.recompile()
""",
    "mine/experiment/listed.yaml": "# @package _global_\npasses: [cse, dead_code]\n",
    "mine/experiment/typo.yaml": "# @package _global_\nseed: 3\nbenchmark:\n  warmup: 1\n  min_cals: 3\n",
    "mine/experiment/tabs.yaml": "# @package _global_\nbenchmark:\n\tmin_calls: 3\n",
    "mine/experiment/sly.yaml": "# @package _global_\ntrust: true\n",
    "mine/experiment/group.yaml": "# @package _global_\ndefaults:\n  - override /modle: eager\n",
    "mine/experiment/resolver.yaml": "# @package _global_\nseed: ${oc.env:SEED}\n",
    "mine/experiment/idle.yaml": "# @package _global_\ncompiler:\n  ge_config:\n    oo_level: O1\n",
    "mine/experiment/choice.yaml": "# @package _global_\ndefaults:\n  - override /mode: eagre\n",
    "mine/experiment/types.yaml": "# @package _global_\nseed: many\nbenchmark: fast\nstreams:\n  max_streams: 0\n",
    "mine/model/block.yaml": "name: mlp\nhidden: -3\n",
    "empty.lock.yaml": "nothing: 1\n",
    "broken_report/report.json": "{",
    "unclosed.py": "x = (\n",
}

MINE = "run --config-dir mine"
PYTHON = "run pipeline=check trust=true model=python"
PASS = f"{PYTHON} model.factory=net:fine passes=python"
NEGATIVE = f"{PYTHON} model.factory=net:negative passes=python"

CASES = {
    "a mode misspelt": "run mode=reduce-overhaed",
    "a mode left empty": "run mode=",
    "no equals sign": "run mode reduce-overhead",
    "a pass misspelt": "run passes=[cse,ded_code]",
    "a model misspelt": "run model=gpt_decod",
    "a target of another name": "run target=gpu",
    "an experiment that is not there": "run experiment=nope",
    "a stream plan that is not there": "run streams=mine",
    "four mistakes at once": "run mode=eagre passes=cs benchmark.min_calls=many seed=-1",
    "a stage and a seed at once": "run pipeline.stages=[bench] seed=-1",
    "three sections at once": "run seed=-1 streams.max_streams=0 compiler.ge_config.oo_level=O1",
    "an option of another model": "run model=add model.layers=4",
    "a key misspelt": "run compile.fulgraph=true",
    "a key added that is none": "run +compile.fulgraph=true",
    "a compiler option misspelt": "run compiler.ge_config.oo_levle=O1",
    "an option of another mode": "run compiler.ge_config.oo_level=O1",
    "tiling sink in a mode that captures": "run tiling=sink",
    "a number that is text": "run benchmark.min_calls=many",
    "a number too small": "run model=gpt_decode model.layers=0",
    "neither true nor false": "run expect.bitwise=maybe",
    "a list that is a number": "run shapes=dynamic shapes.mark_static=3",
    "several values without -m": "run mode=eager,max-autotune",
    "a search without -m": "run search=optuna",
    "a choice added with +": "run +experiment=decode",
    "a choice forced with ++": "run ++mode=eager",
    "a choice left out that was not there": "run ~passes",
    "an open bracket": "run passes=[cse",
    "a letter without quotes": "run model=größe",
    "a folder that is not there": "run --config-dir nowhere",
    "a file that is not there": "run --config-name nothing",
    "an option of Hydra that is none": "run --fast",
    "a value of Hydra that is none": "run --cfg nope",
    "passes as a list in a file": f"{MINE} experiment=listed",
    "a key misspelt in a file": f"{MINE} experiment=typo",
    "a tab in a file": f"{MINE} experiment=tabs",
    "trust in a file": f"{MINE} experiment=sly",
    "a group misspelt in a file": f"{MINE} experiment=group",
    "a choice misspelt in a file": f"{MINE} experiment=choice",
    "wrong types in a file": f"{MINE} experiment=types",
    "a resolver in a file": f"{MINE} experiment=resolver",
    "an option of another mode in a file": f"{MINE} experiment=idle",
    "a model's option in a file": f"{MINE} model=block",
    "code without trust": "run model=python model.factory=net:fine",
    "a factory without a function": "run trust=true model=python model.factory=net",
    "a module that is not there": "run trust=true model=python model.factory=nowhere_at_all:make",
    "a pass twice": "run passes=[cse,cse]",
    "passes in a wrong order": "run passes=[stream_plan,dead_code]",
    "a simulated speed": "run target=null_device",
    "a lock without a recipe": "recipe verify empty.lock.yaml",
    "a lock that is not there": "recipe verify gone.yaml",
    "a script that is no Python": "recipe import unclosed.py",
    "a command misspelt": "explian",
    "a kind misspelt": "list modez",
    "a report that is cut": "report broken_report",
    "nothing was run there": "report nowhere",
    "one run to compare": "report --diff nowhere",
    "a log that is not there": "explain --log gone.log",
    "all points illegal": "run -m mode=eagre,eger",
}

IN_A_WORKER = {
    "a model that fails by itself": f"{PYTHON} model.factory=net:forgetful",
    "sizes that do not fit": f"{PYTHON} model.factory=net:misshapen",
    "an operator without a fake": f"{PYTHON} model.factory=net:fake",
    "a factory that raises": f"{PYTHON} model.factory=net:raising",
    "a factory that returns a number": f"{PYTHON} model.factory=net:number",
    "inputs of another name": f"{PYTHON} model.factory=net:misnamed",
    "a file that is no Python": f"{PYTHON} model.factory=broken:make",
    "an import that fails": f"{PYTHON} model.factory=importing:make",
    "a pass that raises": f"{PASS} passes.python.function=rewrites:exploding",
    "a pass that leaves a knot": f"{PASS} passes.python.function=rewrites:knotted",
    "a pass of another signature": f"{PASS} passes.python.function=rewrites:short",
    "a pass that makes NaN": f"{NEGATIVE} passes.python.function=rewrites:dividing",
    "an expectation that fails": "run model=add pipeline=check expect.streams=3",
}
