// host.js: a page in the frame of a notebook. It requests the text colour around it, and replies with its height.

/** Text lighter than this is on a dark background. */
const LIGHT = 0.5;

/**
 * Listens to the host of the frame; a page outside a frame has none.
 * @param {HTMLElement} root
 * @param {(theme: import("./colour.js").Theme) => void} setTheme
 */
export function connectToHost(root, setTheme) {
  if (window.parent === window) return;
  const sendHeight = () => window.parent.postMessage({ height: Math.ceil(root.getBoundingClientRect().height) }, "*");
  let last;
  window.addEventListener("message", (event) => {
    const ink = event.source === window.parent && event.data?.ink;
    if (typeof ink !== "string" || ink === last) return;
    if (last === undefined) new ResizeObserver(sendHeight).observe(root);
    last = ink;
    root.dataset.host = "";
    setTheme(lightness(ink) > LIGHT ? "dark" : "light");
    sendHeight();
  });
  window.parent.postMessage({ asks: "ink" }, "*");
}

/** The lightness, 0 to 1, of a colour as `getComputedStyle` returns it: `rgb(r, g, b)`, whatever follows. */
export function lightness(colour) {
  const [red, green, blue] = (colour.match(/[\d.]+/g) ?? [0, 0, 0]).map(Number);
  return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255;
}
