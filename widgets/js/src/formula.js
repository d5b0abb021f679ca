// Typeset LaTeX whose scopes carry their paths as `data-p`.
import katex from "katex";
import { h } from "./dom.js";

/** More LaTeX than this takes a browser too long: the text form is shown instead. */
export const LONGEST = 30_000;

const OPTIONS = {
  displayMode: true,
  fleqn: true,
  strict: false,
  throwOnError: false,
  output: "htmlAndMathml",
  trust: (context) => context.command === "\\htmlData",
};

/** A box with *shown.latex* typeset, or with *shown.text* where that is too long. */
export function formula(shown, className = "") {
  const box = h(`div.ein-formula${className ? `.${className}` : ""}`);
  if (shown.latex.length > LONGEST) {
    box.append(h("p.ein-faint", {}, "Too long to typeset; this is the text form."), h("pre", {}, shown.text ?? shown.latex));
  } else {
    box.innerHTML = katex.renderToString(shown.latex, OPTIONS);
    for (const broken of box.querySelectorAll(".katex-error")) broken.replaceWith(h("pre", {}, shown.text ?? shown.latex));
  }
  mark(box, shown.marks);
  return box;
}

/** Inline mathematics, for laws. */
export function inline(latex) {
  const box = h("span.ein-inline");
  box.innerHTML = katex.renderToString(latex, { ...OPTIONS, displayMode: false, fleqn: false });
  return box;
}

/** The element of the scope at *path*. */
export function at(box, path) {
  return path ? box.querySelector(`[data-p="${path}"]`) : null;
}

const INK = ".mord, .mop, .mopen, .mclose, .mbin, .mrel, .mpunct, .delimsizing, .delimsizinginner, svg";

/** A frame around what *element* draws, which is more than its line box: limits, large braces. */
export function frame(box, element, className) {
  const holder = box.querySelector(".ein-formula") ?? box;
  holder.querySelector(`:scope > .${className}`)?.remove();
  if (!element) return;
  const inked = [...element.querySelectorAll(INK)].filter((part) => !part.querySelector(INK)).map((part) => part.getBoundingClientRect());
  const shown = inked.filter((r) => r.width && r.height);
  if (!shown.length) return;
  const around = holder.getBoundingClientRect();
  const left = Math.min(...shown.map((r) => r.left)) - around.left + holder.scrollLeft - 2;
  const top = Math.min(...shown.map((r) => r.top)) - around.top + holder.scrollTop - 1;
  const width = Math.max(...shown.map((r) => r.right)) - around.left + holder.scrollLeft + 2 - left;
  const height = Math.max(...shown.map((r) => r.bottom)) - around.top + holder.scrollTop + 1 - top;
  const made = document.createElement("div");
  made.className = className;
  Object.assign(made.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  holder.append(made);
}

/** Mark the scopes named in *marks* (path → `old` or `new`), and no others. */
export function mark(box, marks) {
  for (const marked of box.querySelectorAll("[data-mark]")) delete marked.dataset.mark;
  for (const [path, kind] of Object.entries(marks ?? {})) {
    const found = at(box, path);
    if (found) found.dataset.mark = kind;
  }
}

/** The path that the arrow key *key* leads to from *path*; *paths* are all that there are. */
export function walk(paths, path, key) {
  if (!paths.length) return path;
  if (!paths.includes(path)) return paths[0];
  const parent = path.split(".").slice(0, -1).join(".");
  const siblings = paths.filter((p) => p.split(".").slice(0, -1).join(".") === parent);
  const here = siblings.indexOf(path);
  switch (key) {
    case "ArrowUp":
      return paths.includes(parent) ? parent : path;
    case "ArrowDown":
      return paths.find((p) => p.split(".").slice(0, -1).join(".") === path) ?? path;
    case "ArrowRight":
      return siblings[(here + 1) % siblings.length];
    case "ArrowLeft":
      return siblings[(here + siblings.length - 1) % siblings.length];
    default:
      return path;
  }
}
