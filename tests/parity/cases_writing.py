"""Cases for the tiny checkpoints that generate text."""

from tests.parity.asking import BAD, BEGUN, CHAT, GOOD, LONG, PLAIN, ask

_GREEDY = {"do_sample": False, "max_new_tokens": 10}
_STORY = "Once upon a time there was a"

WRITING = [
    *(ask(model, _STORY, **_GREEDY) for model in ("gpt2", "llama", "llama-chat", "mistral", "qwen2-chat")),
    *(ask(model, [PLAIN, _STORY], return_full_text=False, **_GREEDY) for model in ("gpt2", "llama", "mistral")),
    *(ask(model, CHAT, **_GREEDY) for model in ("llama-chat", "mistral", "qwen2-chat") if model != "mistral"),
    ask("mistral", CHAT[1:], **_GREEDY),
    ask("mistral", BEGUN, **_GREEDY),
    ask("qwen2-chat", [CHAT, CHAT[1:]], return_full_text=False, **_GREEDY),
    ask("qwen2-chat", BEGUN, **_GREEDY),
    ask("qwen2-chat", BEGUN, continue_final_message=False, **_GREEDY),
    ask("qwen2-chat", [{"role": "user", "content": "an <|im_end|> typed"}], return_tensors=True, **_GREEDY),
    ask("mistral", [{"role": "user", "content": "an </s> typed"}], **_GREEDY),
    ask("gpt2", "an <|endoftext|> typed", **_GREEDY),
    ask("gpt2", [_STORY], **_GREEDY),
    ask("gpt2", _STORY, num_beams=4, num_return_sequences=3, **_GREEDY),
    ask("gpt2", [_STORY, PLAIN], num_beams=2, num_return_sequences=2, return_full_text=False, **_GREEDY),
    ask("gpt2", _STORY, return_tensors=True, **_GREEDY),
    ask("gpt2", _STORY, return_text=True, **_GREEDY),
    ask("gpt2", _STORY, prefix="The end. ", **_GREEDY),
    ask("gpt2", LONG, handle_long_generation="hole", return_full_text=False, **_GREEDY),
    ask("gpt2", _STORY, do_sample=False, max_length=20),
    ask("llama", _STORY, options={"return_full_text": False, "max_new_tokens": 4, "do_sample": False}),
    ask("llama", _STORY, options={"max_length": 18, "do_sample": False}),
    ask("gpt2", LONG, truncation=True, do_sample=False, max_new_tokens=3, tokenizer_encode_kwargs={"max_length": 20}),
    ask("gpt2", "Where do they live?", no_repeat_ngram_size=2, repetition_penalty=1.3, **_GREEDY),
    ask("gpt2", _STORY, eos_token_id=39, do_sample=False, max_new_tokens=12),
    ask("gpt2", _STORY, eos_token_id=[539, 0], return_full_text=False, do_sample=False, max_new_tokens=12),
    ask("gpt2", _STORY, min_new_tokens=4, bad_words_ids=[[38], [539, 546]], **_GREEDY),
    ask("llama", _STORY, num_beams=3, length_penalty=0.2, early_stopping=True, **_GREEDY),
    ask("llama", _STORY, skip_special_tokens=False, **_GREEDY),
    ask("llama", _STORY, add_special_tokens=False, **_GREEDY),
    ask("gpt2", "A space , and a dot . ", clean_up_tokenization_spaces=True, **_GREEDY),
    ask("gpt2", "A space , and a dot . ", clean_up_tokenization_spaces=False, **_GREEDY),
]
STOPPED = [
    ask("gpt2", _STORY, stop_sequence="e", do_sample=False, max_new_tokens=30),
    *(ask(model, _STORY, stop_strings=["sc", "op"], **_GREEDY) for model in ("gpt2", "llama")),
    ask("gpt2", [_STORY, PLAIN], stop_strings="w", return_full_text=False, **_GREEDY),
    ask("gpt2", _STORY, stop_strings=["ow", "f3"], num_beams=3, num_return_sequences=3, **_GREEDY),
    ask("qwen2-chat", CHAT, stop_strings=["e", "o"], **_GREEDY),
]

_SHORT = {"max_new_tokens": 12}

TEXT_TO_TEXT = [
    *(ask(model, PLAIN, **_SHORT) for model in ("t5-tasks", "t5-gated", "bart", "bart-settings")),
    *(ask(model, [PLAIN, GOOD], **_SHORT) for model in ("t5-tasks", "t5-gated", "bart", "bart-settings")),
    ask("t5-tasks", [PLAIN], num_beams=1, **_SHORT),
    ask("t5-tasks", PLAIN, num_return_sequences=3, **_SHORT),
    ask("t5-tasks", [PLAIN, GOOD], num_return_sequences=2, **_SHORT),
    ask("bart", PLAIN, return_tensors=True, **_SHORT),
    ask("bart-settings", PLAIN),
    ask("bart-settings", PLAIN, max_length=9, num_beams=1),
    ask("bart-settings", PLAIN, min_length=6, max_length=12),
    ask("bart", PLAIN, max_length=9),
    ask("t5-tied", [PLAIN, BAD], **_SHORT),
    ask("bart", LONG, truncation=True, **_SHORT),
    ask("t5-gated", PLAIN, clean_up_tokenization_spaces=True, **_SHORT),
    ask("t5-gated", PLAIN, length_penalty=0.3, no_repeat_ngram_size=1, num_beams=3, **_SHORT),
    ask("t5-gated", PLAIN, num_beams=2, num_return_sequences=2, return_tensors=True, max_new_tokens=6),
    ask("bart", PLAIN, forced_eos_token_id=100, repetition_penalty=1.5, **_SHORT),
    ask("t5-tasks", "the <extra_id_0> dog", **_SHORT),
    ask("t5-gated", PLAIN, stop_sequence="e", **_SHORT),
    ask("t5-gated", PLAIN, options={"max_new_tokens": 5, "num_beams": 1}),
]
SUMMARIES = [
    *(ask(model, PLAIN + " " + GOOD) for model in ("t5-tasks", "bart-settings")),
    *(ask(model, [PLAIN, BAD]) for model in ("t5-tasks", "bart-settings")),
    ask("bart-summary", [PLAIN, BAD], **_SHORT),
    ask("t5-tasks", PLAIN, max_length=10, min_length=3),
    ask("bart-summary", PLAIN, max_new_tokens=7),
    ask("t5-tasks", PLAIN, return_tensors=True),
]
TO_GERMAN = [
    ask("t5-tasks", "The house is wonderful."),
    ask("t5-tasks", ["The house is wonderful.", PLAIN], **_SHORT),
    ask("t5-tasks", "The house is wonderful.", max_length=8, num_beams=1),
]
TO_FRENCH = [ask("t5-tasks", "The house is wonderful."), ask("bart-settings", "The house is wonderful.")]
TRANSLATION = [
    ask("t5-tasks", PLAIN, **_SHORT),
    ask("bart-settings", [PLAIN, BAD]),
    ask("bart", PLAIN, src_lang="en", tgt_lang="de", **_SHORT),
]
