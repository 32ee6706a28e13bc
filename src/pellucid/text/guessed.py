"""What bytes that are no UTF-8 may be instead: every encoding by which they read as a person writes, and none else."""

import codecs
import contextlib
import re

SAMPLE = 2**16
"""So many bytes are looked at."""

_TOGETHER = re.compile(rb"[\x80-\xff]{2,}")
_OTHERS = re.compile(r"[^\0-\x7f]")
_HAN = r"\u3000-\u3011\u4e00-\u9fff\uff01-\uff5e"
_LETTERS = (
    (("shift_jis", "euc_jp"), r"[\u3041-\u30ff]", 0.1),
    (("euc_kr",), r"[\uac00-\ud7a3]", 0.8),
    (("cp1251", "koi8_r", "cp1253"), r"[\u0430-\u045f\u03ac-\u03ce]", 0.8),
    (("cp874",), r"[\u0e30-\u0e4e]", 0.2),
    (("gb18030", "big5", "shift_jis", "euc_jp"), rf"[{_HAN}\uff66-\uff9f]", 0.8),
)
"""Encodings, the letters by which they are known, and the least share of these among all that are not ASCII's. The
letters that others are seldom taken for come first; half-width kana come last, since Thai and Korean read as such."""


def encodings_of(sample: bytes) -> list[str]:
    """The encodings that bytes may be of, the likeliest first; none where it is UTF-8 but for a few, or nothing known.

    sample: from an even place of the file on, in which two bytes may be a letter.
    """
    if 0 in sample:
        many, wide = max((sample.decode(name, "ignore").count("\n"), name) for name in ("utf-16-be", "utf-16-le"))
        return [wide] if many and _share(sample, wide, r"[^\ud800-\uf8ff]") == 1 else []
    high = sum(byte >= 0x80 for byte in sample)
    if len(_OTHERS.findall(sample.decode(errors="ignore"))) > sample.decode(errors="replace").count("\ufffd"):
        return []
    alone = 2 * sum(map(len, _TOGETHER.findall(sample))) <= high  # as accents stand among the letters of Europe
    rows = _LETTERS[:1] if alone else _LETTERS
    found = []
    for names, kind, least in rows:
        shares = {name: _share(sample, name, kind) for name in names}
        found += sorted((name for name in names if shares[name] >= least), key=lambda name: -shares[name])
    western = "cp1252" if any(0x80 <= byte < 0xA0 for byte in sample) else "latin-1"
    return list(dict.fromkeys(found)) or ([western] if alone else [])


def _share(sample: bytes, encoding: str, kind: str) -> float:
    """How many of the letters that are not ASCII's are of a kind; 0 where bytes are not of the encoding."""
    with contextlib.suppress(UnicodeDecodeError):
        others = _OTHERS.findall(codecs.getincrementaldecoder(encoding)().decode(sample))  # the last may be cut
        return sum(bool(re.match(kind, one)) for one in others) / max(len(others), 1)
    return 0.0
