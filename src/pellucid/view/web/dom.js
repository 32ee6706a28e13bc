// dom.js: the one way in which elements are made here.
// Text always becomes a text node, so nothing that a token says can turn into markup.

/** Pixels that stay free below a line, or beside a cell, that was brought into sight. */
const AIR = 24;

/**
 * make("button", {class: "chip", onclick: press}, "8") builds one element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [attributes] "on…" are listeners, true is a bare attribute, false or null is left out
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
 * Writes an attribute only when it changes, so that drawing the same picture twice costs nothing.
 * @param {Element} element
 * @param {string} name
 * @param {string|number|boolean|null} value null removes it
 */
export function mark(element, name, value) {
  const spoken = name.startsWith("aria-"); // aria attributes say "true" and "false", others are there or not
  const text = value === true && !spoken ? "" : String(value);
  if (value === null || (value === false && !spoken)) element.removeAttribute(name);
  else if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/**
 * Keeps of a long list only some elements, in their order, since what stands in a list is read and copied in it.
 * @param {Element} list
 * @param {Map<number, HTMLElement>} there the elements by what they stand for
 * @param {Iterable<number>} wanted
 * @param {(index: number) => HTMLElement} create
 * @param {Element} [behind] what stands before all of them
 */
export function keepOnly(list, there, wanted, create, behind) {
  const kept = new Set(wanted);
  for (const [index, element] of there) if (!kept.has(index)) there.delete(index), element.remove();
  for (const index of kept) {
    const element = there.get(index) ?? create(index);
    if (!there.has(index)) list.insertBefore(element, behind ? behind.nextSibling : list.firstChild);
    there.set(index, element);
    behind = element;
  }
}

/**
 * Scrolls a list or a sheet just so far that a box in it is in sight.
 * @param {Element} scroller
 * @param {{top: number, bottom: number, left?: number, right?: number}} box pixels of what is scrolled
 */
export function bring(scroller, { top, bottom, left, right }) {
  const { scrollTop, scrollLeft, clientHeight, clientWidth } = scroller;
  if (top < scrollTop) scroller.scrollTop = top;
  if (bottom > scrollTop + clientHeight) scroller.scrollTop = bottom - clientHeight;
  if (left < scrollLeft) scroller.scrollLeft = left;
  if (right > scrollLeft + clientWidth) scroller.scrollLeft = right - clientWidth;
}

/**
 * Scrolls the page itself where a line that has its place in a scroller stands below the window, or behind the readout, which
 * stays at its top; a notebook stays.
 * @param {Element} scroller
 * @param {number} from pixels from the top of what is scrolled to the upper edge of the line
 * @param {number} to and to its lower edge
 */
export function lift(scroller, from, to) {
  if (scroller.closest("[data-host]")) return;
  const top = scroller.getBoundingClientRect().top - scroller.scrollTop;
  const above = top + from - (Number.parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) || 0);
  const below = top + to - window.innerHeight;
  if (below > 0) window.scrollBy(0, Math.min(below + AIR, Math.max(0, above)));
  else if (above < 0) window.scrollBy(0, above);
}

/**
 * The same for a cell of a plot, and sideways in what the plot is scrolled in.
 * @param {Element} plot
 * @param {{left: number, top: number, width: number, height: number}} cell pixels from the corner of the plot
 */
export function liftCell(plot, { left, top, width, height }) {
  const scroller = plot.closest(".matrix, .tensor-scroll");
  const before = plot.getBoundingClientRect().left + left - scroller.getBoundingClientRect().left;
  const behind = before + width - scroller.clientWidth;
  if (before < 0) scroller.scrollLeft += before - AIR;
  else if (behind > 0) scroller.scrollLeft += behind + AIR;
  lift(plot, top, top + height);
}

/**
 * Gives a canvas its size in screen pixels and returns a pen that counts in page pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width
 * @param {number} height
 * @returns {CanvasRenderingContext2D}
 */
export function pen(canvas, width, height) {
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
