"""Checkpoints between Hugging Face and Megatron, and whether the result is the source.

``tools/convert_ckpt.py`` is the program. In reading order:

locate.py             what a folder holds: safetensors, torch_dist, a checkpoint of verl
safetensors_folder.py torch_dist_folder.py
                      reading tensors on demand, after looking at all headers
inert_pickle.py torch_dist_metadata.py
                      torch's tables of contents are pickles; they are read without running them
megatron_model.py megatron_rules.py rules.py layout.py
                      what Megatron-Bridge and Megatron say of a model: names, shapes, splits
weights.py lora.py    a parameter in either format; with an adapter merged, in another type
targets.py safetensors_file.py torch_dist_file.py output_file.py
                      writing, one parameter at a time
read_ahead.py         and reading the next ones meanwhile
partial.py manifest.py side_files.py
                      resuming, publishing, checksums, tokenizer
convert.py            a conversion from beginning to end
verdict.py logits.py  is the result the source?
request.py command.py what the user asks for
"""
