"""The caller's target words for a mask, as the single token that each of them would be there."""

import warnings
from collections.abc import Sequence

from pellucid.errors import Argument, InputError, did_you_mean, join_names
from pellucid.text import Tokenizer

_MAX_SIMILAR = 5_000


def target_ids(tokenizer: Tokenizer, targets: Sequence[str], before: str, *, partial: bool) -> list[int]:
    """The ids of these words, each once, in their order.

    before: the text before the mask, on which the ids depend: after a space "Paris" is `ĠParis` in a vocabulary that
        marks spaces, within a word it is `Paris`, and "##s" is the token that is spelled so.
    partial: the reference's way: the token that is spelled so, else the first of several tokens, with a warning.
    Raises InputError for a word that is no single token, listing similar ones.
    """
    if not partial:
        return list(dict.fromkeys(_required_id(tokenizer, target, before) for target in targets))
    ids = list(dict.fromkeys(i for target in targets if (i := _first_token_id(tokenizer, target)) is not None))
    if not ids:
        raise InputError(
            f"targets are {join_names(map(repr, targets))}, and the vocabulary has no token for any of them"
        )
    return ids


def possible_ids(tokenizer: Tokenizer, targets: Sequence[str], *, partial: bool) -> list[int]:
    """The ids that these words may have, whatever the text before the mask."""
    if partial:
        return target_ids(tokenizer, targets, "", partial=True)
    found = [_single_token_id(tokenizer, target, before) for target in targets for before in ("", "a", "a ")]
    return list(dict.fromkeys(i for i in found if i is not None))


def _required_id(tokenizer: Tokenizer, target: str, before: str) -> int:
    found = _single_token_id(tokenizer, target, before)
    if found is None:
        raise _no_token_error(tokenizer, target)
    return found


def _single_token_id(tokenizer: Tokenizer, target: str, before: str) -> int | None:
    (written,) = tokenizer.convert_tokens_to_ids([target])
    spaced = target[:1].isspace() or before[-1:].isspace()
    if before and not spaced and written is not None:
        return written
    pieces = _token_ids(tokenizer, f" {target.strip()}" if spaced else target)
    return pieces[0] if len(pieces) == 1 and pieces[0] != tokenizer.unk_token_id else written


def _first_token_id(tokenizer: Tokenizer, target: str) -> int | None:
    (written,) = tokenizer.convert_tokens_to_ids([target])
    if written is not None:
        return written
    pieces = _token_ids(tokenizer, target)
    if not pieces:
        warnings.warn(f"the target {target!r} has no token and is left out", stacklevel=2)
        return None
    (first,) = tokenizer.convert_ids_to_tokens(pieces[:1])
    warnings.warn(f"the target {target!r} is not a token of the vocabulary: {first!r} is used", stacklevel=2)
    return pieces[0]


def _token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text], add_special_tokens=False)[0].ids


def _no_token_error(tokenizer: Tokenizer, target: str) -> InputError:
    tokens = tokenizer.convert_ids_to_tokens(_token_ids(tokenizer, target))
    others = did_you_mean(target.strip(), _similar_tokens(tokenizer, target))
    if len(tokens) < 2:
        return InputError(f"the target {target!r} is not in the vocabulary{others}: choose another word")
    pieces = " ".join(tokens[:6]) + (" ..." if len(tokens) > 6 else "")
    return InputError(
        f"the target {target!r} is {len(tokens)} tokens ({pieces}) and a mask holds one: choose another word{others}, "
        "or pass ",
        Argument("partial_targets", True),
        " to use its first token",
    )


def _similar_tokens(tokenizer: Tokenizer, target: str) -> list[str]:
    """The tokens that begin like a word, without their space markers."""
    beginning, space = target.strip()[:2].casefold(), tokenizer.space_marker or ""
    plain = {token.lstrip(space) for token in tokenizer.vocab}
    return sorted(token for token in plain if token.casefold().startswith(beginning))[:_MAX_SIMILAR]
