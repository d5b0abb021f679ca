// Typeset programs: tokens that can be pointed at (`data-t`), and lines that end at operators and scopes.
import katex from "katex";
import { h } from "./dom.js";

/** More LaTeX than this takes a browser too long: the text form is shown instead. */
export const LONGEST = 30_000;

/** Indentation of each open bracket, and the room for each bracket that has to be closed, in sizes of the font. */
const INDENT = 1.2;
const CLOSING = 0.4;

/** Names of equations that take more of the width than this stand on a line of their own. */
const WIDEST_NAME = 0.25;

/** KaTeX sets no space between a relation and a token. */
const EQUALS = "\\;{=}\\;";

const OPTIONS = {
  displayMode: true,
  fleqn: true,
  strict: false,
  throwOnError: false,
  output: "htmlAndMathml",
  trust: (context) => context.command === "\\htmlData",
};

/** The marks that Python prints (`einnet_explore/syntax/latex_printer.py`): brackets and breaks, and tokens. */
const MARK = /(\x01|\x02|\x03|\x06|\x04[^\x05]*\x05)/;
const LEAF = /\x04[^\x05]*\x05[^\x04\x06]*\x06/g;

/** A box with *shown.latex* typeset, or with *shown.text* where that is too long; it breaks its lines to its width. */
export function formula(shown, className = "") {
  const box = h(`div.ein-formula${className ? `.${className}` : ""}`);
  if (shown.latex.replace(/\x04[^\x05]*\x05|[\x01-\x06]/g, "").length > LONGEST) {
    box.append(h("p.ein-faint", {}, "Too long to typeset; this is the text form."), h("pre", {}, shown.text ?? shown.latex));
  } else if (!MARK.test(shown.latex)) {
    box.innerHTML = katex.renderToString(shown.latex, OPTIONS);
  } else {
    let leaves = 0;
    const equations = shown.latex.split("\n").map((line) => {
      const made = equation(line, leaves);
      leaves += line.match(LEAF)?.length ?? 0;
      return made;
    });
    box.append(...equations.map((each) => each.element));
    box.marks = shown.marks;
    follow(box, equations);
  }
  for (const broken of box.querySelectorAll(".katex-error")) broken.replaceWith(h("pre", {}, shown.text ?? shown.latex));
  mark(box, shown.marks);
  return box;
}

/** Inline mathematics, for laws. */
export function inline(latex) {
  const box = h("span.ein-inline");
  box.innerHTML = katex.renderToString(latex, { ...OPTIONS, displayMode: false, fleqn: false });
  return box;
}

/** Lay out *equations* in *box* whenever its width or the fonts change. */
function follow(box, equations) {
  let last = "";
  const lay = () => {
    const now = `${box.clientWidth} ${document.fonts?.status}`;
    if (!box.clientWidth || now === last) return;
    last = now;
    const names = equations.map((each) => each.name.getBoundingClientRect().width);
    const column = Math.max(0, ...names.filter((wide) => wide <= WIDEST_NAME * box.clientWidth));
    equations.forEach((each, n) => each.lay(box.clientWidth, names[n] <= column ? column : 0));
    mark(box, box.marks);
    box.dispatchEvent(new Event("layout", { bubbles: true }));
  };
  new ResizeObserver(lay).observe(box);
  document.fonts?.ready.then(lay);
}

