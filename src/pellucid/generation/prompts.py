"""Prepares texts and conversations for the generation loop: ids, settings and end tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import as_list
from pellucid.errors import Argument, InputError, Item, Placeholder, format_count
from pellucid.generation.answers import Messages
from pellucid.generation.checkpoint_settings import settings_of, with_end_tokens
from pellucid.generation.loop import generation_module, token_budget
from pellucid.generation.settings import Settings
from pellucid.generation.stops import check_stops
from pellucid.text import Tokenizer

ROWS, POSITIONS = 16, 16_384
"""Maximum number of texts generated side by side, and of their positions for which memory is allocated."""


@dataclass(frozen=True)
class GenerationRequest:
    """Prompts to continue, with settings.

    loaded: the model, with every token that ends a text.  tokenizer: that of the generated tokens.
    prompts: ids, as the loop takes them.
    """

    loaded: Loaded
    tokenizer: Tokenizer
    prompts: list[list[int]]
    settings: Settings

    def __post_init__(self) -> None:
        check_stops(self.tokenizer, self.settings.stop)

    def groups(self) -> Iterator[list[int]]:
        """Yields the indices of prompts that are continued side by side: similar in length and with the same token
        budget, so that no text is cut because of another."""
        copies = max(self.settings.num_return_sequences, self.settings.num_beams)
        budgets = [token_budget(self.loaded, prompt, self.settings.max_new_tokens) for prompt in self.prompts]
        waiting = sorted(range(len(budgets)), key=lambda i: (budgets[i], -len(self.prompts[i])))
        while waiting:
            first = waiting[0]
            many = min(ROWS, POSITIONS // (len(self.prompts[first]) + budgets[first])) // copies
            group = [i for i in waiting[: max(many, 1)] if budgets[i] == budgets[first]]
            del waiting[: len(group)]
            yield group


def text_request(loaded: Loaded, prompts: Sequence[str], options: Mapping[str, Any]) -> GenerationRequest:
    """A request for raw prompts, encoded as any text; special tokens typed in them are recognised."""
    bos = loaded.config.bos_token_id
    start = [] if bos is None or loaded.config.kind == "encoder-decoder" else [bos]
    rows = [row or start for row in encoded(loaded, prompts)]
    return _request(with_end_tokens(loaded), rows, options)


def chat_request(loaded: Loaded, messages: Messages, options: Mapping[str, Any]) -> GenerationRequest:
    """A request for a conversation, formatted by the chat template; special tokens within messages are plain text."""
    for kind, noun in ((_is_text, "text"), (_is_conversation, "conversation")):
        if isinstance(messages, list | tuple) and messages and all(map(kind, messages)):
            quantity = format_count(len(messages), noun)
            raise InputError(
                f"a list of {quantity} was given, expected one text or a conversation: pass them one by one"
            )
    tokenizer = _required_tokenizer(loaded)
    ids = tokenizer.apply_chat_template(messages, tokenize=True, parse_special_tokens=False)
    return _request(with_end_tokens(loaded, end_of_turn(tokenizer)), [list(map(int, ids))], options)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_conversation(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, Mapping) for one in value)


def prompt_request(loaded: Loaded, prompt: str | Messages, options: Mapping[str, Any]) -> GenerationRequest:
    """A request for a raw prompt or a conversation."""
    return text_request(loaded, [prompt], options) if isinstance(prompt, str) else chat_request(loaded, prompt, options)


def end_of_turn(tokenizer: Tokenizer) -> list[int]:
    """The special token after an answer in the chat template, which may differ from the model's end token: Llama 3
    generates `<|eot_id|>`, and its `config.json` may name `<|end_of_text|>` alone. Empty if there is none."""
    answer = "pellucid"
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": answer}]
    try:
        text = str(tokenizer.apply_chat_template(turns, add_generation_prompt=False))
    except InputError:  # a template may reject this conversation and accept the real one
        return []
    (row,) = tokenizer.encode([text.rpartition(answer)[2]], add_special_tokens=False, parse_special_tokens=True)
    return [i for i in row.ids if i in tokenizer.special_ids][:1]


def encoded(loaded: Loaded, texts: object) -> list[list[int]]:
    """The ids of texts with the tokenizer's usual special tokens; those typed in the texts are recognised.

    Raises InputError for a model that cannot generate, and for values that are not text.
    """
    if (found := as_list(texts)) is None:
        raise InputError(f"a {type(texts).__name__} was given, expected a text or several texts")
    for i, text in enumerate(found):
        if not isinstance(text, str):
            advice = "; conversations go to chat" if isinstance(text, Mapping) else ""
            raise InputError(Item(i, "text"), f" is {type(text).__name__}, expected a string{advice}")
    return [row.ids for row in _required_tokenizer(loaded).encode(found, parse_special_tokens=True)]


def missing_end_token(loaded: Loaded) -> list[int]:
    """The end token, if the tokenizer of targets does not add it; empty if it does, or if there is none."""
    ends, (row,) = loaded.config.end_tokens, loaded.required_target_tokenizer.encode([""])
    return [] if row.ids and row.ids[-1] in ends else [*ends[:1]]


def _required_tokenizer(loaded: Loaded) -> Tokenizer:
    generation_module(loaded)  # first check that the model can generate
    if loaded.tokenizer is None:
        raise InputError(
            "this model came without a tokenizer: put tokenizer.json into its folder, pass ",
            Argument("tokenizer", Placeholder("TOKENIZER")),
            " to pellucid.build, or write ids with pellucid.generation.write(model.loaded, [ids, ...], "
            "pellucid.generation.Settings())",
        )
    return loaded.tokenizer


def _request(loaded: Loaded, prompts: list[list[int]], options: Mapping[str, Any]) -> GenerationRequest:
    settings = settings_of(loaded, options)
    for i, prompt in enumerate(prompts):
        token_budget(loaded, prompt, settings.max_new_tokens, i)  # refuses one that leaves no room
    return GenerationRequest(loaded, loaded.required_target_tokenizer, prompts, settings)
