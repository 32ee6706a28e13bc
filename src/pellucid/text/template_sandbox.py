"""A jinja2 environment for untrusted templates: no attributes, files or imports, and bounded time and memory.

jinja2's sandbox keeps a template from executing Python (CVE-2024-34359 was without it), but not from running forever or
building a huge string. Here each iteration and each operation checks the clock, values have a maximum size, and
operations that take more than linear time are checked beforehand.
Imported only when a template is rendered: jinja2 is not imported by `import pellucid`.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pellucid.text.template_meter import (
    BUDGET,
    FILTER_CHECKS,
    MAX_CHARACTERS,
    MAX_PARTS,
    OPERATOR_CHECKS,
    TooMuchError,
    charge,
    check_format,
    check_joined,
    check_method,
    check_remainder,
    check_widths,
    metered,
    refuse,
)

FILTERS = (
    "abs capitalize center count d default dictsort e escape first float format groupby indent int items join last "
    "length list lower map max min rejectattr reject replace reverse round safe select selectattr sort string sum "
    "title trim unique upper wordcount"
).split()
"""The filters of jinja2 that templates may use; the others can create large values."""


def _metered_filter(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The filter with metering; generators pay for each item."""
    takes = 1 if hasattr(plain, "jinja_pass_arg") else 0

    def run(*arguments: Any, **named: Any) -> Any:
        before, (value, *rest) = arguments[:takes], arguments[takes:]
        value = metered(value) if isinstance(value, Iterator) else charge(value)
        if name == "join":
            value = check_joined(value, named.get("d", rest[0] if rest else ""))
        elif name in FILTER_CHECKS:
            FILTER_CHECKS[name](value, *rest, **named)
        result = plain(*before, value, *rest, **named)
        return metered(result) if isinstance(result, Iterator) else charge(result)

    if takes:
        run.jinja_pass_arg = plain.jinja_pass_arg  # type: ignore[attr-defined]
    return run


def _metered_test(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The test with metering; three of them are `%` by another name."""

    def run(*arguments: Any, **named: Any) -> Any:
        BUDGET.get().spend()
        if name in ("odd", "even", "divisibleby"):
            check_remainder(arguments[0], (*arguments[1:], *named.values()))
        return plain(*arguments, **named)

    if hasattr(plain, "jinja_pass_arg"):
        run.jinja_pass_arg = plain.jinja_pass_arg  # type: ignore[attr-defined]
    return run


def _to_json(x: Any, ensure_ascii: bool = False, indent: Any = None, **named: Any) -> str:
    """Plain JSON; jinja2's own filter escapes for HTML."""
    known = {name: named.pop(name) for name in ("separators", "sort_keys") if name in named}
    if named:
        raise TemplateRuntimeError(f"tojson knows no {', '.join(named)}")
    check_widths([indent], max_width=16)
    if any(len(text) > 16 for text in (*(known.get("separators") or ()), indent) if isinstance(text, str)):
        refuse("text of a giant width")
    parts, left = [], MAX_CHARACTERS
    for part in json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, **known).iterencode(charge(x)):
        parts.append(part)
        left -= len(part)
        if left < 0:
            refuse("a giant text")
    return str(charge("".join(parts)))


def _raise(message: Any) -> None:
    raise TemplateRuntimeError(f"it says: {message}")


def _now(form: str) -> str:
    if len(form) > 200 or re.search(r"\d\d", form):
        refuse("a giant date")
    return datetime.now().strftime(form)


class _PlainNamespace(Namespace):
    """`namespace()` without hidden names and nested namespaces."""

    def __init__(*arguments: Any, **named: Any) -> None:  # `namespace(self=1)` is allowed
        self, *positional = arguments
        attributes = dict(*positional, **named)
        for name, value in attributes.items():
            _check_attribute(name, value)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name, value)
        Namespace.__setitem__(self, name, value)


def _check_attribute(name: Any, value: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"it hides {name!a} in a namespace")
    charge([value])


def _dict(*arguments: Any, **named: Any) -> dict[Any, Any]:
    """`dict()` without the methods of the class, which change their argument."""
    return dict(*arguments, **named)