/** The element of one equation, whose first leaf has number *leaf*; `lay(wide, column)` breaks it into rows. */
function equation(line, leaf) {
  const end = line.indexOf("\x06") + 1;
  const items = parse(line.slice(end).replace(" = ", "").replaceAll("\\qquad \x02", "\x02\\qquad "), leaf + 1);
  const name = h("span.ein-name");
  name.innerHTML = katex.renderToString(tex(parse(line.slice(0, end), leaf)), { ...OPTIONS, displayMode: false });
  const rows = h("div.ein-rows");
  const root = tree(items);
  const whole = `${EQUALS}${tex(items, 0, items.length, true)}\\htmlData{b=${items.marks}}{}`;
  rows.append(row(whole, 0));
  let places = null;
  let fonts = "";
  let breaks = "";
  const element = h("div.ein-equation", {}, name, rows);

  function measure() {
    if (breaks) rows.replaceChildren(row(whole, 0));
    breaks = "";
    const left = rows.getBoundingClientRect().left;
    places = [0, ...[...rows.querySelectorAll("[data-b]")].map((mark) => mark.getBoundingClientRect().left - left)];
  }

  function lay(wide, column) {
    name.style.minWidth = column ? `${column}px` : "";
    element.classList.toggle("stacked", !column);
    if (!places || fonts !== document.fonts?.status) measure();
    fonts = document.fonts?.status;
    const size = parseFloat(getComputedStyle(rows.querySelector(".katex") ?? rows).fontSize);
    const lines = fill(root, places, wide - column - 8, size);
    const now = JSON.stringify(lines);
    if (now === breaks) return;
    breaks = now;
    if (lines.length === 1) rows.replaceChildren(row(whole, 0));
    else rows.replaceChildren(...lines.map(({ from, indent }, n) => row(`${n ? "{}" : EQUALS}${tex(items, items.place(from), items.place(lines[n + 1]?.from)).replace(/^\\qquad /, "")}`, indent)));
  }

  return { element, name, lay };
}

function row(shown, indent) {
  const made = h("div.ein-row", { style: `padding-left:${INDENT * indent}em` });
  made.innerHTML = katex.renderToString(shown, OPTIONS);
  return made;
}

/** The parts of *line*: TeX, starts and ends of tokens, and marks, numbered from 1; leaves are numbered from *leaf* on. */
function parse(line, leaf) {
  const items = [];
  const marks = [0];
  const parts = line.split(MARK);
  parts.forEach((part, n) => {
    if (part === "") return;
    if (n % 2 === 0) items.push({ tex: part });
    else if (part === "\x06") items.push({ end: true });
    else if (part[0] === "\x04") {
      const isLeaf = parts.slice(n + 1).find((each) => each[0] === "\x04" || each === "\x06") === "\x06";
      items.push({ name: part.slice(1, -1), leaf: isLeaf ? leaf++ : null });
    } else {
      items.push({ mark: part, number: marks.length });
      marks.push(items.length - 1);
    }
  });
  return Object.assign(items, { marks: marks.length, place: (number) => (number == null ? items.length : marks[number]) });
}

/** TeX of the *items* between two positions: tokens that are open there are opened and closed again. */
function tex(items, from = 0, to = items.length, places = false) {
  const open = [];
  let shown = "";
  for (let n = 0; n < to; n++) {
    const item = items[n];
    if (item.tex != null && n >= from) shown += item.tex;
    else if (item.end) {
      open.pop();
      if (n >= from) shown += "}";
    } else if (item.name != null) {
      const start = data(item);
      open.push(start);
      if (n >= from) shown += start;
    } else if (item.mark && places) shown += `\\htmlData{b=${item.number}}{}`;
    if (n === from - 1) shown += open.join("");
  }
  return shown + "}".repeat(open.length);
}

function data({ name, leaf }) {
  const known = [name && `t=${name}`, name.startsWith("p") && `p=${name.slice(1)}`, leaf != null && `n=${leaf}`].filter(Boolean);
  return known.length ? `\\htmlData{${known.join(",")}}{` : "{";
}

/** The brackets in *items*: a group has parts between which a line may end, a part has pieces [from, to) and groups. */
function tree(items) {
  const stack = [{ parts: [[]] }];
  let from = 0;
  const put = (to) => stack.at(-1).parts.at(-1).push({ from, to });
  for (const { mark, number } of items) {
    if (!mark) continue;
    put(number);
    from = number;
    if (mark === "\x01") {
      const inner = { parts: [[]] };
      stack.at(-1).parts.at(-1).push(inner);
      stack.push(inner);
    } else if (mark === "\x02") stack.at(-1).parts.push([]);
    else stack.pop();
  }
  put(items.marks);
  return stack[0];
}

