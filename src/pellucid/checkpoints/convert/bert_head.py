"""What follows BERT's last layer in a graph, and which of the reference's models has that."""

import logging
from collections.abc import Sequence
from typing import Any

from pellucid.checkpoints.convert.bert import Body
from pellucid.checkpoints.convert.bert_inside import activation_of, check_activation, check_written_out
from pellucid.checkpoints.convert.graph import Node, shown
from pellucid.checkpoints.convert.pointwise import SAME
from pellucid.checkpoints.convert.steps import Linear, Norm, Step
from pellucid.checkpoints.convert.ways import Term
from pellucid.errors import CheckpointMismatchError

log = logging.getLogger("pellucid")

PLAIN = "BertModel"
_PAIRED = ("BertForNextSentencePrediction", "BertForPreTraining")

_FINAL = tuple(
    f"{name}.weight" for name in ("cls.predictions.decoder", "cls.seq_relationship", "classifier", "qa_outputs")
)
"""The tables behind which a graph ends."""


def read_head(body: Body, facts: dict[str, Any], architecture: str) -> str:
    """Places every step after the last layer; the answer is the architecture that it makes.

    facts: of config.json: hidden_act.
    architecture: what config.json says; it decides only between models that the graph cannot tell apart.
    """
    rest = [step for step in body.steps.by_output.values() if step not in body.used and isinstance(step, Linear | Norm)]
    before = {id(step): body.steps.before(*step.inputs) for step in rest}
    found = next(((step, end) for step in rest if before[id(step)] == [body.last] and (end := _tanh(body, step))), None)
    pooler, pooled = found or (None, "")
    if pooler is not None:
        body.ways.same(pooler.inputs, [Term(_last(body), first=True)], "pooler.dense")
        body.ways.end(pooled)
        body.place(pooler, "pooler.dense")
    lexical = _masked_words(body, rest, before, facts)
    others = [step for step in rest if step not in body.used]
    named = PLAIN
    for step in others:
        named = _classifier(body, step, before[id(step)], pooler, pooled, architecture)
    if lexical:
        named = "BertForPreTraining" if pooler else "BertForMaskedLM"
    _check_outputs(body, rest, pooled, named)
    return named


def _last(body: Body) -> str:
    return body.last.output if body.last else ""


def _tanh(body: Body, step: Step) -> str:
    """What a tanh makes of the result, where that goes straight into one as the pooled first token does."""
    if not isinstance(step, Linear):
        return ""
    if activation_of(step.node) == "Tanh":
        return step.output
    after = body.steps.graph.reader(step.output, ["Tanh"])
    return after.outputs[0] if after else ""


def _masked_words(
    body: Body, rest: Sequence[Linear | Norm], before: dict[int, list[Step]], facts: dict[str, Any]
) -> bool:
    """The head that guesses hidden words: a product, a norm, and a product as wide as the vocabulary."""
    norm = next((step for step in rest if isinstance(step, Norm)), None)
    if norm is None:
        return False
    after = [step for step in rest if before[id(step)] == [norm]]
    match before[id(norm)], after:
        case [Linear() as transform], [Linear() as decoder] if before[id(transform)] == [body.last]:
            body.ways.same(transform.inputs, [Term(_last(body))], "cls.predictions.transform.dense")
            check_activation(body, transform, norm.inputs[0], facts)
            check_written_out(body.ways, norm, "cls.predictions.transform.LayerNorm")
            body.ways.same(decoder.inputs, [Term(norm.output)], "cls.predictions.decoder")
            body.place(transform, "cls.predictions.transform.dense")
            body.place(norm, "cls.predictions.transform.LayerNorm")
            body.place(decoder, "cls.predictions.decoder")
        case _:
            raise body.wrong(f"a norm follows the last layer ({norm.node}) and no head of BERT has that")
    body.tables["cls.predictions.bias"] = body.tables.pop("cls.predictions.decoder.bias")
    return True


