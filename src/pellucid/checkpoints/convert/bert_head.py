"""Matches the steps after BERT's last layer, and finds which of the reference's models has them."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from pellucid.checkpoints.convert.bert_inside import activation_of, apply_activation
from pellucid.checkpoints.convert.graph import printable
from pellucid.checkpoints.convert.match_state import Body
from pellucid.checkpoints.convert.probe import ROUNDING_TOLERANCE
from pellucid.checkpoints.convert.steps import PASSING_STEP_ON, Linear, Norm, Step
from pellucid.errors import CheckpointMismatchError

log = logging.getLogger("pellucid")

PLAIN = "BertModel"
_WITH_NEXT_SENTENCE = ("BertForNextSentencePrediction", "BertForPreTraining")

_FINAL = ("cls.predictions.decoder", "cls.seq_relationship", "classifier", "qa_outputs")
"""Steps whose results are outputs of the graph."""

_STATES, _FIRST = "the states of the last layer", "the first token's state of the last layer"


def read_head(body: Body, facts: dict[str, Any], architecture: str) -> str:
    """Matches every step after the last layer and returns the architecture.

    facts: of config.json: hidden_act.
    architecture: according to config.json; used only to choose between models that share the same graph.
    """
    unassigned = [step for step in body.steps.by_output.values() if step not in body.assigned.values()]
    rest = [step for step in unassigned if isinstance(step, Linear | Norm)]
    before = {step: body.steps.steps_before(*step.inputs) for step in rest}
    found = next(
        ((step, end) for step in rest if before[step] == [body.last_norm] and (end := _tanh_output(body, step))),
        None,
    )
    pooler, pooled = found or (None, "")
    if pooler is not None:
        body.run.check_input(pooler, _first_token_state(body), "pooler.dense", _FIRST)
        body.add_weights(pooler, "pooler.dense")
    has_masked_head = _assign_masked_head(body, rest, before, facts)
    others = [step for step in rest if step not in body.assigned.values()]
    inferred = PLAIN
    for step in others:
        inferred = _assign_classifier(body, step, before[step], pooler, pooled, architecture)
    if has_masked_head:
        inferred = "BertForPreTraining" if pooler else "BertForMaskedLM"
    _check_outputs(body, pooled, inferred)
    return inferred


def _last_state(body: Body) -> Tensor:
    """The hidden states of the last layer, `[texts, tokens, width]`."""
    return body.run.state_of(body.last_norm)


def _first_token_state(body: Body) -> Tensor:
    return _last_state(body)[:, 0]


def _tanh_output(body: Body, step: Step) -> str:
    """The output of a tanh directly after a linear layer, as in the pooler; "" where there is none."""
    if not isinstance(step, Linear):
        return ""
    if activation_of(step.node) == "Tanh":
        return step.output
    after = body.steps.graph.only_consumer(step.output, (*PASSING_STEP_ON, "Tanh"))
    while after is not None and after.op_type != "Tanh":
        after = body.steps.graph.only_consumer(after.outputs[0], (*PASSING_STEP_ON, "Tanh"))
    return after.outputs[0] if after else ""


def _assign_masked_head(
    body: Body, rest: Sequence[Linear | Norm], before: Mapping[Linear | Norm, list[Step]], facts: dict[str, Any]
) -> bool:
    """Matches the masked-LM head: a linear layer, a norm, and a linear layer over the vocabulary."""
    norm = next((step for step in rest if isinstance(step, Norm)), None)
    if norm is None:
        return False
    after = [step for step in rest if before[step] == [norm]]
    match before[norm], after:
        case [Linear() as transform], [Linear() as decoder] if before[transform] == [body.last_norm]:
            name = "cls.predictions.transform"
            body.run.check_input(transform, _last_state(body), f"{name}.dense", _STATES)
            activated = apply_activation(body, transform, norm.inputs[0], facts)
            body.run.check_input(
                norm,
                activated,
                f"{name}.LayerNorm",
                "the activation of the product before",
                tolerance=ROUNDING_TOLERANCE,
            )
            body.run.check_input(decoder, body.run.state_of(norm), "cls.predictions.decoder", "the norm before")
            body.add_weights(transform, "cls.predictions.transform.dense")
            body.add_weights(norm, "cls.predictions.transform.LayerNorm")
            body.add_weights(decoder, "cls.predictions.decoder")
        case _:
            raise body.steps.not_bert_error(f"a norm follows the last layer ({norm.node}) and no head of BERT has that")
    body.tables["cls.predictions.bias"] = body.tables.pop("cls.predictions.decoder.bias")
    return True


def _assign_classifier(
    body: Body, step: Linear | Norm, before: list[Step], pooler: Step | None, pooled: str, architecture: str
) -> str:
    """Matches a classifier over every token, or over the pooled first one, and returns its architecture."""
    if pooler is not None and before == [pooler] and isinstance(step, Linear):
        name = "cls.seq_relationship" if architecture in _WITH_NEXT_SENTENCE else "classifier"
        body.run.check_input(step, body.run.value_of(pooled, name), name, "the pooled first token")
        body.add_weights(step, name)
        if architecture in _WITH_NEXT_SENTENCE:
            return _WITH_NEXT_SENTENCE[0]
        is_multiple_choice = architecture == "BertForMultipleChoice"
        return architecture if is_multiple_choice else "BertForSequenceClassification"
    if before == [body.last_norm] and isinstance(step, Linear):
        body.run.check_input(step, _last_state(body), "the classifier (a product for every token)", _STATES)
        is_span_head = step.weight.shape[0] == 2 and _is_split(body, step)
        name = "qa_outputs" if is_span_head else "classifier"
        body.add_weights(step, name)
        return "BertForQuestionAnswering" if is_span_head else "BertForTokenClassification"
    raise body.steps.not_bert_error(f"{step.node} follows the last layer and belongs to no head of BERT that is known")


def _is_split(body: Body, step: Linear) -> bool:
    """Whether the two columns become separate outputs, as start and end of an answer do."""
    outputs = [name for name in body.steps.graph.outputs if body.steps.steps_before(name) == [step]]
    sizes = [body.run.value_of(name, f"the output {printable(name)}").numel() for name in outputs]
    return sizes.count(body.run.state_of(step).numel() // 2) >= 2


class _KnownOutput(NamedTuple):
    """Values that may be an output of the graph.  source: the step or value they come from.  what: for a message.
    column: 0 for the start of an answer, 1 for its end."""

    numbers: Tensor
    source: str
    what: str
    column: int | None = None


def _known_outputs(body: Body, heads: Sequence[Linear], pooled: str, inferred: str) -> Iterator[_KnownOutput]:
    """All values that BERT computes, those of its heads first."""
    run = body.run
    for step in heads:
        numbers = run.state_of(step)
        yield _KnownOutput(numbers, step.output, str(step.node))
        if inferred == "BertForQuestionAnswering":
            yield from (_KnownOutput(numbers[..., i], step.output, f"column {i} of {step.node}", i) for i in range(2))
    yield _KnownOutput(_last_state(body), body.last_norm.output, _STATES)
    yield _KnownOutput(_first_token_state(body), body.last_norm.output, _FIRST)
    if pooled:
        yield _KnownOutput(run.value_of(pooled, pooled), pooled, printable(pooled))
    yield from (
        _KnownOutput(run.state_of(step), step.output, str(step.node))
        for step in body.assigned.values()
        if isinstance(step, Norm)
    )


def _check_outputs(body: Body, pooled: str, inferred: str) -> None:
    """Checks that only shape or type changes after the last steps: no softmax and no scale."""
    heads = [step for name, step in body.assigned.items() if name in _FINAL and isinstance(step, Linear)]
    known = list(_known_outputs(body, heads, pooled, inferred))
    matched, columns, unmatched = set[str](), [], list[tuple[str, CheckpointMismatchError]]()
    for name in body.steps.graph.outputs:
        if not body.steps.steps_before(name):
            continue
        try:
            found = _matching_output(body, name, known)
        except CheckpointMismatchError as error:
            unmatched.append((name, error))
        else:
            matched.add(found.source)
            columns += [] if found.column is None else [(name, found.column)]
    if unmatched and (inferred != PLAIN or body.last_norm.output not in matched):
        raise unmatched[0][1]
    for name, _ in unmatched:
        log.warning("%s: its output %s is not part of BERT; left out", body.steps.graph.path.name, printable(name))
    if columns and [column for _, column in columns] != [0, 1]:
        raise body.steps.not_bert_error(
            f"its outputs {' and '.join(printable(name) for name, _ in columns)} are no start and end"
        )
    if missing := [step for step in heads if step.output not in matched]:
        raise body.steps.not_bert_error(f"no output is what {missing[0].node} makes")


def _matching_output(body: Body, name: str, known: Sequence[_KnownOutput]) -> _KnownOutput:
    """The known values that an output is equal to; raises CheckpointMismatchError where there are none."""
    consumer = f"the output {printable(name)}"
    body.run.clear_computed()
    actual = body.run.value_of(name, consumer)
    candidates = [one for one in known if one.numbers.numel() == actual.numel()]
    for one in candidates:
        if body.run.matches(actual, one.numbers):
            return one
    for weights in sorted(body.attention_weights):
        body.run.clear_computed()
        if actual.dim() == 4 and body.run.matches(actual, numbers := body.run.value_of(weights, consumer)):
            return _KnownOutput(numbers, weights, printable(weights))
    closest = (candidates or known)[0]
    raise body.run.mismatch_error(actual, closest.numbers, consumer, closest.what, name)
