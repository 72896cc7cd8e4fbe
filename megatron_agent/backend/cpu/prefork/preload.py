"""What the prefork server imports: everything heavy that does not hold on to a run.

Ray is left out, and verl with it: Ray's native library reads the job id and the raylet's pid from
the environment when it is loaded, once, and a worker forked after that would belong to no job. With
their dependencies in place both import in about half a second.
"""

from __future__ import annotations

import importlib

from megatron_agent.backend.cpu import cuda_standins, sglang_hooks

# Before the first import below: they change what gets imported.
sglang_hooks.install()
cuda_standins.install()

MODULES = (
    "torch",
    "tensordict",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen3.modeling_qwen3",
    "transformers.models.llama.modeling_llama",
    "datasets",
    "pandas",
    "peft",
    "torchdata.stateful_dataloader",
    "megatron.core",
    "megatron.bridge",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
)

for _name in MODULES:
    importlib.import_module(_name)
