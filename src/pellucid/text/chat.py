"""Conversations formatted as one text, by the jinja template of a checkpoint."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pellucid.config.checks import value_error
from pellucid.errors import Argument, CorruptFileError, InputError, escape_unprintable, join_names, shorten
from pellucid.text.rows import base_value

MAX_TEMPLATE_CHARACTERS = 256 * 1024
"""Characters of a template; the longest in use have about 20,000."""

_MARK = "\U000f0002"
"""A private-use character that marks the end of the last message."""


_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message that may hold the reasoning before its content; templates read the first or the second."""


def select_template(settings: Mapping[str, Any], chat_template: str | None, tools: object = None) -> str:
    """The template passed, or the one in a tokenizer's settings: the only one, or where there are several the one named
    by `chat_template`.

    tools: where passed without a name, "tool_use" is selected, else "default", as in the reference.
    Raises InputError where there is no template, or none of that name.
    """
    if not isinstance(chat_template, str | None):
        raise value_error("chat_template", chat_template, "text")
    if chat_template is not None and "{" in chat_template:
        return chat_template
    found: Any = settings.get("chat_template")
    if found is None:
        raise InputError(
            "this tokenizer has no chat template, which makes one text of a conversation: write that text yourself, or "
            "let tokenizer.apply_chat_template(messages, chat_template=TEMPLATE) write it, and pass it to generate"
        )
    if isinstance(found, list):
        found = {str(one["name"]): one.get("template") for one in found if isinstance(one, dict) and "name" in one}
    if isinstance(found, dict):
        name = chat_template or ("tool_use" if tools is not None and "tool_use" in found else "default")
        if name not in found:
            raise InputError(
                f"this tokenizer has no chat template {shorten(repr(name))}; it has {join_names(map(str, found))}"
            )
        found = found[name]
    elif chat_template not in (None, "default"):
        raise InputError(
            f"this tokenizer has no chat template {shorten(repr(chat_template))}: its only one has no name, leave ",
            Argument("chat_template"),
            " out",
        )
    if not isinstance(found, str):
        raise CorruptFileError(f"the chat template is a {type(found).__name__}, expected text")
    return found


def render_chat(
    template: str, messages: object, variables: Mapping[str, Any], *, continue_final_message: bool = False
) -> str:
    """Renders a conversation as text.

    messages: a list of `{"role": ..., "content": ...}`; other keys are passed on to the template.
    variables: further variables of the template; plain values only.
    continue_final_message: ends with the text of the last message, for a model to continue.
    Raises InputError for invalid messages, for a template that is broken or refuses them, and for one that exceeds the
    limits of a rendering.
    """
    checked = check_messages(messages)
    values = {"messages": _with_end_mark(checked) if continue_final_message else checked, **variables}
    plain = {name: _json_value(value, name) for name, value in values.items()}
    if len(template) > MAX_TEMPLATE_CHARACTERS:
        raise InputError(
            f"the chat template has {len(template):,} characters, expected at most {MAX_TEMPLATE_CHARACTERS:,}"
        )
    from jinja2 import TemplateError

    from pellucid.text.template_meter import BUDGET, Budget

    token = BUDGET.set(Budget())
    try:
        text = _compiled_template(template).render(**plain)
    except TemplateError as error:
        raise InputError(f"the chat template cannot be used: {_error_text(error)}") from error
    except RecursionError as error:
        raise InputError("the chat template cannot be used: it is nested, or calls itself, without end") from error
    except MemoryError as error:
        raise InputError("the chat template cannot be used: it takes more memory than there is") from error
    except Exception as error:  # a template may raise anything that Python code can
        what = f"{type(error).__name__}: {_error_text(error)}"
        raise InputError(f"the chat template fails on these messages: {what}") from error
    finally:
        BUDGET.reset(token)
    return _text_before_mark(text, plain["messages"]) if continue_final_message else text


def check_messages(messages: object) -> list[dict[str, Any]]:
    """The messages without null values, as in the reference. Raises InputError for anything but a conversation."""
    if not isinstance(messages, list | tuple) or not messages:
        found = "empty" if isinstance(messages, list | tuple) else _short_value(messages)
        raise InputError(f'messages is {found}, expected a list of {{"role": ..., "content": ...}}')
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f'message {i} is {_short_value(message)}, expected {{"role": ..., "content": ...}}')
        if not isinstance(message.get("content"), str | list) and not set(message) - {"role", "content"}:
            raise InputError(f"message {i} has the content {_short_value(message.get('content'))}, expected text")
    return [_with_reasoning_names(message) for message in messages]


def _with_reasoning_names(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without null values, with its reasoning under the keys that templates read."""
    fields = {str(key): value for key, value in message.items() if value is not None}
    reasoning = next((fields[name] for name in _REASONING_KEYS if name in fields), None)
    return fields if reasoning is None else {"thinking": reasoning} | fields | {"reasoning_content": reasoning}


def _with_end_mark(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with a mark after the text of the last one, and a space that goes where the template strips it."""
    *others, last = messages
    content = last.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text_indices = [
        i for i, part in enumerate(parts) if isinstance(part, Mapping) and isinstance(part.get("text"), str)
    ]
    if not text_indices or not parts[text_indices[-1]]["text"].strip():
        raise InputError(f"message {len(others)} has no text to continue: give it some, or leave it out")
    i = text_indices[-1]
    marked = f"{parts[i]['text']}{_MARK} "
    whole = [*parts[:i], dict(parts[i]) | {"text": marked}, *parts[i + 1 :]] if isinstance(content, list) else marked
    return [*others, last | {"content": whole}]


def _text_before_mark(text: str, messages: list[dict[str, Any]]) -> str:
    """The text up to the end of the last message, stripped where the template strips that."""
    before, mark, after = text.rpartition(_MARK)
    if not mark:
        raise InputError(f"the chat template leaves message {len(messages) - 1} out, so it cannot be continued")
    before = before.replace(f"{_MARK} ", "").replace(_MARK, "")  # where the template repeats the message
    return before if after.startswith(" ") else before.rstrip()


def _short_value(value: object) -> str:
    text = ascii(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return shorten(text, 60)


def _error_text(error: Exception) -> str:
    text = str(error).replace("No filter named", "among the filters that are allowed here there is no")
    return shorten(escape_unprintable(" ".join(text.split())), 300)


def _json_value(value: Any, path: str, depth: int = 1) -> Any:
    """The value rebuilt from JSON types only: an object with methods could be used to escape the sandbox.

    path: its location for errors, such as `tools[0]`.
    """
    if isinstance(value, str | int | float | None):
        return base_value(value)
    if depth > 100:
        raise InputError(f"{path.partition('[')[0]} are nested more than 100 deep")
    if isinstance(value, Mapping):
        if strange := [key for key in value if not isinstance(key, str | int | float | None)]:
            raise InputError(
                f"the template cannot take the key {_short_value(strange[0])} of {shorten(path)}: expected a text"
            )
        return {
            _json_value(key, path, depth + 1): _json_value(item, f"{path}[{_short_value(key)}]", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, Sequence):
        return [_json_value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    expected = "give its JSON schema" if callable(value) else "expected text, numbers, lists and objects"
    raise InputError(f"the template cannot take a {type(value).__name__}, which {shorten(path)} is: {expected}")


@functools.lru_cache(maxsize=16)
def _compiled_template(template: str) -> Any:
    from pellucid.text.template_sandbox import Sandbox

    return Sandbox().from_string(template)
