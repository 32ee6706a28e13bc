// dom.js: creates all elements of the page, and scrolls to them.
// Text always becomes a text node, so a token can never become markup.

/** The margin below a line, or beside a cell, that is scrolled into view, in pixels. */
const MARGIN = 24;

/**
 * make("button", {class: "chip", onclick: press}, "8") builds one element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [attributes] "on…" are listeners, true is an attribute without value, false or null is left out
 * @param {...(Node|string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/**
 * A button without a frame.
 * @param {string} text
 * @param {(event: MouseEvent) => void} onclick
 * @param {Record<string, any>} [attributes]
 */
export function button(text, onclick, attributes = {}) {
  return make("button", { type: "button", class: "plain", onclick, ...attributes }, text);
}

/**
 * Sets an attribute only when it changes, so that redrawing the same picture costs nothing.
 * @param {Element} element
 * @param {string} name
 * @param {string|number|boolean|null} value null removes it
 */
export function setAttribute(element, name, value) {
  const spoken = name.startsWith("aria-"); // ARIA attributes are "true" or "false", others are present or absent
  const text = value === true && !spoken ? "" : String(value);
  if (value === null || (value === false && !spoken)) element.removeAttribute(name);
  else if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/**
 * Keeps only some elements of a long list, in list order, in which they are read aloud and copied.
 * @param {Element} list
 * @param {Map<number, HTMLElement>} present the present elements by index
 * @param {Iterable<number>} wanted
 * @param {(index: number) => HTMLElement} create
 * @param {Element} [previous] the element before all of them
 */
export function syncChildren(list, present, wanted, create, previous) {
  const kept = new Set(wanted);
  for (const [index, element] of present) if (!kept.has(index)) present.delete(index), element.remove();
  for (const index of kept) {
    const element = present.get(index) ?? create(index);
    if (!present.has(index)) list.insertBefore(element, previous ? previous.nextSibling : list.firstChild);
    present.set(index, element);
    previous = element;
  }
}

/**
 * Scrolls a list or a sheet just far enough to show a box in it.
 * @param {Element} scroller
 * @param {{top: number, bottom: number, left?: number, right?: number}} box in pixels of the scrolled content
 */
export function scrollToBox(scroller, { top, bottom, left, right }) {
  const { scrollTop, scrollLeft, clientHeight, clientWidth } = scroller;
  if (top < scrollTop) scroller.scrollTop = top;
  if (bottom > scrollTop + clientHeight) scroller.scrollTop = bottom - clientHeight;
  if (left < scrollLeft) scroller.scrollLeft = left;
  if (right > scrollLeft + clientWidth) scroller.scrollLeft = right - clientWidth;
}

/**
 * Scrolls the page itself where a line of a scroller is below the window, or behind the readout, which
 * stays at the top; in a notebook it does not scroll.
 * @param {Element} scroller
 * @param {number} from pixels from the top of the scrolled content to the upper edge of the line
 * @param {number} to and to its lower edge
 */
export function scrollPageTo(scroller, from, to) {
  if (scroller.closest("[data-host]")) return;
  const top = scroller.getBoundingClientRect().top - scroller.scrollTop;
  const above = top + from - (Number.parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0);
  const below = top + to - window.innerHeight;
  if (below > 0) window.scrollBy(0, Math.min(below + MARGIN, Math.max(0, above)));
  else if (above < 0) window.scrollBy(0, above);
}

/**
 * The same for a cell of a plot, also horizontally in the plot's scroller.
 * @param {Element} plot
 * @param {{left: number, top: number, width: number, height: number}} cell in pixels from the corner of the plot
 */
export function scrollPageToCell(plot, { left, top, width, height }) {
  const scroller = plot.closest(".matrix, .tensor-scroll");
  const before = plot.getBoundingClientRect().left + left - scroller.getBoundingClientRect().left;
  const after = before + width - scroller.clientWidth;
  if (before < 0) scroller.scrollLeft += before - MARGIN;
  else if (after > 0) scroller.scrollLeft += after + MARGIN;
  scrollPageTo(plot, top, top + height);
}

/**
 * Sizes a canvas in screen pixels and returns its context, scaled to page pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
export function prepareCanvas(canvas, width, height) {
  const density = window.devicePixelRatio || 1;
  const [columns, rows] = [Math.round(width * density), Math.round(height * density)];
  if (canvas.width !== columns) canvas.width = columns;
  if (canvas.height !== rows) canvas.height = rows;
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
