"""The tiny checkpoints: facts under the reference's names, tokenizer, and scale of the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Recipe:
    """One checkpoint.

    config: contents of `config.json`.  tokenizer: a folder of `golden/tokenizers`.  settings: keys of
        `tokenizer_config.json` that are added or replaced.  generation: contents of `generation_config.json`.
    gains: factors for tensors whose names contain a word.  row_factors: by tensor, factors for rows, so that a token
        such as the end is chosen more often.  seed: a word on which every weight depends.
    """

    config: Mapping[str, Any]
    tokenizer: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    row_factors: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    seed: str = ""


_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_ENCODER = _SIZES | {"max_position_embeddings": 98}
_ANGLED = _ENCODER | {"layer_norm_eps": 1e-5, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
_ROTATED = _SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
_FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", "bert", _ENCODER | {"vocab_size": 600}),
    "bert-cased": ("Bert", "bert-cased", _ENCODER | {"model_type": "bert", "vocab_size": 600}),
    "distilbert": (
        "DistilBert",
        "bert",
        {"vocab_size": 600, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 98},
    ),
    "roberta": ("Roberta", "roberta", _ANGLED | {"vocab_size": 601, "type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", "xlm-roberta", _ANGLED | {"vocab_size": 502, "type_vocab_size": 1}),
    "camembert": ("Camembert", "xlm-roberta", _ANGLED | {"vocab_size": 502, "type_vocab_size": 1}),
    "albert": ("Albert", "albert", _ENCODER | {"vocab_size": 451, "embedding_size": 24, "num_hidden_layers": 3}),
    "mpnet": ("MPNet", "mpnet", _ANGLED | {"vocab_size": 601, "relative_attention_num_buckets": 32}),
    "gpt2": (
        "GPT2",
        "gpt2",
        {"vocab_size": 600, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 320}
        | {"bos_token_id": 0, "eos_token_id": 0},
    ),
    "llama": ("Llama", "llama3", _ROTATED | {"vocab_size": 600, "bos_token_id": 0, "eos_token_id": 1}),
    "llama-chat": (
        "Llama",
        "chat",
        _ROTATED | {"model_type": "llama", "vocab_size": 600, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    ),
    "mistral": ("Mistral", "mistral", _ROTATED | {"vocab_size": 600, "sliding_window": 24}),
    "qwen2": ("Qwen2", "chat", _ROTATED | {"vocab_size": 600, "bos_token_id": 0, "eos_token_id": 2}),
    "bart": (
        "Bart",
        "roberta",
        {"vocab_size": 601, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 320}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
        | {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
        | {"forced_eos_token_id": 2},
    ),
    "t5": (
        "T5",
        "t5",
        {"vocab_size": 512, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
    ),
}


def _recipe(family: str, head: str, name: str, **others: Any) -> Recipe:
    stem, tokenizer, facts = _FAMILIES[family]
    labels = others.pop("labels", None)
    config = {"model_type": family, "architectures": [stem + head]} | facts
    if labels:
        config |= {"id2label": {str(i): label for i, label in enumerate(labels)}}
        config |= {"label2id": {label: i for i, label in enumerate(labels)}}
    parts = {key: others.pop(key) for key in ("settings", "generation", "gains", "row_factors") if key in others}
    kind = {"distilbert": "DistilBertTokenizer", "camembert": "CamembertTokenizer", "bart": "BartTokenizer"}.get(family)
    settings = ({"tokenizer_class": kind} if kind else {}) | parts.pop("settings", {})
    return Recipe(config | others, tokenizer, settings, seed=name, **parts)


_CLASSIFY, _TAG, _ANSWER, _FILL = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMaskedLM",
)
_SENTIMENTS = ["negative", "neutral", "positive"]
_PEOPLE = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
_PLAIN = ["O", "NOUN", "VERB", "PUNCT"]
_INSIDE = ["O", "I-PER", "I-LOC"]
_READER_GAINS = {"qa_outputs": 3.0}
_TAGGER_GAINS = {
    "token_type_embeddings": 0.2,
    "position_embeddings": 0.5,
    "classifier": 3.0,
    "score": 2.0,
    "attention": 0.7,
}

_CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-feelings": ("bert", {"labels": _SENTIMENTS}),
    "bert-one-label": ("bert", {"labels": ["LABEL_0"]}),
    "bert-stars": (
        "bert",
        {"labels": [f"{i} stars" for i in range(1, 6)], "problem_type": "multi_label_classification"},
    ),
    "distilbert-feelings": ("distilbert", {"labels": ["NEGATIVE", "POSITIVE"]}),
    "roberta-toxic": (
        "roberta",
        {"labels": ["toxic", "obscene", "threat", "insult"], "problem_type": "multi_label_classification"},
    ),
    "albert-similarity": ("albert", {"labels": ["similarity"], "problem_type": "regression"}),
    "albert-three-numbers": ("albert", {"labels": ["a", "b", "c"], "problem_type": "regression"}),
    "xlm-roberta-feelings": ("xlm-roberta", {"labels": _SENTIMENTS, "problem_type": "single_label_classification"}),
    "camembert-feelings": ("camembert", {"labels": ["LABEL_0", "LABEL_1"]}),
    "mpnet-topics": ("mpnet", {"labels": ["world", "sports", "business", "science"]}),
    "gpt2-feelings": ("gpt2", {"labels": _SENTIMENTS, "pad_token_id": 0}),
    "llama-feelings": ("llama-chat", {"labels": _SENTIMENTS}),
    "mistral-feelings": ("mistral", {"labels": _SENTIMENTS, "pad_token_id": 0}),
    "qwen2-feelings": ("qwen2", {"labels": _SENTIMENTS, "pad_token_id": 0}),
    "t5-feelings": ("t5", {"labels": _SENTIMENTS}),
    "bert-nli": ("bert", {"labels": ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"]}),
    "roberta-nli": ("roberta", {"labels": ["contradiction", "neutral", "entailment"]}),
    "bart-nli": ("bart", {"labels": ["contradiction", "neutral", "entailment"]}),
    "mpnet-nli": ("mpnet", {"labels": ["neutral", "entailment", "contradiction"]}),
    "albert-nli": ("albert", {"labels": ["not_entailment", "entailment"]}),
    "xlm-roberta-nli": ("xlm-roberta", {"labels": ["entailment", "contradiction", "neutral"]}),
    "t5-nli": ("t5", {"labels": ["neutral", "contradiction", "entailment"]}),
    "distilbert-nli": ("distilbert", {"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}),
}
_TAGGERS: dict[str, tuple[str, list[str]]] = {
    "bert-people": ("bert-cased", _PEOPLE),
    "bert-plain": ("bert", _PLAIN),
    "distilbert-plain": ("distilbert", _PLAIN),
    "roberta-people": ("roberta", _PEOPLE),
    "xlm-roberta-people": ("xlm-roberta", _PEOPLE),
    "camembert-inside": ("camembert", _INSIDE),
    "albert-people": ("albert", _PEOPLE),
    "mpnet-people": ("mpnet", _PEOPLE),
    "gpt2-inside": ("gpt2", _INSIDE),
    "llama-plain": ("llama", _PLAIN),
    "mistral-inside": ("mistral", _INSIDE),
    "qwen2-people": ("qwen2", _PEOPLE),
}
_READERS = ("bert", "bert-cased", "distilbert", "roberta", "xlm-roberta", "albert", "mpnet", "bart", "gpt2", "t5")
_READERS += ("camembert", "llama")
_FILLERS = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "albert", "mpnet")
_BODIES = (*_FILLERS, "gpt2", "llama", "mistral", "qwen2", "bart", "bert-cased")

_SUMMARY = {"early_stopping": True, "length_penalty": 2.0, "max_length": 24, "min_length": 8, "num_beams": 4}
_T5_TASKS = {
    "summarization": _SUMMARY | {"no_repeat_ngram_size": 3, "prefix": "summarize: "},
    "translation_en_to_de": {"early_stopping": True, "max_length": 16, "num_beams": 4}
    | {"prefix": "translate English to German: "},
    "translation_en_to_fr": {"early_stopping": True, "max_length": 20, "num_beams": 2}
    | {"prefix": "translate English to French: "},
}
_BART_SETTINGS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2} | {
    "forced_eos_token_id": 2,
    "forced_bos_token_id": 0,
    "num_beams": 4,
    "max_length": 18,
    "min_length": 5,
    "no_repeat_ngram_size": 3,
    "early_stopping": True,
    "length_penalty": 2.0,
}
_GPT2_TASKS = {"text-generation": {"do_sample": True, "max_length": 50}}
_FREQUENT_END = {"lm_head.weight": {1: 2.5}}
_T5_GAINS = {"lm_head": 4.0, "Attention": 2.0}
_GAINS = {"lm_head": 4.0, "attn": 1.5}
_BART_GAINS = {"attn": 2.0, "fc": 2.0}
_BART_FREQUENT_END = {"shared.weight": {2: 1.3}}
_BART = {"gains": _BART_GAINS, "row_factors": _BART_FREQUENT_END}
_CHAT_SETTINGS = {"eos_token_id": [2, 0], "pad_token_id": 0, "repetition_penalty": 1.1}
_GPT2 = {"gains": {"attn": 2.0, "mlp": 2.0}, "row_factors": {"wte.weight": {0: 1.5}}}
_ENDING = {"row_factors": {"lm_head.weight": {2: 2.5}}}
_WRITERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5-tasks": (
        "t5",
        "ForConditionalGeneration",
        {
            "task_specific_params": _T5_TASKS,
            "tie_word_embeddings": False,
            "gains": _T5_GAINS,
            "row_factors": _FREQUENT_END,
        },
    ),
    "t5-gated": (
        "t5",
        "ForConditionalGeneration",
        {
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "gains": _T5_GAINS,
            "row_factors": _FREQUENT_END,
        },
    ),
    "t5-tied": ("t5", "ForConditionalGeneration", {"gains": {"shared": 2.0, "Attention": 2.0}}),
    "bart": ("bart", "ForConditionalGeneration", _BART),
    "bart-settings": ("bart", "ForConditionalGeneration", _BART | {"generation": _BART_SETTINGS}),
    "bart-summary": (
        "bart",
        "ForConditionalGeneration",
        _BART | {"task_specific_params": {"summarization": _SUMMARY | {"no_repeat_ngram_size": 2}}, "prefix": " "},
    ),
    "gpt2": ("gpt2", "LMHeadModel", _GPT2 | {"task_specific_params": _GPT2_TASKS}),
    "llama": ("llama", "ForCausalLM", {"gains": _GAINS, "rope_theta": 500000.0}),
    "llama-chat": ("llama-chat", "ForCausalLM", {"tie_word_embeddings": True, "gains": {"attn": 2.0, "mlp": 2.0}}),
    "mistral": ("mistral", "ForCausalLM", _ENDING | {"gains": _GAINS}),
    "qwen2-chat": ("qwen2", "ForCausalLM", _ENDING | {"gains": _GAINS, "generation": _CHAT_SETTINGS}),
}

RECIPES: dict[str, Recipe] = (
    {name: _recipe(family, _CLASSIFY, name, **facts) for name, (family, facts) in _CLASSIFIERS.items()}
    | {
        name: _recipe(family, _TAG, name, labels=labels, gains=_TAGGER_GAINS)
        for name, (family, labels) in _TAGGERS.items()
    }
    | {f"{name}-reader": _recipe(name, _ANSWER, f"{name}-reader", gains=_READER_GAINS) for name in _READERS}
    | {f"{name}-filler": _recipe(name, _FILL, f"{name}-filler") for name in _FILLERS}
    | {f"{name}-body": _recipe(name, "Model", f"{name}-body") for name in _BODIES}
    | {name: _recipe(family, head, name, **facts) for name, (family, head, facts) in _WRITERS.items()}
)
"""Every tiny checkpoint by name."""
