// header.js: the header of the page: the texts, one line about the model, and two buttons.
import { button, make } from "./dom.js";
import { openHelp } from "./dialogs.js";
import { openTable } from "./table.js";
import { withoutDirectionMarks } from "./tokens.js";

/**
 * @param {Element} root
 * @param {import("./app.js").Page} page
 * @param {() => void} switchTheme
 */
export function makeHeader(root, page, switchTheme) {
  const { texts, sequences, edits } = page.manifest;
  const last = sequences.length > 1 && texts.length - 1; // the decoder's text
  const letter = (index) => (index === last ? sequences[1].name : last === 1 ? sequences[0].name : "AB"[index]);
  const line = (text, index) => make("span", { class: "text", title: text },
    texts.length > 1 ? make("b", { class: "letter" }, letter(index)) : "", make("bdi", {}, text));
  return make("header", {},
    make("div", { class: "buttons" },
      button("table", () => openTable(root, page), { title: "show the numbers as a table" }),
      button("◐", switchTheme, { class: "plain sign", "aria-label": "light or dark theme", title: "light or dark theme" }),
      button("?", () => openHelp(root, page.views), { class: "plain sign", "aria-label": "help", title: "help" })),
    make("h1", {}, ...texts.map((text) => withoutDirectionMarks(text) || "(no text)").map(line)),
    make("p", { class: "model" }, ...aboutModel(page.manifest)),
    edits ? make("p", { class: "model edits" }, make("b", {}, "edited"), `: ${withoutDirectionMarks(edits.join("; "))}`) : "");
}

/** For example "all-MiniLM-L6-v2 · bert · 6 layers × 12 heads of 32 · 22.7 million parameters · 13 tokens". */
function aboutModel({ model, sequences }) {
  const [layers, more] = [model.num_hidden_layers, model.num_decoder_layers];
  return [
    model.name && make("bdi", {}, withoutDirectionMarks(model.name)), model.family, `${layers}${more ? ` + ${more}` : ""} ${layers === 1 && !more ? "layer" : "layers"}${headsOf(model)}`,
    model.parameters && parameters(model.parameters), sequences.map(counted).join(", "),
  ].filter(Boolean).flatMap((fact, at) => (at ? ["  ·  ", fact] : [fact]));
}

/** For example "× 12 heads of 32", or "× 6 + 2 heads" if the decoder differs; empty without a fixed number of heads. */
function headsOf({ num_attention_heads: heads, decoder_attention_heads: decoder = heads, num_key_value_heads: keys, head_dim: size }) {
  if (decoder !== heads) return ` × ${heads} + ${decoder} heads`;
  return heads ? ` × ${heads} ${heads === 1 ? "head" : "heads"}${keys < heads ? ` (${keys} key heads)` : ""}${size ? ` of ${size}` : ""}` : "";
}

/** For example "13 tokens", or in an encoder-decoder "encoder 13 tokens"; and how many were cut off. */
function counted({ name, tokens, cut }) {
  return `${name ? `${name} ` : ""}${tokens.length.toLocaleString("en")} ${tokens.length === 1 ? "token" : "tokens"}${cut ? ` (${cut.toLocaleString("en")} more were cut off)` : ""}`;
}

function parameters(count) {
  if (count >= 1e9) return `${(count / 1e9).toFixed(1)} billion parameters`;
  return count >= 1e6 ? `${(count / 1e6).toFixed(1)} million parameters` : `${count.toLocaleString("en")} parameters`;
}