# -- the environment --------------------------------------------------------------------------------------------------


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for training; here only its content is rendered, in a scope
    of its own."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it so

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _MeteringTransformer(NodeTransformer):
    """Meters everything that can repeat, grow or take time: loops, comparisons, output, lists. Refuses a template with
    too many syntax nodes before it is compiled."""

    def __init__(self) -> None:
        self.parts = 0

    def visit(self, node: nodes.Node, *arguments: Any, **named: Any) -> Any:
        self.parts += 1
        if self.parts > MAX_PARTS:
            raise TooMuchError(f"it has more than {MAX_PARTS:,} parts")
        return super().visit(node, *arguments, **named)

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        tick = _filter_node(nodes.Const(None, lineno=node.lineno), "timed")
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        if node.test is not None:
            node.test = _filter_node(node.test, "timed")
        return node

    def _timed(self, node: Any) -> nodes.Expr:
        self.generic_visit(node)
        is_look_up = isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice)
        return node if is_look_up or getattr(node, "ctx", "load") != "load" else _filter_node(node, "timed")

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filter_node(self._text(part), "written") for part in node.nodes]
        return node

    @staticmethod
    def _text(part: nodes.Expr) -> nodes.Expr:
        return nodes.Const(part.data, lineno=part.lineno) if isinstance(part, nodes.TemplateData) else part

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filter_node(nodes.List(node.nodes, lineno=node.lineno), "joined")

    def _weighed(self, node: Any) -> nodes.Expr:
        self.generic_visit(node)
        return _filter_node(node, "weighed") if getattr(node, "ctx", "load") == "load" else node

    def _refused(self, node: Any) -> Any:
        raise SecurityError(f"line {node.lineno} asks for another file")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refused  # noqa: N815
    visit_Compare = visit_Getitem = _timed  # noqa: N815
    visit_List = visit_Tuple = visit_Dict = _weighed  # noqa: N815


def _filter_node(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context  # with the context, jinja2 does not evaluate these at compile time
def _time(context: Any, value: Any) -> Any:
    BUDGET.get().spend()
    return value


@pass_context
def _write(context: Any, value: Any) -> str:
    text = str(charge(value))
    BUDGET.get().spend(1, len(text))
    return text


@pass_context
def _join(context: Any, parts: list[Any]) -> str:
    return str(charge("".join(map(str, charge(parts)))))


@pass_context
def _charge_value(context: Any, value: Any) -> Any:
    return charge(value)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment in which chat templates are rendered."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters = {name: _metered_filter(name, self.filters[name]) for name in FILTERS}
        self.tests = {name: _metered_test(name, plain) for name, plain in self.tests.items()}
        own = {"timed": _time, "written": _write, "joined": _join, "weighed": _charge_value, "tojson": _to_json}
        self.filters.update(own)
        default_globals = {name: self.globals[name] for name in ("range", "cycler", "joiner")}
        self.globals.clear()
        own_globals: Any = {
            "namespace": _PlainNamespace,
            "dict": _dict,
            "raise_exception": _raise,
            "strftime_now": _now,
        }
        self.globals.update(default_globals | own_globals)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _MeteringTransformer().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """A binary operator; those that can create large values are checked first."""
        BUDGET.get().spend()
        if operator in OPERATOR_CHECKS:
            OPERATOR_CHECKS[operator](left, right)
        return charge(super().call_binop(context, operator, left, right))

    def call(self, context: Any, called: Any, *arguments: Any, **named: Any) -> Any:  # type: ignore[override]
        """A call of a function, a macro or a method."""
        BUDGET.get().spend()
        owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
        if isinstance(owner, int | float | bytes):
            refuse(f"bytes, or text by {name}()")
        if isinstance(owner, str):
            arguments_by_name = {key: value for key, value in named.items() if key not in ("_loop_vars", "_block_vars")}
            arguments = check_method(owner, name, arguments, arguments_by_name)
        return charge(super().call(context, called, *arguments, **named))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An attribute; filters that take the name of an attribute call this for each item."""
        BUDGET.get().spend(0)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item, metered as in `getattr`."""
        BUDGET.get().spend(0)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format` as the sandbox allows it, without huge widths."""
        plain = super().wrap_str_format(value)
        if plain is None:
            return None

        def run(*arguments: Any, **named: Any) -> Any:
            check_format(value.__self__, *arguments, *named.values())
            check_widths([*arguments, *named.values()])
            return plain(*arguments, **named)

        return run
