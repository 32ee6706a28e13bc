"""One tokenizer for every family: text to ids and back. A thin, thread-safe wrapper around the `tokenizers` library."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import tokenizers
from tokenizers import Encoding

from pellucid.config.checks import check_bool, check_count, check_one_of, require_names
from pellucid.errors import Argument, CorruptFileError, InputError, Item, Placeholder, format_count, shorten
from pellucid.lazy import cached_property
from pellucid.text.batch import PADDINGS, RETURN_TENSORS, Batch, check_equally_long, collate, text_list, to_tensor_type
from pellucid.text.chat import render_chat, select_template
from pellucid.text.encoded import Encoded, input_names, with_tiled_offsets
from pellucid.text.incremental_decoding import DecodeStream, byte_token_ids
from pellucid.text.special import SpecialTokens
from pellucid.text.spelling import Spelling
from pellucid.text.template_marks import mark_special_tokens, marked_ids
from pellucid.text.truncation import checked_ids, clean_text, panics_as_errors, replace_surrogates, truncate_pair

Truncation = bool | str
_STRATEGIES = ("longest_first", "only_first", "only_second")


class Tokenizer(SpecialTokens, Spelling):
    """Text to ids and back.

    Called like the reference's tokenizers. Calls change nothing in it, so threads may share one.

    >>> tokenizer(["a b", "c"], padding=True, return_tensors="pt").input_ids   # doctest: +SKIP
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        settings: dict[str, Any] | None = None,
        max_length: int | None = None,
        token_types: bool = True,
        tiled: bool = False,
    ) -> None:
        """tiled: offsets as the sentencepiece library counts them, each token ending where the next one begins."""
        # "right" is in every file saved after a call that truncated or padded; only "left" is a choice.
        sides = {"truncation_side": backend.truncation, "padding_side": backend.padding}
        stated = {name: "left" for name, how in sides.items() if how and how["direction"] == "left"}
        if (how := backend.padding) and backend.token_to_id(how["pad_token"]) is not None:
            stated["pad_token"] = how["pad_token"]
        backend.no_truncation()
        backend.no_padding()
        # Post-processors also trim offsets; a backend that kept its own would trim them when encoding as well.
        self._post_processor, backend.post_processor = backend.post_processor, None
        self._backend = backend
        self.settings = stated | (settings or {})
        self._set_encode_special_tokens()
        self.model_max_length = max_length
        self.token_types = token_types
        self.tiled = tiled

    # -- text to ids --------------------------------------------------------------------------------------------------

    def __call__(
        self,
        texts: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        padding: bool | str = False,
        truncation: Truncation = False,
        max_length: int | None = None,
        add_special_tokens: bool = True,
        return_tensors: str | None = None,
        parse_special_tokens: bool = True,
    ) -> Batch:
        """Tokenizes texts, or pairs of texts, into `input_ids`, `token_type_ids` and `attention_mask`.

        padding: True or "longest" pads to the longest text, "max_length" to `max_length`, on the side the files state.
        truncation: True truncates texts longer than `max_length` (by default the model's own limit), the longer text of
            a pair first; "only_first" and "only_second" truncate one of them.
        return_tensors: "pt" for torch tensors [batch, seq], "np" for NumPy arrays, None for lists.
        parse_special_tokens: False reads a `[SEP]` in a text as plain characters.
        """
        check_one_of("truncation", truncation, (None, False, True, *_STRATEGIES))
        check_one_of("padding", padding, PADDINGS)
        check_one_of("return_tensors", return_tensors, RETURN_TENSORS)
        limit = self._limit(max_length) if truncation or max_length is not None else None
        if max_length is not None and not truncation and padding != "max_length":
            raise InputError(f"nothing is cut or padded to max_length {limit}: pass ", Argument("truncation", True))
        rows = self.encode(
            text_list("texts", texts),
            None if pair is None else text_list("pair", pair),
            max_length=limit if truncation else None,
            strategy="longest_first" if truncation is True else truncation or "longest_first",
            add_special_tokens=add_special_tokens,
            parse_special_tokens=parse_special_tokens,
        )
        return self._batch(rows, padding, max_length, return_tensors, isinstance(texts, str))

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        strategy: str = "longest_first",
        add_special_tokens: bool = True,
        parse_special_tokens: bool = False,
    ) -> list[Encoded]:
        """Tokenizes each text on its own, unpadded, with its tokens and their offsets in the text (in characters)."""
        check_one_of("strategy", strategy, _STRATEGIES)
        check_bool("add_special_tokens", add_special_tokens)
        check_bool("parse_special_tokens", parse_special_tokens)
        if max_length is not None:
            max_length = check_count("max_length", max_length, maximum=None, minimum=0)
        texts, pairs = text_list("texts", texts), None if pairs is None else text_list("pairs", pairs)
        firsts = self.encode_raw(texts, parse_special_tokens, "text")
        if pairs is not None and len(pairs) != len(texts):
            both = f"{format_count(len(texts), 'text')} but {format_count(len(pairs), 'second text')}"
            raise InputError(f"{both}: a pair needs one of each")
        seconds = [None] * len(firsts) if pairs is None else self.encode_raw(pairs, parse_special_tokens, "second text")
        added = self.added_tokens(pair=pairs is not None) if add_special_tokens else 0
        rows = []
        for first, second in zip(firsts, seconds):
            cut = truncate_pair(first, second, max_length, added, strategy, self.truncation_side)
            done = self.post_process(first, second, add_special_tokens)
            rows.append(Encoded(done.ids, done.type_ids, done.tokens, done.offsets, done.special_tokens_mask, cut))
        return list(map(with_tiled_offsets, rows, texts)) if self.tiled and pairs is None else rows

    def added_tokens(self, *, pair: bool) -> int:
        """The number of special tokens that are added to a text, or to a pair."""
        check_bool("pair", pair)
        return (self._post_processor or self._backend).num_special_tokens_to_add(pair)

    def post_process(self, first: Encoding, second: Encoding | None, add_special_tokens: bool) -> Encoding:
        """Encodings of `encode_raw` as one row, with its special tokens."""
        with panics_as_errors():
            process = self._post_processor.process if self._post_processor else self._backend.post_process
            return process(first, second, add_special_tokens)

    def encode_raw(self, texts: Sequence[str], parse_special_tokens: bool, what: str) -> list[Encoding]:
        """Tokenizes each text on its own, without adding special tokens."""
        clean = [clean_text(text, i, what) for i, text in enumerate(texts)]
        plain = [not parse_special_tokens and self._looks_special(text) for text in clean]
        backends = [self._literal_backend if is_plain else self._backend for is_plain in plain]
        try:
            with panics_as_errors():
                if len(set(plain)) <= 1:
                    return (backends or [self._backend])[0].encode_batch(clean, add_special_tokens=False)
                return [b.encode(text, add_special_tokens=False) for b, text in zip(backends, clean)]
        except CorruptFileError as error:
            if "UNK" in str(error):
                self._check_known_pieces(clean, what)
            raise

    def _check_known_pieces(self, texts: Sequence[str], what: str) -> None:
        """Raises InputError for the first piece that cannot be tokenized, for vocabularies without an unknown token."""
        backend = self._backend
        for i, text in enumerate(texts):
            normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
            whole = [(normal, (0, len(normal)))]
            for piece, _ in backend.pre_tokenizer.pre_tokenize_str(normal) if backend.pre_tokenizer else whole:
                try:
                    backend.model.tokenize(piece)
                except Exception as error:
                    without = "and its tokenizer has no unk token: leave it out, or train a tokenizer with one"
                    raise InputError(Item(i, what), f" holds {shorten(ascii(piece))}, {without}") from error

    def encode_raw_words(self, texts: Sequence[Sequence[str]], parse_special_tokens: bool = True) -> list[Encoding]:
        """Tokenizes texts that are split into words, each word on its own; offsets count within each word."""
        found = []
        for i, words in enumerate(texts):
            if isinstance(words, str) or not all(isinstance(word, str) for word in words):
                raise InputError(Item(i, "text"), f" is {repr(words)[:60]}, expected a list of words")
            is_plain = not parse_special_tokens and any(map(self._looks_special, words))
            backend = self._literal_backend if is_plain else self._backend
            with panics_as_errors():
                found.append(backend.encode(list(words), is_pretokenized=True, add_special_tokens=False))
        return found

    def _batch(
        self, rows: list[Encoded], padding: bool | str, max_length: int | None, kind: str | None, single: bool
    ) -> Batch:
        padded = padding in (True, "longest", "max_length")
        length = self._limit(max_length) if padding == "max_length" else None
        if length is not None and (max_row_length := max((len(r.ids) for r in rows), default=0)) > length:
            fault = f"a text of {format_count(max_row_length, 'token')} does not fit into {length}: pass "
            raise InputError(fault, Argument("truncation", True))
        ids, types = [r.ids for r in rows], [r.type_ids for r in rows]
        if not padded and (kind is None or not rows):
            columns = {"input_ids": ids, "token_type_ids": types, "attention_mask": [[1] * len(row) for row in ids]}
        else:
            if not padded:
                check_equally_long(ids)
            left = self.settings.get("padding_side") == "left"
            columns = to_tensor_type(collate(ids, types, self.pad_token_id or 0, length=length, left=left), kind)
        names = input_names(self.token_types)
        return Batch({n: columns[n][0] if single and kind is None else columns[n] for n in names})

    def _limit(self, max_length: int | None) -> int:
        limit = max_length if max_length is not None else self.model_max_length
        if limit is None:
            argument = Argument("max_length", Placeholder("N"))
            raise InputError("this tokenizer states no greatest length: pass ", argument)
        return check_count("max_length", limit, maximum=None)

    # -- ids to text --------------------------------------------------------------------------------------------------

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Ids to text, spaced by the file's decoder; apply `cleaned` to it where the files ask for that."""
        check_bool("skip_special_tokens", skip_special_tokens)
        return self._backend.decode(checked_ids(ids), skip_special_tokens=skip_special_tokens)

    def decode_stream(self, skip_special_tokens: bool = False) -> DecodeStream:
        """A decoder of ids one at a time: `step(id)` returns the text that is certain so far, `end()` the rest."""
        return DecodeStream(self._backend, self._byte_ids, self.skipped_ids, skip_special_tokens=skip_special_tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id, as spelled in the vocabulary. Raises InputError for an id that is not in it."""
        tokens = []
        for i in checked_ids(ids):
            token = self._backend.id_to_token(i)
            if token is None:
                raise InputError(f"id {i} is not in this vocabulary of {format_count(len(self), 'token')}")
            tokens.append(token)
        return tokens

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int | None]:
        """The id of each token; None for tokens that are not in the vocabulary."""
        names = require_names("tokens", tokens, "tokens")
        return [self._backend.token_to_id(replace_surrogates(name)) for name in names]

    # -- conversations ------------------------------------------------------------------------------------------------

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        parse_special_tokens: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str | list[int]:
        """Formats a conversation as the text, or with `tokenize` the ids, that a chat model was trained on.

        messages: `[{"role": "user", "content": "..."}, ...]`.
        add_generation_prompt: ends with the start of the assistant's answer.
        chat_template: a template, or the name of one of the tokenizer's own; by default its own.
        parse_special_tokens: False reads special tokens in a message as plain characters; with True, as in the
            reference, `</s>` in a message ends it.
        continue_final_message: ends with the text of the last message, for a model to continue.
        variables: further variables of the template, such as `tools`.
        Raises InputError where there is no template, or it cannot be applied to these messages.
        """
        check_bool("tokenize", tokenize)
        check_bool("add_generation_prompt", add_generation_prompt)
        check_bool("continue_final_message", continue_final_message)
        template = select_template(self.settings, chat_template, variables.get("tools"))
        ends = add_generation_prompt and not continue_final_message
        known = {"add_generation_prompt": ends, "tools": None, "documents": None} | self.special_names | variables
        render = partial(render_chat, template, variables=known, continue_final_message=continue_final_message)
        if not tokenize:
            return render(messages)
        if parse_special_tokens or self._special_pattern is None:
            return self.encode([render(messages)], add_special_tokens=False, parse_special_tokens=True)[0].ids

        def encode(texts: list[str], content: bool) -> list[list[int]]:
            return [row.ids for row in self.encode(texts, add_special_tokens=False, parse_special_tokens=not content)]

        return marked_ids(render(mark_special_tokens(messages, self._special_tokens, self._special_normalizer)), encode)

    # -- facts --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def __repr__(self) -> str:
        return f"Tokenizer({len(self):,} tokens, at most {self.model_max_length} a text)"

    @property
    def truncation_side(self) -> str:
        """Which side of a text is truncated, as the files state: "right" cuts off its end, "left" its beginning."""
        return self.settings.get("truncation_side", "right")

    @cached_property
    def largest_id(self) -> int:
        """The largest id in the vocabulary."""
        return max(self._backend.get_vocab().values(), default=-1)

    @cached_property
    def _byte_ids(self) -> frozenset[int]:
        return byte_token_ids(self._backend)

    def to_json(self) -> str:
        """The whole tokenizer, serialised as a `tokenizer.json`."""
        copy = tokenizers.Tokenizer.from_str(self._backend.to_str())
        copy.post_processor = self._post_processor
        return copy.to_str()