const first = (piece) => (piece.parts ? first(piece.parts[0][0]) : piece.from);
const last = (piece) => (piece.parts ? last(piece.parts.at(-1).at(-1)) : piece.to);

/**
 * The lines of the group *root*, each from a mark on: a bracket whose content does not fit on the rest of the line is
 * opened here, and its parts continue on further lines, indented; a part that fits is not broken.  *places* are the
 * positions of the marks, in pixels.
 */
export function fill(root, places, wide, size) {
  const lines = [{ from: 0, indent: 0 }];
  let open = 0;
  const fits = (to) => {
    const { from, indent } = lines.at(-1);
    return places[to] - places[from] + (INDENT * indent + CLOSING * open) * size <= wide;
  };
  const begin = (from, indent) => from > lines.at(-1).from && lines.push({ from, indent });
  function put(group, indent) {
    for (const part of group.parts) {
      const end = last(part.at(-1));
      if (!fits(end)) begin(first(part[0]), indent);
      if (fits(end)) continue;
      part.forEach((piece, n) => {
        if (piece.parts) {
          open++;
          put(piece, indent + 1);
          open--;
        } else if (n && !fits(last(part[Math.min(n + 2, part.length - 1)]))) begin(piece.from, indent);
      });
    }
  }
  put(root, 1);
  return lines;
}

/** The elements of the token *name*; a token that is broken over lines has several. */
export function all(box, name) {
  return name ? [...box.querySelectorAll(`[data-t="${name}"]`)] : [];
}

const INK = ".mord, .mop, .mopen, .mclose, .mbin, .mrel, .mpunct, .delimsizing, .delimsizinginner, svg";

/** The rectangles of what *element* draws, which is more than its line box: limits, large braces. */
export function ink(element) {
  const inked = [...element.querySelectorAll(INK)].filter((part) => !part.querySelector(INK)).map((part) => part.getBoundingClientRect());
  return inked.filter((r) => r.width && r.height);
}

/** The rectangle around rectangles. */
export function bounds(rectangles) {
  return {
    left: Math.min(...rectangles.map((r) => r.left)),
    top: Math.min(...rectangles.map((r) => r.top)),
    right: Math.max(...rectangles.map((r) => r.right)),
    bottom: Math.max(...rectangles.map((r) => r.bottom)),
  };
}

/** Frames around what *elements* draw. */
export function frame(box, elements, className) {
  const holder = box.querySelector(".ein-formula") ?? box;
  for (const old of holder.querySelectorAll(`:scope > .${className}`)) old.remove();
  for (const element of elements) {
    const shown = ink(element);
    if (!shown.length) continue;
    const around = holder.getBoundingClientRect();
    const area = bounds(shown);
    const left = area.left - around.left + holder.scrollLeft - 2;
    const top = area.top - around.top + holder.scrollTop - 1;
    const [width, height] = [area.right - area.left + 4, area.bottom - area.top + 2];
    const made = document.createElement("div");
    made.className = className;
    Object.assign(made.style, { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
    holder.append(made);
  }
}

/** Mark the leaves whose numbers are in *marks* (`{ old: [3, 4] }`), and no others; *marks* stay when lines change. */
export function mark(box, marks) {
  const holder = box.querySelector(".ein-formula") ?? box;
  holder.marks = marks;
  for (const marked of holder.querySelectorAll("[data-mark]")) delete marked.dataset.mark;
  for (const [kind, leaves] of Object.entries(marks ?? {})) {
    const wanted = new Set(leaves.map(String));
    for (const leaf of holder.querySelectorAll("[data-n]")) if (wanted.has(leaf.dataset.n)) leaf.dataset.mark = kind;
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
