"""An observation's image on its way into a prompt, a turn, a row and the journal."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.base import IMAGE_MARK, Observation, PromptContext
from envs.prompt_template import PromptTemplate
from envs.registry import load_env
from megatron_agent.errors import ConfigError, EnvError, GenerationError
from megatron_agent.rollout.env_pool import EnvPool
from megatron_agent.rollout.episode import run_episode
from megatron_agent.rollout.images import picture_digest, seen, user_content
from megatron_agent.rollout.journal import EpisodeJournal, read_journal
from megatron_agent.rollout.memory import WindowMemory
from megatron_agent.rollout.parts import MessageContent
from megatron_agent.rollout.samples import episode_to_samples
from megatron_agent.tasks import EnvTask
from megatron_agent.types import EncodedPrompt, Episode

pytestmark = pytest.mark.unit

IMAGE = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)


def observe(text: str = "a board", image: Any = IMAGE) -> Observation:
    return Observation(text=text, anchor=text, image=image)


def words(content: MessageContent) -> list[str]:
    """A message with the image as a word."""
    assert isinstance(content, list)
    return ["IMAGE" if part["type"] == "image" else part["text"] for part in content]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Play. a board Move!", ["Play. ", "IMAGE", "a board Move!"]),
        ("a board, then a board", ["a board, then ", "IMAGE", "a board"]),
        ("no text of it", ["IMAGE", "no text of it"]),
        ("a board", ["IMAGE", "a board"]),
        (f"a board {IMAGE_MARK} go", ["a board ", "IMAGE", " go"]),
        (f"look: {IMAGE_MARK}", ["look: ", "IMAGE"]),
        (IMAGE_MARK, ["IMAGE"]),
    ],
)
def test_the_image_stands_at_its_mark_or_before_the_observation(
    prompt: str, expected: list[str]
) -> None:
    assert words(user_content(prompt, observe())) == expected


def test_a_message_has_the_pixels_in_qwens_format() -> None:
    text, image = user_content(f"Look: {IMAGE_MARK}", observe())
    assert text == {"type": "text", "text": "Look: "}
    assert set(image) == {"type", "image"}  # type: ignore[arg-type]
    assert (image["image"].mode, image["image"].size) == ("RGB", (4, 2))  # type: ignore[index]
    assert np.array_equal(np.asarray(image["image"]), IMAGE)  # type: ignore[index]


def test_without_an_image_a_message_is_its_text() -> None:
    assert user_content("Go!", observe(image=None)) == "Go!"


@given(prompt=st.text(), text=st.text(min_size=1))
def test_no_word_of_the_prompt_is_lost(prompt: str, text: str) -> None:
    prompt = prompt.replace(IMAGE_MARK, "")
    content = user_content(prompt, observe(text))
    assert isinstance(content, list)
    assert "".join(part.get("text", "") for part in content) == prompt
    assert [part["type"] for part in content].count("image") == 1


def test_two_places_for_one_image_are_an_error() -> None:
    with pytest.raises(EnvError, match="must have at most one place for the image, got 2"):
        user_content(IMAGE_MARK * 2, observe())


def test_a_policy_that_does_not_see_gets_no_image() -> None:
    assert seen(observe(), step_idx=0, with_image=False).image is None
    plain = observe(image=None)
    assert seen(plain, step_idx=0, with_image=False) is plain


def test_an_image_that_is_not_there_is_a_mistake_of_the_configuration() -> None:
    with pytest.raises(ConfigError) as raised:
        seen(observe(image=None), step_idx=3, with_image=True)
    assert str(raised.value) == (
        "env.images must be false for observations without an image, such as the one of step 3, "
        "got True. Set it to false, or have the environment draw (often env.options.image=true)."
    )


@pytest.mark.parametrize(
    ("image", "found"),
    [
        (IMAGE.astype(np.float32), r"float32 \[2, 4, 3\]"),
        (IMAGE.transpose(2, 0, 1), r"uint8 \[3, 2, 4\]"),
        (IMAGE[:, :, 0], r"uint8 \[2, 4\]"),
        (IMAGE[:0], r"uint8 \[0, 4, 3\]"),
        ([[1, 2, 3]], "list"),
    ],
)
def test_an_image_that_is_no_rgb_array_is_the_environments_failure(image: Any, found: str) -> None:
    with pytest.raises(EnvError, match=rf"uint8 array \[height, width, 3\], got {found}\.$"):
        seen(observe(image=image), step_idx=0, with_image=True)


def test_equal_pictures_have_equal_digests() -> None:
    def digest(image: np.ndarray) -> str:
        (part,) = user_content(IMAGE_MARK, observe(image=image))
        return picture_digest(part["image"])  # type: ignore[index]

    assert digest(IMAGE) == digest(IMAGE.copy())
    others = (IMAGE + 1, IMAGE.reshape(4, 2, 3))
    assert len({digest(image) for image in (IMAGE, *others)}) == 3


def test_the_prompt_file_of_the_page_about_images_shows_one() -> None:
    page = Path(__file__).parents[3] / "docs" / "images.md"
    (template,) = re.findall(r"^```text\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    context = PromptContext(observation=observe(), step_idx=0, max_steps=5, history=())
    prompt = PromptTemplate(template)(context)
    assert words(user_content(prompt, observe()))[:2] == ["The board: ", "IMAGE"]


@pytest.mark.parametrize(("image", "expected"), [(IMAGE, f"[{IMAGE_MARK}]"), (None, "[]")])
def test_a_prompt_file_has_a_field_for_the_image(image: Any, expected: str) -> None:
    context = PromptContext(observation=observe(image=image), step_idx=0, max_steps=5, history=())
    assert PromptTemplate("[{image}]")(context) == expected


@pytest.fixture
def play(task: EnvTask, fakes: SimpleNamespace) -> Any:
    """Run an episode of a corridor that is also painted, one shade a cell."""

    class Painted(fakes.Session):
        def observe(self) -> Observation:
            image = np.full((2, 2, 3), self.place, dtype=np.uint8)
            return dataclasses.replace(super().observe(), image=image)

    def run(texts: list[str], **changes: Any) -> Episode:
        parts = {
            "task": task,
            "uid": "g7",
            "session_id": 2,
            "session": Painted(),
            "spec": fakes.Spec(),
            "memory": WindowMemory(1),
            "encode": encode,
            "generate": fakes.Generate(texts),
            "max_steps": 3,
            "max_prompt_length": 100,
            "with_images": True,
        }
        return asyncio.run(run_episode(**parts | changes))

    return run


def encode(content: MessageContent) -> EncodedPrompt:
    """A token a letter, four for an image."""
    if isinstance(content, str):
        return EncodedPrompt(ids_L=tuple(content.encode()))
    pictures = tuple(part["image"] for part in content if part["type"] == "image")
    text = "".join(part.get("text", "") for part in content)
    return EncodedPrompt(
        ids_L=(*text.encode(), 0, 0, 0, 0), images=pictures, num_image_tokens=4 * len(pictures)
    )


def shade(picture: Any) -> int:
    return int(np.asarray(picture)[0, 0, 0])


def test_every_step_shows_its_own_image_and_tells_the_past_in_words(play: Any) -> None:
    episode = play(["on", "on", "back"])
    assert [[shade(picture) for picture in turn.images] for turn in episode.turns_T] == [
        [0],
        [1],
        [2],
    ]
    assert [turn.prompt for turn in episode.turns_T] == [
        "cell 0",
        "cell 0>on;cell 1",
        "cell 1>on;cell 2",
    ]


def test_a_row_has_the_image_of_its_step_alone(play: Any) -> None:
    rows = episode_to_samples(play(["on", "on", "back"]))
    assert [[shade(picture) for picture in row.images] for row in rows] == [[0], [1], [2]]


def test_the_policy_is_asked_with_the_picture(play: Any, fakes: SimpleNamespace) -> None:
    prompts: list[EncodedPrompt] = []

    class Generate(fakes.Generate):
        async def __call__(self, prompt: EncodedPrompt, request_id: str) -> Any:
            prompts.append(prompt)
            return await super().__call__(prompt, request_id)

    play([], generate=Generate(["on"]), max_steps=1)
    assert [shade(picture) for picture in prompts[0].images] == [0]


def test_without_images_an_episode_is_text(play: Any) -> None:
    episode = play(["on", "on", "back"], with_images=False)
    assert not any(turn.images for turn in episode.turns_T)
    assert episode.turns_T[0].prompt_ids_L == tuple(b"cell 0")


def test_an_over_long_prompt_says_how_much_of_it_is_the_image(play: Any) -> None:
    assert play(["on"], max_prompt_length=9).failure == (
        "prompt_too_long: the prompt has 10 tokens (4 of them image tokens), at most 9 are "
        "allowed. Raise data.max_prompt_length, have a smaller image drawn, or lower "
        "env.history_length."
    )


def test_images_of_an_environment_that_has_none_end_the_run(
    play: Any, fakes: SimpleNamespace
) -> None:
    session = fakes.Session()
    with pytest.raises(ConfigError, match=r"env\.images must be false"):
        play([], session=session)
    assert session.log == ["reset", "close"]


def test_what_encoding_refuses_is_not_wrapped_twice(play: Any) -> None:
    def refuse(content: MessageContent) -> EncodedPrompt:
        raise GenerationError("a prompt's text must not hold <|image_pad|>")

    failure = play([], encode=refuse).failure
    assert failure == "generation_error: a prompt's text must not hold <|image_pad|>"


def test_the_journal_keeps_a_digest_and_no_pixels(play: Any, tmp_path: Path) -> None:
    episode = play(["on", "back", "on"])
    with EpisodeJournal(tmp_path / "episodes.jsonl") as journal:
        journal.append(episode)
    (record,) = read_journal(tmp_path / "episodes.jsonl")
    digests = [turn["images"] for turn in record["turns"]]
    assert digests[0] == [picture_digest(episode.turns_T[0].images[0])]
    assert digests[0] == digests[2] != digests[1]
    assert len(json.dumps(record["turns"][0]["images"])) < 40


def test_a_text_episode_has_no_word_of_images_in_the_journal(play: Any, tmp_path: Path) -> None:
    with EpisodeJournal(tmp_path / "episodes.jsonl") as journal:
        journal.append(play(["on", "back", "on"], with_images=False))
    assert "images" not in (tmp_path / "episodes.jsonl").read_text()


@pytest.mark.parametrize("env", ["sokoban", "cards"])
def test_an_image_comes_out_of_a_worker_process_as_it_was_drawn(env: str) -> None:
    task = EnvTask(env=env, task_id="t", seed=4, split="train", options={"image": True})
    spec = load_env(env)
    here = spec.make()
    first = here.reset(seed=task.seed, options=task.options)
    action = first.admissible_actions[0]
    drawn = [first, here.step(action).observation]

    async def through_the_pool() -> list[Observation]:
        pool = EnvPool(1)
        await pool.start()
        try:
            session = await pool.open_session(task, group_id="g", session_id=0)
            observations = [await session.reset()]
            observations.append((await session.step(action)).observation)
            await session.close()
            return observations
        finally:
            await pool.close()

    for sent, received in zip(drawn, asyncio.run(through_the_pool()), strict=True):
        assert received.image.dtype == np.uint8
        assert np.array_equal(received.image, sent.image)
        assert seen(received, step_idx=0, with_image=True) is received
