// served.js: the page whose blocks are on a server (pellucid look --serve). The manifest is in the page; a block is
// fetched when it is first needed, from below the page's own address, which contains the access token.
import { mount } from "./app.js";
import { createSource, Problem, readManifest } from "./data.js";

/** @param {Element} root holds the manifest */
export function servedSource(root) {
  return createSource(readManifest(root.querySelector("script.pellucid-manifest")?.textContent), fetchBlock);
}

/** Fills `root` with the page, or with a message about a problem with its data. */
export function mountServed(root) {
  mount(root, servedSource);
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
