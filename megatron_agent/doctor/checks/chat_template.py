r"""The chat template keeps what step-independent training relies on.

A step's prompt is one user message, built afresh; the row that is trained is its tokens and those
that were sampled after it. So the template must show the message as it is, must not depend on
anything but the message, and must lead to where the answer begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from megatron_agent.doctor.case import RunCase
from megatron_agent.doctor.checks.tokenizer import end_ids
from megatron_agent.doctor.findings import Finding, error, note, warning
from megatron_agent.doctor.registry import check

PROBE = (
    "Step 3 of 12.\n\n  S F\n  H G\n"
    "Think in <think>...</think>, then act: <action>left</action> or <action>up</action>."
)
"""What prompts are made of: lines, blanks at their start, and the tags of an answer."""
ANSWER = "<think>The goal is right of me.</think><action>up</action>"
DATES = (datetime(2024, 1, 2, 3, 4), datetime(2031, 11, 12, 13, 14))

Message = Mapping[str, str]


@check("chat_template", "a prompt is shown as it is, always the same, and an answer can end")
def check_chat_template(case: RunCase) -> Iterator[Finding]:
    """Render a prompt as the rollout does, and look at what came out."""
    tokenizer = case.loaded_tokenizer()
    if not getattr(tokenizer, "chat_template", None):
        problem = "must be there: prompts are chat messages"
        remedy = "Use an instruct model, or write a chat_template.jinja into the model's folder."
        yield error("chat template", problem, remedy)
        return
    options = dict(case.values.mapping("data.apply_chat_template_kwargs"))
    try:
        prompt = _render(tokenizer, [_user(PROBE)], options)
    except Exception as fault:  # Jinja's own, or the template's raise_exception
        problem = f"must take a conversation of one user message ({type(fault).__name__}: {fault})"
        yield error("chat template", problem, "Use another template.")
        return
    if PROBE not in prompt:
        problem = f"must show the user's message as it is; lost or changed: {_first_loss(prompt)!r}"
        yield error("chat template", problem, "Take the part out that edits messages.")
    if len(set(_on_dates(tokenizer, options))) > 1:
        problem = "should not show the date: the same observation gives another prompt tomorrow"
        remedy = "Fix it: +data.apply_chat_template_kwargs.date_string='26 Jul 2024', or drop it."
        yield warning("chat template", problem, remedy)
    yield from _of_conversations(case, prompt, options)


def _of_conversations(case: RunCase, prompt: str, options: Mapping[str, Any]) -> Iterator[Finding]:
    """What the template does once there is an answer."""
    conversation = [_user(PROBE), {"role": "assistant", "content": ANSWER}]
    try:
        answered = _render(case.tokenizer, conversation, options, generate=False)
        longer = _render(case.tokenizer, [*conversation, _user("And now?")], options)
    except Exception as fault:  # as above
        problem = f"should take an answer and a second message ({type(fault).__name__}: {fault})"
        yield warning("chat template", problem, "Use another template.")
        return
    if not answered.startswith(prompt):
        problem = (
            "should begin a conversation with the prompt that led to it; the model is trained on "
            "answers behind other words than those it was taught with"
        )
        yield warning("chat template", problem, "Compare its add_generation_prompt part.")
    elif ANSWER not in answered or not longer.startswith(answered.rstrip()):
        problem = "edits answers, or drops the reasoning of earlier ones"
        remedy = "Nothing: a prompt is one message here. Replace it if you build longer ones."
        yield note("chat template", problem, remedy)
    if ANSWER in answered and not _ends(case, answered[answered.rindex(ANSWER) + len(ANSWER) :]):
        problem = "should end an answer with a token that stops generation (eos_token_id)"
        remedy = "Name its last token in generation_config.json, or use an instruct model."
        yield warning("chat template", problem, remedy)


def _ends(case: RunCase, tail: str) -> bool:
    ids = case.tokenizer.encode(tail, add_special_tokens=False)
    return bool(end_ids(case).intersection(ids))


def _on_dates(tokenizer: Any, options: Mapping[str, Any]) -> Iterator[str]:
    """The prompt as rendered on two days; ``strftime_now`` is how transformers tells the time."""
    for date in DATES:
        yield _render(tokenizer, [_user(PROBE)], {**options, "strftime_now": date.strftime})


def _first_loss(prompt: str) -> str:
    return next((line for line in PROBE.splitlines() if line not in prompt), "line breaks")


def _render(
    tokenizer: Any,
    messages: Sequence[Message],
    options: Mapping[str, Any],
    *,
    generate: bool = True,
) -> str:
    text: str = tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=generate, **options
    )
    return text


def _user(text: str) -> Message:
    return {"role": "user", "content": text}
