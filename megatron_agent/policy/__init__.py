"""Tiny policies for tests, demos and laptops: a tokenizer, a random model, a warm start.

A policy is an ordinary Hugging Face folder (``config.json``, ``model.safetensors``,
``tokenizer.json``, ...), small enough that the whole training stack runs on a CPU. In the order in
which one is made:

1. ``tokenizer.py``: byte-level BPE trained on the environments' own texts.
2. ``model.py``: a random Qwen2-, Qwen3- or Llama-shaped model of 0.5-5 M parameters.
3. ``demonstrations.py``: expert episodes as (prompt, response) pairs, some labels spoiled.
4. ``imitation.py``: gradient steps on them.
5. ``warm_start.py``: supervised learning until a target success rate, no further.
6. ``evaluate.py``: success rate of a policy that samples its actions, with a confidence interval.
7. ``build.py``: all of it, written to a folder that appears only when complete.

``tools/make_policy.py`` is the command line. torch and transformers are imported by the functions
that use them.
"""
