"""Languages by their codes (ISO 639-1) and by their English names, which prompts use."""

from pellucid.errors import InputError, did_you_mean, shorten

_KNOWN = """af:Afrikaans am:Amharic ar:Arabic az:Azerbaijani be:Belarusian bg:Bulgarian bn:Bengali bs:Bosnian
    ca:Catalan ceb:Cebuano cs:Czech cy:Welsh da:Danish de:German el:Greek en:English eo:Esperanto es:Spanish et:Estonian
    eu:Basque fa:Persian fi:Finnish fil:Filipino fr:French fy:Frisian ga:Irish gd:Gaelic gl:Galician gu:Gujarati
    ha:Hausa haw:Hawaiian he:Hebrew hi:Hindi hr:Croatian ht:Haitian hu:Hungarian hy:Armenian id:Indonesian ig:Igbo
    is:Icelandic it:Italian ja:Japanese jv:Javanese ka:Georgian kk:Kazakh km:Khmer kn:Kannada ko:Korean ku:Kurdish
    ky:Kyrgyz la:Latin lb:Luxembourgish lo:Lao lt:Lithuanian lv:Latvian mg:Malagasy mi:Maori mk:Macedonian ml:Malayalam
    mn:Mongolian mr:Marathi ms:Malay mt:Maltese my:Burmese ne:Nepali nl:Dutch no:Norwegian ny:Chichewa pa:Punjabi
    pl:Polish ps:Pashto pt:Portuguese ro:Romanian ru:Russian sd:Sindhi si:Sinhala sk:Slovak sl:Slovenian sm:Samoan
    sn:Shona so:Somali sq:Albanian sr:Serbian st:Sotho su:Sundanese sv:Swedish sw:Swahili ta:Tamil te:Telugu tg:Tajik
    th:Thai tl:Tagalog tr:Turkish uk:Ukrainian ur:Urdu uz:Uzbek vi:Vietnamese xh:Xhosa yi:Yiddish yo:Yoruba zh:Chinese
    zu:Zulu"""
LANGUAGES = {code: name for code, _, name in (one.partition(":") for one in _KNOWN.split())}
"""{code: name}"""


_CODES = {word.lower(): code for code, name in LANGUAGES.items() for word in (code, name)}


def code_of(name: str) -> str:
    """The code of a language, from its code or name in any case; an unknown one unchanged."""
    return _CODES.get(name.lower(), name)


def language(option: str, name: str) -> str:
    """The English name of a language, from its code or its name. Raises InputError for an unknown one."""
    if name.lower() not in _CODES:
        hint = did_you_mean(name.title(), LANGUAGES.values(), 1)
        raise InputError(
            f"{option} is {shorten(name, 40)!r}{hint}, expected a code such as 'de' or a name such as 'German'; a "
            "prompt in other words can be set with prefix"
        )
    return LANGUAGES[code_of(name)]
