"""A byte-level BPE tokenizer trained on the texts that a policy will read and write.

It is a ``Qwen2Tokenizer`` with a small vocabulary, whatever the shape of the model. The reason:
loaders rebuild the text splitting of well-known tokenizer classes from code and disregard what
``tokenizer.json`` says, so a splitting of our own would silently change for some model types and
servers.

Byte level: any text encodes, and decodes to itself (after Unicode NFC). The tags of a response
(``<think>`` ... ``</action>``) are tokens of their own, so that a response is a handful of tokens;
they are *ordinary* tokens, so that decoding with ``skip_special_tokens=True`` keeps them for the
action parser. Words never merge across spaces and digits stay single, so the cells of a board drawn
with spaces, and coordinates, are separate tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from megatron_agent.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAD_TOKEN = "<|endoftext|>"
START_TOKEN = "<|im_start|>"
EOS_TOKEN = "<|im_end|>"
SPECIAL_TOKENS = (PAD_TOKEN, START_TOKEN, EOS_TOKEN)
TAG_TOKENS = ("<think>", "</think>", "<action>", "</action>")

VOCAB_MULTIPLE = 64
"""Vocabulary sizes are multiples of this: it divides by every tensor-parallel size a tiny model can
have, and neither the trainer nor the server has to pad the embedding."""
MIN_VOCAB_SIZE = 320
"""256 bytes, the markers, and a few words."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML without a default system message: the prompt is exactly what the environment wrote."""


def check_vocab_size(vocab_size: int) -> None:
    """Refuse a size that cannot work; raises ConfigError."""
    if vocab_size < MIN_VOCAB_SIZE or vocab_size % VOCAB_MULTIPLE:
        rounded = max(MIN_VOCAB_SIZE, -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE)
        raise ConfigError(
            "vocab_size",
            f"must be a multiple of {VOCAB_MULTIPLE} and at least {MIN_VOCAB_SIZE}",
            vocab_size,
            f"Use {rounded}.",
        )


def train_tokenizer(texts: Iterable[str], *, vocab_size: int = 768) -> PreTrainedTokenizerBase:
    """Train a tokenizer; equal texts give an equal tokenizer.

    Args:
        texts: prompts and responses. They decide which words become single tokens, not what can be
            encoded.
        vocab_size: exact number of ids, a multiple of 64. Texts with too few words to fill it leave
            the rest to ``<|reserved_i|>`` tokens, so that every id a model can sample also decodes.

    Raises:
        ConfigError: ``vocab_size`` is too small or not a multiple of 64.

    Example:
        >>> tokenizer = train_tokenizer(["Move right. Move left."], vocab_size=320)
        >>> len(tokenizer), tokenizer.decode(tokenizer.encode("Move up"))
        (320, 'Move up')
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
    from transformers import Qwen2Tokenizer

    check_vocab_size(vocab_size)
    splitting = Qwen2Tokenizer().backend_tokenizer
    learner = Tokenizer(models.BPE())
    learner.normalizer = splitting.normalizer
    learner.pre_tokenizer = splitting.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAG_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(_training_texts(texts), trainer)
    learned = json.loads(learner.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"],
        merges=[tuple(merge) for merge in learned["merges"]],
        eos_token=EOS_TOKEN,
        pad_token=PAD_TOKEN,
        unk_token=None,
        additional_special_tokens=[START_TOKEN],
        padding_side="left",
    )
    tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in TAG_TOKENS])
    tokenizer.add_tokens(
        [
            AddedToken(f"<|reserved_{i}|>", normalized=False, special=True)
            for i in range(vocab_size - len(tokenizer))
        ],
        special_tokens=True,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str, **options: Any) -> list[int]:
    """Ids of one user message with the generation prompt, as the rollout sends them; ``options``
    are those of the chat template (``data.apply_chat_template_kwargs``).
    """
    encoded = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **options,
    )
    return list(encoded["input_ids"])


def _training_texts(texts: Iterable[str]) -> Iterable[str]:
    """Texts without the markers (else BPE learns pieces of ``<action>``), and the role names of the
    chat template.
    """
    for text in texts:
        for marker in (*SPECIAL_TOKENS, *TAG_TOKENS):
            text = text.replace(marker, "\n")
        yield text
        yield "system"
        yield "user"
        yield "assistant"
