// dom.js: the one way in which elements are made here.
// Text always becomes a text node, so nothing that a token says can turn into markup.

/** What a line and some air below it take, in pixels. */
const LINE = 44;

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
 * Scrolls the page itself where a line that has its place in a scroller stands below the window; a notebook stays.
 * @param {Element} scroller
 * @param {number} place pixels from the top of what is scrolled
 */
export function lift(scroller, place) {
  const top = scroller.getBoundingClientRect().top;
  const below = top + place - scroller.scrollTop - window.innerHeight;
  if (below > 0 && !scroller.closest("[data-host]")) window.scrollBy(0, Math.min(below + LINE, Math.max(0, top)));
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
