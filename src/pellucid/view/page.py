"""Renders a manifest and its blocks as one self-contained HTML page.

The browser code is in ``web/`` as plain ES modules. They are joined here in the order of their imports, each in a
function of its own, and stored in the page deflated, with their style sheet; `web/loader.js` unpacks them. The data
follows in script tags that no browser executes.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pellucid.text.truncation import replace_surrogates
from pellucid.view.arithmetic import unpack_block
from pellucid.view.svg import without_direction_marks

WEB = Path(__file__).with_name("web")

_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_MODULE_LINE = re.compile(r"^[ \t]*(?:import|export)\b.*$", re.MULTILINE)
_COMMENT = re.compile(r"^[ \t]*(?:/\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
_SPACE = re.compile(r"\n\s+")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def render(manifest: dict[str, Any], blocks: Mapping[str, bytes], *, served: bool = False) -> str:
    """The page: a whole HTML document that makes no request of any kind.

    manifest: the contents of the page (format `pellucid-view`); plain JSON values.
    blocks: the numbers, little-endian and row-major, one entry per name in `manifest["blocks"]`.
    served: leaves the blocks out; the page requests each, at `block/NAME` below its own address, when it needs it.

    Raises ValueError where a block is missing, has the wrong size or a dtype that pages do not support, or a module
    breaks the bundler's convention.
    """
    _check_blocks(manifest, blocks)
    style = _style()
    entry, call = ("served", "served.mountServed") if served else ("app", "app.mount")
    script = bundle(entry) + f'\nfor (const root of document.querySelectorAll(".pellucid")) {call}(root);\n'
    loader = (WEB / "loader.js").read_text(encoding="utf-8")
    slots = {
        "policy": _policy([style], [loader, script]) + ("; connect-src 'self'" if served else ""),
        "title": html.escape(
            without_direction_marks(replace_surrogates(" / ".join(manifest["texts"])[:80])) or "pellucid"
        ),
        "program": pack_program(style, script),
        "loader": loader,
        "data": _data_tags(manifest, {} if served else blocks),
    }
    skeleton = (WEB / "page.html").read_text(encoding="utf-8")
    return _SLOT.sub(lambda slot: slots[slot[1]], skeleton)


def scaffold_size() -> int:
    """An upper bound on the bytes of a page without data: a title may take six for each of its characters."""
    program = pack_program(_style(), bundle("app"))
    return len(program) + sum((WEB / name).stat().st_size for name in ("loader.js", "page.html")) + 720


def pack_program(style: str, script: str) -> str:
    """The page's style and program as `web/loader.js` unpacks them: deflated (RFC 1950), as base64."""
    return base64.b64encode(zlib.compress(f"{style}\0{script}".encode(), 9)).decode("ascii")


def bundle(entry: str) -> str:
    """Joins the module ``entry`` and all that it imports into one script, dependencies first."""
    sources: dict[str, str] = {}
    _collect_modules(entry, sources, ())
    script = '"use strict";\n' + "\n".join(_wrap_module(name, source) for name, source in sources.items())
    if re.search(r"</script|<!--", script, re.IGNORECASE):
        raise ValueError(f"a module in {WEB.name}/ holds text that would end the script tag")
    return script


def _style() -> str:
    """The style sheet, shortened."""
    return _shortened((WEB / "page.css").read_text(encoding="utf-8"))


def _collect_modules(name: str, sources: dict[str, str], above: tuple[str, ...]) -> None:
    """Adds a module after everything that it imports."""
    if name in above:
        raise ValueError(f"modules in {WEB.name}/ import in a circle: {' -> '.join((*above, name))}")
    if name in sources:
        return
    source = (WEB / f"{name}.js").read_text(encoding="utf-8")
    for match in _IMPORT.finditer(source):
        _collect_modules(match[2], sources, (*above, name))
    sources[name] = source


def _wrap_module(name: str, source: str) -> str:
    """Turns a module into ``const name = (() => { ...; return { exports }; })();``.

    Its header, comments on lines of their own, empty lines and indentation are removed.
    """
    for line in _MODULE_LINE.findall(source):
        if not _IMPORT.match(line) and not _EXPORT.match(line):
            raise ValueError(f"{name}.js: not in the bundler's convention: {line.strip()}")
    exports = ", ".join(_EXPORT.findall(source))
    body = _EXPORT.sub("", _IMPORT.sub(r"const { \1 } = \2;", _shortened(source)))
    return f"const {name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"


def _shortened(text: str) -> str:
    """The text without comments on lines of their own, ``//`` and ``/* */``, empty lines and indentation.

    A template literal must not span lines: it would lose its indentation.
    """
    return _SPACE.sub("\n", _COMMENT.sub("", text))


def _data_tags(manifest: dict[str, Any], blocks: Mapping[str, bytes]) -> str:
    """Script tags of types that no browser executes; ``<`` is escaped, so the data cannot end a tag."""
    tags = [_block_tag(name, base64.b64encode(block).decode("ascii")) for name, block in blocks.items()]
    return "\n".join([_manifest_tag(manifest), *tags])


def _manifest_tag(manifest: dict[str, Any]) -> str:
    text = json.dumps(manifest, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" class="pellucid-manifest">{text}</script>'


def _block_tag(name: str, encoded: str) -> str:
    return f'<script type="application/octet-stream" data-block="{html.escape(name)}">{encoded}</script>'


def data_size(manifest: dict[str, Any], blocks: Mapping[str, bytes]) -> int:
    """The size of the data inside a page, in bytes."""
    return (
        len(_manifest_tag(manifest))
        + sum(len(_block_tag(name, "")) + 1 for name in blocks)
        + base64_length(blocks.values())
    )


def base64_length(blocks: Iterable[bytes]) -> int:
    """The length of some blocks in base64, four characters for every three bytes of each."""
    return sum(4 * -(-len(block) // 3) for block in blocks)


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """A content security policy that allows exactly these styles and scripts, and no requests."""
    return (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(texts: Sequence[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _check_blocks(manifest: dict[str, Any], blocks: Mapping[str, bytes]) -> None:
    """Checks that every block in the manifest is there with the right number of bytes."""
    for name, fact in manifest["blocks"].items():
        if name not in blocks:
            raise ValueError(f"the manifest names the block {name}, which was not given")
        unpack_block(name, fact, blocks[name])
