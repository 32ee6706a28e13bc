"""Cases for the tiny checkpoints that generate text."""

from tests.parity.case import BAD, BEGUN, CHAT, GOOD, LONG, PLAIN, case

_GREEDY = {"do_sample": False, "max_new_tokens": 10}
_STORY = "Once upon a time there was a"

WRITING = [
    *(case(model, _STORY, **_GREEDY) for model in ("gpt2", "llama", "llama-chat", "mistral", "qwen2-chat")),
    *(case(model, [PLAIN, _STORY], return_full_text=False, **_GREEDY) for model in ("gpt2", "llama", "mistral")),
    *(case(model, CHAT, **_GREEDY) for model in ("llama-chat", "mistral", "qwen2-chat") if model != "mistral"),
    case("mistral", CHAT[1:], **_GREEDY),
    case("mistral", BEGUN, **_GREEDY),
    case("qwen2-chat", [CHAT, CHAT[1:]], return_full_text=False, **_GREEDY),
    case("qwen2-chat", BEGUN, **_GREEDY),
    case("qwen2-chat", BEGUN, continue_final_message=False, **_GREEDY),
    case("qwen2-chat", [{"role": "user", "content": "an <|im_end|> typed"}], return_tensors=True, **_GREEDY),
    case("mistral", [{"role": "user", "content": "an </s> typed"}], **_GREEDY),
    case("gpt2", "an <|endoftext|> typed", **_GREEDY),
    case("gpt2", [_STORY], **_GREEDY),
    case("gpt2", _STORY, num_beams=4, num_return_sequences=3, **_GREEDY),
    case("gpt2", [_STORY, PLAIN], num_beams=2, num_return_sequences=2, return_full_text=False, **_GREEDY),
    case("gpt2", _STORY, return_tensors=True, **_GREEDY),
    case("gpt2", _STORY, return_text=True, **_GREEDY),
    case("gpt2", _STORY, prefix="The end. ", **_GREEDY),
    case("gpt2", LONG, handle_long_generation="hole", return_full_text=False, **_GREEDY),
    case("gpt2", _STORY, do_sample=False, max_length=20),
    case("llama", _STORY, options={"return_full_text": False, "max_new_tokens": 4, "do_sample": False}),
    case("llama", _STORY, options={"max_length": 18, "do_sample": False}),
    case("gpt2", LONG, truncation=True, do_sample=False, max_new_tokens=3, tokenizer_encode_kwargs={"max_length": 20}),
    case("gpt2", "Where do they live?", no_repeat_ngram_size=2, repetition_penalty=1.3, **_GREEDY),
    case("gpt2", _STORY, eos_token_id=39, do_sample=False, max_new_tokens=12),
    case("gpt2", _STORY, eos_token_id=[539, 0], return_full_text=False, do_sample=False, max_new_tokens=12),
    case("gpt2", _STORY, min_new_tokens=4, bad_words_ids=[[38], [539, 546]], **_GREEDY),
    case("llama", _STORY, num_beams=3, length_penalty=0.2, early_stopping=True, **_GREEDY),
    case("llama", _STORY, skip_special_tokens=False, **_GREEDY),
    case("llama", _STORY, add_special_tokens=False, **_GREEDY),
    case("gpt2", "A space , and a dot . ", clean_up_tokenization_spaces=True, **_GREEDY),
    case("gpt2", "A space , and a dot . ", clean_up_tokenization_spaces=False, **_GREEDY),
]
STOPPED = [
    case("gpt2", _STORY, stop_sequence="e", do_sample=False, max_new_tokens=30),
    *(case(model, _STORY, stop_strings=["sc", "op"], **_GREEDY) for model in ("gpt2", "llama")),
    case("gpt2", [_STORY, PLAIN], stop_strings="w", return_full_text=False, **_GREEDY),
    case("gpt2", _STORY, stop_strings=["ow", "f3"], num_beams=3, num_return_sequences=3, **_GREEDY),
    case("qwen2-chat", CHAT, stop_strings=["e", "o"], **_GREEDY),
]

_SHORT = {"max_new_tokens": 12}

TEXT_TO_TEXT = [
    *(case(model, PLAIN, **_SHORT) for model in ("t5-tasks", "t5-gated", "bart", "bart-settings")),
    *(case(model, [PLAIN, GOOD], **_SHORT) for model in ("t5-tasks", "t5-gated", "bart", "bart-settings")),
    case("t5-tasks", [PLAIN], num_beams=1, **_SHORT),
    case("t5-tasks", PLAIN, num_return_sequences=3, **_SHORT),
    case("t5-tasks", [PLAIN, GOOD], num_return_sequences=2, **_SHORT),
    case("bart", PLAIN, return_tensors=True, **_SHORT),
    case("bart-settings", PLAIN),
    case("bart-settings", PLAIN, max_length=9, num_beams=1),
    case("bart-settings", PLAIN, min_length=6, max_length=12),
    case("bart", PLAIN, max_length=9),
    case("t5-tied", [PLAIN, BAD], **_SHORT),
    case("bart", LONG, truncation=True, **_SHORT),
    case("t5-gated", PLAIN, clean_up_tokenization_spaces=True, **_SHORT),
    case("t5-gated", PLAIN, length_penalty=0.3, no_repeat_ngram_size=1, num_beams=3, **_SHORT),
    case("t5-gated", PLAIN, num_beams=2, num_return_sequences=2, return_tensors=True, max_new_tokens=6),
    case("bart", PLAIN, forced_eos_token_id=100, repetition_penalty=1.5, **_SHORT),
    case("t5-tasks", "the <extra_id_0> dog", **_SHORT),
    case("t5-gated", PLAIN, stop_sequence="e", **_SHORT),
    case("t5-gated", PLAIN, options={"max_new_tokens": 5, "num_beams": 1}),
]
SUMMARIES = [
    *(case(model, PLAIN + " " + GOOD) for model in ("t5-tasks", "bart-settings")),
    *(case(model, [PLAIN, BAD]) for model in ("t5-tasks", "bart-settings")),
    case("bart-summary", [PLAIN, BAD], **_SHORT),
    case("t5-tasks", PLAIN, max_length=10, min_length=3),
    case("bart-summary", PLAIN, max_new_tokens=7),
    case("t5-tasks", PLAIN, return_tensors=True),
]
TO_GERMAN = [
    case("t5-tasks", "The house is wonderful."),
    case("t5-tasks", ["The house is wonderful.", PLAIN], **_SHORT),
    case("t5-tasks", "The house is wonderful.", max_length=8, num_beams=1),
]
TO_FRENCH = [case("t5-tasks", "The house is wonderful."), case("bart-settings", "The house is wonderful.")]
TRANSLATION = [
    case("t5-tasks", PLAIN, **_SHORT),
    case("bart-settings", [PLAIN, BAD]),
    case("bart", PLAIN, src_lang="en", tgt_lang="de", **_SHORT),
]
