// search.js: finds a token by its text and goes to it.
import { make, setAttribute } from "./dom.js";
import { openDialog } from "./dialogs.js";
import { searchKey, tokenText, visible } from "./tokens.js";

/** The most tokens that are listed. */
const MAX_LISTED = 50;

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
  /** @param {import("./data.js").Token[]|null} [own] those of a view with a selected token of its own; else the queries */
  constructor(root, page, own) {
    [this.page, this.tokens, this.own, this.name] = [page, own ?? page.tokens().query, Boolean(own), `pellucid-search-${(count += 1)}`];
    this.list = make("ul", { id: this.name, role: "listbox", "aria-label": "tokens found", onclick: (event) => this.goTo(event.target.closest("li")) });
    this.summary = make("p", { class: "quiet", role: "status" });
    this.input = make("input", { type: "search", role: "combobox", "aria-controls": this.name, "aria-autocomplete": "list",
      "aria-label": "text or index of a token", oninput: () => this.update(), onkeydown: (event) => this.press(event) });
    this.dialog = openDialog(root, "search", make("h2", {}, "Go to a token"), this.input, this.summary, this.list);
    this.update();
    this.input.focus();
  }

  update() {
    const wanted = searchKey(this.input.value.trim());
    const fits = (index) => searchKey(visible(this.tokens[index].text)).includes(wanted) || String(index) === wanted;
    const found = [...this.tokens.keys()].filter(fits);
    const rest = found.length > MAX_LISTED ? `; the first ${MAX_LISTED} are listed` : "";
    this.summary.textContent = `${found.length} ${found.length === 1 ? "token" : "tokens"}${rest}`;
    const option = (index) => make("li", { id: `${this.name}-${index}`, role: "option", "data-index": index }, make("bdi", {}, tokenText(this.tokens, index)));
    this.list.replaceChildren(...found.slice(0, MAX_LISTED).map(option));
    this.choose(0);
  }

  choose(index) {
    const options = [...this.list.children];
    this.selectedIndex = Math.min(options.length - 1, Math.max(0, index));
    options.forEach((option, at) => setAttribute(option, "aria-selected", at === this.selectedIndex));
    setAttribute(this.input, "aria-expanded", options.length > 0);
    setAttribute(this.input, "aria-activedescendant", options[this.selectedIndex]?.id ?? null);
    options[this.selectedIndex]?.scrollIntoView({ block: "nearest" });
  }

  press(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) this.choose(this.selectedIndex + by);
    else if (event.key === "Enter") this.goTo(this.list.children[this.selectedIndex]);
    else return;
    event.preventDefault();
  }

  goTo(option) {
    if (!option) return;
    const index = Number(option.dataset.index);
    this.dialog.close();
    if (!this.own) this.page.set({ side: "query", query: index, key: null, pinned: false });
    this.page.settle();
    this.page.view().reveal("query", index);
  }
}
