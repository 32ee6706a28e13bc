"""Guesses of the encoding of bytes that are not UTF-8: those that decode them to plausible text."""

import codecs
import contextlib
import re

SAMPLE_BYTES = 2**16
"""Number of bytes that are examined."""

MAX_ENCODINGS = 5
"""Number of guesses returned; a longer list would not help."""

_OTHERS = re.compile(r"[^\0-\x7f]")
_NEXT_TO_ASCII, _ISOLATED = (
    r"(?<=[A-Za-z])[^\0-\x7f]|[^\0-\x7f](?=[A-Za-z])",
    r"(?<![^\0-\x7f])[^\0-\x7f](?![^\0-\x7f])",
)
_SIGNS = "\u00a0-\u00a1§ª«°´·º»¿\u2013-\u2014\u2018-\u201e•…‹-›€"
_LATIN = (
    ("cp1252", f"[{_SIGNS}À-ÖØ-öø-ÿŒœ]"),
    ("cp1254", f"[{_SIGNS}ÂÇĞÎİÖÛÜâçğîıöşûüŞ]"),
    ("cp1250", f"[{_SIGNS}ÁÂÄÇÉËÍÎÓÔÖÚÜÝßáâäçéëíîóôöúüýĂ-ćČ-ĐĘ-ěĹ-ĺĽ-ľŁ-ńŇ-ňŐ-őŔ-ŕŘ-śŞ-ťŮ-űŹ-ž]"),
    ("cp1257", f"[{_SIGNS}ÄÅÉÓÕÖÜßäåéóõöüĀ-ąČčĒ-ēĖ-ęĢģĪ-įĶ-ķĻ-ļŅ-ņŠšŪ-ūŲ-ųŽž]"),
)
"""Encodings of Latin scripts, and the letters of their languages."""

_HAN = r"[\u3000-\u3011\u4e00-\u9fff\uff01-\uff5e\uff66-\uff9f]"
_WIDE = (
    (("shift_jis", "euc_jp"), r"[\u3041-\u30ff]", 0.1),
    (("shift_jis",), r"[\uff66-\uff9f]", 0.95),
    (("euc_kr",), r"[\uac00-\ud7a3]", 0.8),
)
_NARROW = (
    (("cp1255",), r"[\u05d0-\u05ea]", 0.97),
    (("cp1256",), r"[\u0627\u0644-\u0646\u0648\u064a]", 0.35),
    (("cp1251", "koi8_r", "cp866", "cp1253"), r"[\u0386-\u03ce\u0401-\u045f]", 0.8),
    (("cp874",), r"[\u0e30-\u0e4e]", 0.2),
)
_HANS = ((("gb18030", "big5", "shift_jis", "euc_jp"), _HAN, 0.6),)
"""Encodings of other scripts, their letters, and the least share of these among all non-ASCII characters. Scripts that
others are seldom mistaken for come first."""

_SMALL = r"[\u03ac-\u03ce\u0430-\u045f]"
"""Lower-case letters, of which a text has more than of capitals."""


def encodings_of(sample: bytes) -> list[str]:
    """The encodings that bytes may be in, the likeliest first; empty where it is UTF-8 but for a few bytes, or none is
    plausible. Of several that decode to the same text only the first is listed.

    Letters of Latin scripts are next to ASCII letters, letters of other scripts are not.
    sample: from an even offset in the file, since a character may take two bytes.
    """
    if 0 in sample:
        many, wide = max((sample.decode(name, "ignore").count("\n"), name) for name in ("utf-16-be", "utf-16-le"))
        return [wide] if many and _share(_decoded(sample, wide), r"[^\0-\x7f\ud800-\uf8ff]") == 1 else []
    if len(_OTHERS.findall(sample.decode(errors="ignore"))) > sample.decode(errors="replace").count("\ufffd"):
        return []
    found: dict[str, str] = {}
    latin = _decoded(sample, "latin-1")
    is_latin = max(_share(latin, kind) for kind in (_NEXT_TO_ASCII, _ISOLATED)) >= 0.5
    for name, kind in _LATIN if is_latin else ():
        if _share(text := _decoded(sample, name), kind) >= 0.95:
            found |= {} if text in found.values() else {name: text}
    for names, kind, least in (*_WIDE, *(() if is_latin else _NARROW), *_HANS):
        texts = {name: _decoded(sample, name) for name in names}
        fit = [name for name in names if _share(texts[name], f"(?<![A-Za-z]){kind}(?![A-Za-z])") >= least]
        for name in sorted(fit, key=lambda name: -_share(texts[name], _SMALL)):
            found |= {} if texts[name] in found.values() else {name: texts[name]}
    plain = not any(0x80 <= byte < 0xA0 for byte in sample)
    return ["latin-1" if name == "cp1252" and plain else name for name in found][:MAX_ENCODINGS]


def _decoded(sample: bytes, encoding: str) -> str:
    """The decoded text; empty where the bytes are not valid in the encoding."""
    with contextlib.suppress(UnicodeDecodeError):
        return codecs.getincrementaldecoder(encoding)().decode(sample)  # the last character may be incomplete
    return ""


def _share(text: str, kind: str) -> float:
    """The share of the non-ASCII characters that match a pattern."""
    return len(re.findall(kind, text)) / max(len(_OTHERS.findall(text)), 1)
