// search.js: finds a token by its text and goes to it.
import { make, mark } from "./dom.js";
import { openSheet } from "./dialogs.js";
import { inWords, searchKey, visible } from "./tokens.js";

/** The most tokens that are listed. */
const MOST = 50;

let count = 0;

/**
 * Opens the search, or the view's own search if it has one.
 * @param {Element} root
 * @param {import("./app.js").Page} page
 */
export function openSearch(root, page) {
  const view = page.view();
  if (view.search) view.search();
  else if (view.tokenless) root.querySelector(".readout-note").textContent = "there is no token here to search for";
  else new Search(root, page, view.searchTokens?.());
}

class Search {
  /** @param {import("./data.js").Token[]|null} [own] those of a view with an active token of its own; else the queries */
  constructor(root, page, own) {
    [this.page, this.tokens, this.own, this.name] = [page, own ?? page.tokens().query, Boolean(own), `pellucid-search-${(count += 1)}`];
    this.list = make("ul", { id: this.name, role: "listbox", "aria-label": "tokens found", onclick: (event) => this.take(event.target.closest("li")) });
    this.summary = make("p", { class: "quiet", role: "status" });
    this.input = make("input", { type: "search", role: "combobox", "aria-controls": this.name, "aria-autocomplete": "list",
      "aria-label": "text or index of a token", oninput: () => this.look(), onkeydown: (event) => this.press(event) });
    this.dialog = openSheet(root, "search", make("h2", {}, "Go to a token"), this.input, this.summary, this.list);
    this.look();
    this.input.focus();
  }

  look() {
    const wanted = searchKey(this.input.value.trim());
    const fits = (index) => searchKey(visible(this.tokens[index].text)).includes(wanted) || String(index) === wanted;
    const found = [...this.tokens.keys()].filter(fits);
    const rest = found.length > MOST ? `; the first ${MOST} are listed` : "";
    this.summary.textContent = `${found.length} ${found.length === 1 ? "token" : "tokens"}${rest}`;
    const option = (index) => make("li", { id: `${this.name}-${index}`, role: "option", "data-index": index }, make("bdi", {}, inWords(this.tokens, index)));
    this.list.replaceChildren(...found.slice(0, MOST).map(option));
    this.choose(0);
  }

  choose(place) {
    const options = [...this.list.children];
    this.place = Math.min(options.length - 1, Math.max(0, place));
    options.forEach((option, at) => mark(option, "aria-selected", at === this.place));
    mark(this.input, "aria-expanded", options.length > 0);
    mark(this.input, "aria-activedescendant", options[this.place]?.id ?? null);
    options[this.place]?.scrollIntoView({ block: "nearest" });
  }

  press(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) this.choose(this.place + by);
    else if (event.key === "Enter") this.take(this.list.children[this.place]);
    else return;
    event.preventDefault();
  }

  take(option) {
    if (!option) return;
    const index = Number(option.dataset.index);
    this.dialog.close();
    if (!this.own) this.page.set({ side: "query", query: index, key: null, pinned: false });
    this.page.settle();
    this.page.view().reveal("query", index);
  }
}
