"""Names that models of other libraries have and a `Model` does not, each with what to use here."""

_EMBED = "model.embed(texts) gives the vectors"
_TRACE = "model.trace(text) keeps the numbers of one pass under their names, TransformerLens's too"
_EDIT = "within `with model.edit({name: function}):` every pass continues with what the function returns"
_TOKENIZER = "model.tokenizer makes ids of words, and words of ids"
_MODULE = "model.module is the plain nn.Module, which has it"
_MOVE = "model.to(device) moves the numbers, and model.to(dtype=...) changes their dtype"
_SAVE = (
    "model.save(folder) writes a checkpoint that pellucid opens, and transformers and sentence-transformers where they "
    "have the architecture"
)
_COMPAT = "AutoModel of pellucid.compat answers to the names of transformers"

EQUIVALENTS = {
    # sentence-transformers
    **dict.fromkeys(("encode", "encode_query", "encode_document", "get_sentence_embedding_dimension"), _EMBED),
    **dict.fromkeys(
        ("similarity", "similarity_pairwise"),
        "vectors = model.embed(texts, normalize=True) are of length 1, so that vectors @ vectors.T has the cosines",
    ),
    "max_seq_length": "model.embed(texts, max_length=...) says where a text is cut, model.loaded.max_length at most",
    "tokenize": _TOKENIZER,
    "predict": "pellucid.pipeline makes answers of a checkpoint with a head",
    # TransformerLens
    **dict.fromkeys(("run_with_cache", "get_caching_hooks", "hook_dict"), _TRACE),
    **dict.fromkeys(("run_with_hooks", "hooks", "add_hook", "reset_hooks"), _EDIT),
    **dict.fromkeys(("to_tokens", "to_str_tokens", "to_string", "to_single_token"), _TOKENIZER),
    "cfg": "model.config has the facts",
    # transformers and PyTorch
    **dict.fromkeys(
        """state_dict load_state_dict modules named_modules children named_children buffers named_buffers zero_grad
        register_forward_hook register_forward_pre_hook get_submodule get_parameter""".split(),
        _MODULE,
    ),
    "forward": "model(input_ids, attention_mask) is one pass",
    "requires_grad_": 'model.freeze("*") freezes every parameter, and model.unfreeze("*") makes them trainable',
    "num_parameters": "sum(table.numel() for table in model.parameters()) counts them",
    **dict.fromkeys(("cuda", "cpu", "half", "float", "bfloat16", "double"), _MOVE),
    **dict.fromkeys(("save_pretrained", "push_to_hub"), _SAVE),
    "from_pretrained": "pellucid.load(name) opens a checkpoint",
    **dict.fromkeys(
        """resize_token_embeddings get_input_embeddings get_output_embeddings generation_config base_model name_or_path
        tie_weights""".split(),
        _COMPAT,
    ),
    "set_input_embeddings": "model.module.embeddings.token.weight.data.copy_(table) writes into the table of tokens",
    "gradient_checkpointing_enable": "pellucid.train(..., activation_checkpointing=True) computes layers again on the "
    "way back, for less memory",
    "hf_device_map": "model.device is where all of its numbers are",
}
"""Attribute names of other libraries, each with its equivalent here."""