def _classifier(
    body: Body, step: Linear | Norm, before: list[Step], pooler: Step | None, pooled: str, architecture: str
) -> str:
    """A product for every token, or for the pooled first one."""
    if pooler is not None and before == [pooler] and isinstance(step, Linear):
        name = "cls.seq_relationship" if architecture in _PAIRED else "classifier"
        body.ways.same(step.inputs, [Term(pooled)], name)
        body.place(step, name)
        if architecture in _PAIRED:
            return _PAIRED[0]
        several = architecture == "BertForMultipleChoice"
        return architecture if several else "BertForSequenceClassification"
    if before == [body.last] and isinstance(step, Linear):
        spans = step.weight.shape[0] == 2 and _is_cut(body, step)
        name = "qa_outputs" if spans else "classifier"
        body.ways.same(step.inputs, [Term(_last(body))], f"{name} (a product for every token)")
        body.place(step, name)
        return "BertForQuestionAnswering" if spans else "BertForTokenClassification"
    raise body.wrong(f"{step.node} follows the last layer and belongs to no head of BERT that is known")


def _is_cut(body: Body, step: Linear) -> bool:
    """Whether the two columns leave the graph one by one, as beginning and end of an answer do."""
    ways = [body.steps.before(name) == [step] for name in body.steps.graph.outputs]
    nodes = [found for name in body.steps.graph.outputs for found in body.steps.back(name) if isinstance(found, Node)]
    return sum(ways) == 2 or any(node.kind == "Split" for node in nodes)


def _check_outputs(body: Body, rest: Sequence[Linear | Norm], pooled: str, named: str) -> None:
    """Behind the last steps nothing may stand but what changes shape or type: neither a softmax nor a scale."""
    final = [id(body.tables[name]) for name in _FINAL if name in body.tables]
    heads = {step.output for step in rest if id(step.weight) in final}
    states = {step.output for step in body.used if isinstance(step, Norm)} | {pooled}
    told, columns, left = set[str](), [], list[tuple[str, CheckpointMismatchError]]()
    for name in body.steps.graph.outputs:
        if name not in body.ways.carried:
            continue
        value, column = _column(body, name) if named == "BertForQuestionAnswering" else (name, None)
        columns += [] if column is None else [(name, column)]
        where = f"the output {shown(name)}"
        try:
            found = set(body.ways.terms(value, where))
            if len(found) != 1 or not {term.value for term in found} <= heads | states | body.ways.weights:
                body.ways.same([value], [Term(next(iter(heads or {_last(body)})))], where)
            body.ways.same([value], [Term(next(iter(found)).value)], where)
            told |= {term.value for term in found}
        except CheckpointMismatchError as error:
            left.append((name, error))
    if left and (named != PLAIN or _last(body) not in told):
        raise left[0][1]
    for name, _ in left:
        log.warning("%s: its output %s is no part of BERT; left out", body.steps.graph.path.name, shown(name))
    if columns and [column for _, column in columns] != [0, 1]:
        raise body.wrong(f"its outputs {' and '.join(shown(name) for name, _ in columns)} are no start and end")
    if missing := heads - told:
        raise body.wrong(f"no output is what {body.steps.by_output[min(missing)].node} makes")


def _column(body: Body, name: str) -> tuple[str, int | None]:
    """The value of which an output is one column, and which; None where it is all of them."""
    value, node = name, body.steps.graph.makers.get(name)
    while node is not None and node.kind in (*SAME, "Cast"):
        value, node = node.input(0), body.steps.graph.makers.get(node.input(0))
    constants = body.steps.constants
    if node is not None and node.kind == "Split" and node.settings.get("axis", 0) in (-1, 2):
        return node.input(0), node.outputs.index(value)
    if node is not None and node.kind == "Gather" and node.settings.get("axis", 0) in (-1, 2):
        place = constants.number(node.input(1))
        return node.input(0), None if place is None else int(place) % 2
    if node is not None and node.kind == "Slice" and constants.number(node.input(3)) in (-1, 2):
        start, end = constants.number(node.input(1)), constants.number(node.input(2))
        if (start, end) == (0, 1) or (start == 1 and end is not None and end >= 2):
            return node.input(0), 0 if start == 0 else 1
    return name, None
