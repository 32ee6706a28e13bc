// diffruns.js: the names of the two compared runs, above their differences.
import { make } from "./dom.js";
import { withoutDirectionMarks } from "./tokens.js";

/** The most characters of a text, or of all edits, that are shown; the rest is in the tooltip. */
const MAX_CHARACTERS = 400;

/** Both texts, and what distinguishes the runs. */
export function runNames({ texts, other }) {
  const alike = texts.join("|") === other.texts.join("|"); // then the header shows the texts
  const line = (name, words, label) => {
    const plain = [words, words.slice(0, -1)].some((some) => label === some.join(" | ")); // not repeating a decoder's own text
    const parts = [...(alike ? [] : words), label && !plain ? label : alike ? "unchanged" : ""].filter(Boolean).map(withoutDirectionMarks);
    return make("p", {}, make("b", {}, name), " ", ...parts.flatMap((text, at) => [at ? " / " : "", make("bdi", { title: text }, ellipsized(text))]));
  };
  return make("div", { class: "diff-runs" }, line("this run", texts, other.beside), line("the other", other.texts, other.label));
}

/** The sentence that names the other run, followed by further facts. */
export function otherRunNote({ other }, rest = "") {
  return ["The other run is “", make("bdi", {}, ellipsized(withoutDirectionMarks(other.label))), `”.${rest}`];
}

function ellipsized(text) {
  return text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS)}…` : text;
}
