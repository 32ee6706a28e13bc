// tensorlist.js: the names of all recorded tensors, with a filter.
import { make, setAttribute } from "./dom.js";

/** The most names in the list; a filter finds the others. */
const MAX_LISTED = 250;

export class TensorList {
  /**
   * @param {{name: string, block: string}[]} tensors
   * @param {(name: string) => string} size the text beside a name
   * @param {(name: string) => void} choose
   */
  constructor(tensors, size, choose) {
    [this.tensors, this.size, this.choose] = [tensors, size, choose];
    const example = tensors[tensors.length >> 1]?.name.split(".") ?? [];
    this.filter = make("input", { type: "search", placeholder: `filter: ${[example.slice(0, 2).join("."), ...example.slice(2).slice(-1)].join(" ")}`, "aria-label": "filter the tensors by name", oninput: () => this.fill(),
      onkeydown: (event) => event.key === "ArrowDown" && (event.preventDefault(), this.list.querySelector("[tabindex='0']")?.focus()) });
    this.list = make("ul", { role: "listbox", "aria-label": "recorded tensors", onclick: (event) => this.select(event.target.closest("li")),
      onkeydown: (event) => this.press(event) });
    this.left = make("p", { class: "quiet", role: "status" });
    this.element = make("div", { class: "tensor-list" }, this.filter, this.list, this.left);
    this.fill();
  }

  /** Every word of the filter must be part of the name. */
  fill() {
    const words = this.filter.value.trim().toLowerCase().split(/\s+/);
    const found = this.tensors.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
    const item = ({ name }) => make("li", { role: "option", "data-name": name, title: name, tabindex: -1 },
      make("span", {}, name), make("small", {}, this.size(name)));
    this.list.replaceChildren(...found.slice(0, MAX_LISTED).map(item));
    const rest = found.length - MAX_LISTED;
    this.left.textContent = found.length === 0 ? "no tensor has a matching name" : rest > 0 ? `and ${rest} more: filter to find them` : "";
    this.draw(this.chosen);
  }

  /** @param {string} chosen the chosen name */
  draw(chosen) {
    const moved = chosen !== this.chosen;
    this.chosen = chosen;
    const items = [...this.list.children];
    const stop = items.find((item) => item.dataset.name === chosen) ?? items[0];
    for (const item of items) {
      setAttribute(item, "aria-selected", item.dataset.name === chosen);
      setAttribute(item, "tabindex", item === stop ? 0 : -1);
    }
    if (moved && stop) this.reveal(stop);
  }

  /** Scrolls only the list, not the page. */
  reveal(item) {
    const [list, line] = [this.list, item].map((element) => element.getBoundingClientRect());
    if (line.top < list.top) this.list.scrollTop += line.top - list.top;
    if (line.bottom > list.bottom) this.list.scrollTop += line.bottom - list.bottom;
  }

  select(item) {
    if (item) this.choose(item.dataset.name);
  }

  press(event) {
    const items = [...this.list.children];
    const here = items.indexOf(event.target);
    const to = { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: items.length - 1 }[event.key];
    if (to === undefined || here < 0) return;
    event.preventDefault();
    const item = items[Math.min(items.length - 1, Math.max(0, to))];
    item.focus();
    this.select(item);
  }
}
