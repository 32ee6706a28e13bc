"""make demo: the real attention of a real model on a real sentence, and what such models are good for."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pellucid

PAIR = ("time flies like an arrow", "fruit flies like a banana")
ALIKE = ("A man is eating food.", "A man is eating a piece of bread.")
APART = ("A man is eating food.", "The girl is carrying a baby.")
COMPANIES = Path(__file__).with_name("companies.csv")
REVIEWS = ("I've been waiting for this my whole life.", "Two hours that nobody gives me back.")
PERSON = "My name is Ada Lovelace, and I live at 12 St James's Square, London."


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Prints how long a step took."""
    started = time.perf_counter()
    yield
    print(f"  [{what}: {time.perf_counter() - started:.2f} s]\n", flush=True)


def main() -> None:
    with timed("opened"):
        model = pellucid.load("sentence-transformers/all-MiniLM-L6-v2")
        print(model)

    with timed("embedded"):
        for first, second in (ALIKE, APART):
            a, b = model.embed([first, second])
            print(f"similarity {float(a @ b):+.3f}   {first}  |  {second}")

    with timed("searched"):
        index = pellucid.Index.build(model, COMPANIES, column="name", id_column="symbol")
        for query in ("Apple", "Microsfot", "hamburgers"):
            hit = index.search(query, k=1)[0]
            print(f"{query:<12} {hit['id']:<5} {hit['text']}, {hit['metadata']['headquarters']}")

    with timed("classified"):
        classify = pellucid.pipeline("sentiment-analysis")
        for text, answer in zip(REVIEWS, classify(list(REVIEWS))):
            print(f"{answer['label']:<9} {answer['score']:.3f}   {text}")

    with timed("tagged"):
        for entity in pellucid.pipeline("ner")(PERSON):
            print(f"{entity['entity_group']:<16} {entity['score']:.3f}   {entity['word']}")

    with timed("written"):
        writer = pellucid.load("SmolLM2-135M-Instruct")
        print(writer.chat("What is the capital of France?"))

    with timed("recorded"):
        trace = model.trace(*PAIR)
        print(f"{trace}\nstrongest links between words, layer 0, head 8 (who looks at whom, and how much):")
        for source, target, weight in trace.strongest(layer=0, head=8):
            print(f"  {trace.tokens[source]:>8} -> {trace.tokens[target]:<8} {weight:.4f}")

    with timed("drawn"):
        page = pellucid.view(trace, layer=0, heads=[8]).save("demo.html")
        print(f"{page.stat().st_size / 1e6:.1f} MB, every layer and head, no network")
    print(f"Open this page in a browser:\n{Path(page).resolve()}")


if __name__ == "__main__":
    main()
