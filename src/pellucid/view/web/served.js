// served.js: the page whose blocks are on a server (pellucid look --serve). The manifest is in the page; a block is
// fetched when it is first needed, from below the page's own address, which contains the access token.
import { mount } from "./app.js";
import { createSource, Problem } from "./data.js";

/** Fills `root` with the page, or with a message about a problem with its data. */
export function mountServed(root) {
  mount(root, () => createSource(root, fetchBlock));
}

/** @param {string} name */
async function fetchBlock(name) {
  let answer;
  try {
    answer = await fetch(`block/${encodeURIComponent(name)}`, { cache: "no-store" });
  } catch {
    throw new Problem("The server of this page no longer responds: run pellucid look --serve again.");
  }
  if (!answer.ok) throw new Problem(await answer.text());
  return new Uint8Array(await answer.arrayBuffer());
}
