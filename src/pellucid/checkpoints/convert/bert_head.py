"""What follows BERT's last layer in a graph, and which of the reference's models has that."""

from collections.abc import Sequence

from pellucid.checkpoints.convert.bert import Body, activation_of
from pellucid.checkpoints.convert.graph import Node
from pellucid.checkpoints.convert.steps import Linear, Norm, Step

PLAIN = "BertModel"
_PAIRED = ("BertForNextSentencePrediction", "BertForPreTraining")


def read_head(body: Body, architecture: str) -> str:
    """Places every step after the last layer; the answer is the architecture that it makes.

    architecture: what config.json says; it decides only between models that the graph cannot tell apart.
    """
    rest = [step for step in body.steps.by_output.values() if step not in body.used and isinstance(step, Linear | Norm)]
    before = {id(step): body.steps.before(*step.inputs) for step in rest}
    pooler = next((step for step in rest if before[id(step)] == [body.last] and _through_tanh(body, step)), None)
    if pooler is not None:
        body.place(pooler, "pooler.dense")
    lexical = _masked_words(body, rest, before)
    others = [step for step in rest if step not in body.used]
    named = PLAIN
    for step in others:
        named = _classifier(body, step, before[id(step)], pooler, architecture)
    if lexical:
        return "BertForPreTraining" if pooler else "BertForMaskedLM"
    return named


def _through_tanh(body: Body, step: Step) -> bool:
    """Whether the result goes straight into a tanh, as the pooled first token does."""
    if not isinstance(step, Linear):
        return False
    return activation_of(step.node) == "Tanh" or body.steps.graph.reader(step.output, ["Tanh"]) is not None


def _masked_words(body: Body, rest: Sequence[Step], before: dict[int, list[Step]]) -> bool:
    """The head that guesses hidden words: a product, a norm, and a product as wide as the vocabulary."""
    norm = next((step for step in rest if isinstance(step, Norm)), None)
    if norm is None:
        return False
    after = [step for step in rest if before[id(step)] == [norm]]
    match before[id(norm)], after:
        case [Linear() as transform], [Linear() as decoder] if before[id(transform)] == [body.last]:
            body.place(transform, "cls.predictions.transform.dense")
            body.place(norm, "cls.predictions.transform.LayerNorm")
            body.place(decoder, "cls.predictions.decoder")
        case _:
            raise body.wrong(f"a norm follows the last layer ({norm.node}) and no head of BERT has that")
    body.tables["cls.predictions.bias"] = body.tables.pop("cls.predictions.decoder.bias")
    return True


def _classifier(body: Body, step: Linear | Norm, before: list[Step], pooler: Step | None, architecture: str) -> str:
    """A product for every token, or for the pooled first one."""
    if pooler is not None and before == [pooler] and isinstance(step, Linear):
        if architecture in _PAIRED:
            body.place(step, "cls.seq_relationship")
            return _PAIRED[0]
        body.place(step, "classifier")
        several = architecture == "BertForMultipleChoice"
        return architecture if several else "BertForSequenceClassification"
    if before == [body.last] and isinstance(step, Linear):
        spans = step.weight.shape[0] == 2 and _is_cut(body, step)
        body.place(step, "qa_outputs" if spans else "classifier")
        return "BertForQuestionAnswering" if spans else "BertForTokenClassification"
    raise body.wrong(f"{step.node} follows the last layer and belongs to no head of BERT that is known")


def _is_cut(body: Body, step: Linear) -> bool:
    """Whether the two columns leave the graph one by one, as beginning and end of an answer do."""
    ways = [body.steps.before(name) == [step] for name in body.steps.graph.outputs]
    nodes = [found for name in body.steps.graph.outputs for found in body.steps.back(name) if isinstance(found, Node)]
    return sum(ways) == 2 or any(node.kind == "Split" for node in nodes)
