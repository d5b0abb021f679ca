// One face over a session: the panels that Python names, laid out, and the keys that they share.
import { benchPanel } from "./bench.js";
import { comparePanel } from "./compare.js";
import { h } from "./dom.js";
import { expressionPanel } from "./expression.js";
import { registerFonts } from "./fonts.js";
import { bounds } from "./formula.js";
import { graphPanel } from "./graph.js";
import { historyPanel } from "./history.js";
import { Offline } from "./offline.js";
import { optimisePanel } from "./optimise.js";
import { quizPanel } from "./quiz.js";
import { separators } from "./resize.js";
import { rulesPanel } from "./rules.js";
import { searchPanel } from "./search.js";
import { tablePanel } from "./table.js";

const PANELS = {
  expression: expressionPanel,
  rules: rulesPanel,
  history: historyPanel,
  search: searchPanel,
  graph: graphPanel,
  table: tablePanel,
  compare: comparePanel,
  bench: benchPanel,
  optimise: optimisePanel,
  quiz: quizPanel,
};

/** Panels that cost something are folded until the reader wants them, where others stand beside them. */
const FOLDED = new Set(["table", "bench"]);

/** What may scroll: where it does and nothing in it takes the focus, it takes the focus itself, so that keys scroll it. */
const SCROLLS = ".ein-formula, .ein-law, .ein-scroll, .ein-top, .ein-history, .ein-rules, .ein-expression, .ein-detail";
const TAKES_FOCUS = "a[href], button:not(:disabled), input, select, textarea, summary, [tabindex]";

const GONE = "the kernel of this panel has ended or was restarted: run the cell again";

const KEYS = [
  ["u, r", "undo, redo"],
  ["[, ]", "the node before, the node after"],
  ["j, k, Enter", "the next match, the one before; apply it"],
  ["n, t", "next good step, tidy up"],
  ["s, Esc", "search, pause or resume; stop"],
  ["/, f", "filter states; show the whole tree"],
  ["arrows", "in the expression: walk over scopes, with Shift over the tokens of a scope"],
  ["arrows, +, −", "in the tree: walk, zoom; in the graph: move, zoom (0 shows all); Enter shows or folds what has the focus"],
  ["e", "save the derivation"],
];

const WRITING = "input, textarea, select, [contenteditable]";

/** Hide the saved form of the widget *key* while the widget is alive; returns how to show it again. */
function hideSaved(page, key) {
  if (!key) return () => {};
  const style = page.createElement("style");
  style.textContent = `.ein-saved-${key}, .jp-OutputArea-child:has(.ein-saved-${key}) { display: none !important; }`;
  page.head.append(style);
  return () => style.remove();
}

function render({ model, el, greyOut = () => {} }) {
  registerFonts(el.ownerDocument);
  const showSaved = hideSaved(el.ownerDocument, model.get("key"));
  const names = model.get("panels");
  const act = (message) => {
    try {
      model.send(message);
    } catch {
      lost();
    }
  };
  const shown = {};
  const tip = h("div.ein-tip.ein-token", { hidden: true });
  const bus = {
    preview: (match) => shown.expression?.preview(match),
    measured: (rows) => shown.search?.measured(rows),
    /** Show where the *token* (its description, or null) is, in all panels. */
    hover: (token) => Object.values(shown).forEach((panel) => panel.hover?.(token)),
    /** Show *lines* below the *boxes* of what is pointed at. */
    tip(boxes, lines) {
      tip.hidden = !boxes.length || !lines.length;
      if (tip.hidden) return;
      const [name, ...rest] = lines;
      tip.replaceChildren(h("b", {}, name), ...rest.map((line) => h("div", {}, line)));
      const around = root.getBoundingClientRect();
      const { left, bottom } = bounds(boxes);
      tip.style.left = `${Math.max(0, Math.min(left - around.left, around.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${bottom - around.top + 6}px`;
    },
  };
  for (const name of names) shown[name] = PANELS[name]({ act, bus, save: (file, text) => download(el, file, text) });

  const alone = names.length === 1;
  const notice = h("div.ein-notice", { role: "status", ariaLive: "polite" });
  const undo = h("button", { type: "button", title: "undo (u)", onclick: () => act({ do: "undo" }) }, "↶ Undo");
  const redo = h("button", { type: "button", title: "redo (r)", onclick: () => act({ do: "redo" }) }, "↷ Redo");
  const target = h("select", { ariaLabel: "target operator", data: { do: "target" }, onchange: () => act({ do: "target", target: target.value }) });
  const help = h("button", { type: "button", title: "keys (?)", ariaLabel: "keys", onclick: () => (keys.hidden = !keys.hidden) }, "?");
  const keys = h("dl.ein-keys", { hidden: true }, KEYS.map(([key, what]) => [h("dt", {}, key), h("dd", {}, what)]));
  const title = h("h3");
  const full = h("button", { type: "button", title: "all panels on the whole screen", hidden: !el.ownerDocument.fullscreenEnabled, onclick: () => (root.matches(":fullscreen") ? el.ownerDocument.exitFullscreen() : root.requestFullscreen()) }, "Full screen");
  const bar = h("header.ein-head", {}, title, h("label", {}, "target ", target), undo, redo, full, help);
  const hasBar = ["expression", "rules", "history"].some((name) => names.includes(name));
  const panels = h("div.ein-panels", {}, names.map(section));
  if (["history", "expression", "rules"].every((name) => names.includes(name))) panels.append(...separators(panels));
  const root = h(
    `section.ein${alone ? ".alone" : ""}`,
    { tabIndex: -1, role: "region", ariaLabel: model.get("label") },
    hasBar ? bar : null,
    keys,
    notice,
    panels,
    tip,
  );

  function section(name) {
    const panel = shown[name];
    const heading = [h("span", {}, panel.title), panel.heading];
    if (FOLDED.has(name) && !alone) {
      const made = h("details.ein-panel", { data: { panel: name } }, h("summary", {}, ...heading.filter(Boolean)), panel.body);
      made.addEventListener("toggle", () => act({ do: made.open ? "open" : "close", panel: name }));
      return made;
    }
    return h("section.ein-panel", { data: { panel: name }, ariaLabel: panel.title }, alone ? null : h("h4", {}, ...heading.filter(Boolean)), panel.body);
  }

  function head() {
    const state = model.get("head");
    title.textContent = state.title ?? "";
    undo.disabled = !state.undo;
    redo.disabled = !state.redo;
    target.replaceChildren(...(state.targets ?? []).map((name) => h("option", { value: name, selected: name === state.target }, name || "any operator")));
  }

  function say() {
    const { text, kind, code, action } = model.get("notice");
    const shownCode = code ? h("pre", { tabIndex: 0 }, code) : null;
    notice.className = `ein-notice ${kind ?? ""}`;
    notice.replaceChildren(
      ...(text ? [h("span", {}, text)] : []),
      ...(code ? [h("button", { type: "button", title: "copy to the clipboard", onclick: (event) => copy(shownCode, event.target) }, "Copy")] : []),
      ...(text && action ? [h("button", { type: "button", onclick: () => act({ do: action.do }) }, action.label)] : []),
      ...(text ? [h("button", { type: "button", ariaLabel: "close", onclick: () => act({ do: "hush" }) }, "×")] : []),
      ...(code ? [shownCode] : []),
    );
  }

  /** A kernel that was restarted or ended knows nothing of what it showed, and says nothing either. */
  function lost() {
    notice.className = "ein-notice error";
    notice.replaceChildren(h("span", {}, GONE));
  }

  // Notebook 7 takes keys while the event is captured, before it comes here, unless the element that has the focus
  // itself says that it wants them; JupyterLab takes what is left over.
  root.addEventListener("focusin", (event) => event.target.setAttribute("data-lm-suppress-shortcuts", "true"));
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches?.(WRITING)) {
      if (event.key === "Escape") root.focus();
      event.stopPropagation();
      return;
    }
    const common = { u: "undo", r: "redo", e: "export" }[event.key];
    if (event.key === "?") keys.hidden = !keys.hidden;
    else if (common && hasBar) act({ do: common });
    else if (!Object.values(shown).some((panel) => panel.key?.(event))) return;
    event.preventDefault();
    event.stopPropagation();
  });

  function reachable() {
    greyOut(root);
    for (const box of root.querySelectorAll(SCROLLS)) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls && !box.querySelector(TAKES_FOCUS) && !box.parentElement.closest("button")) box.tabIndex = 0;
      else if (!scrolls) box.removeAttribute("tabindex");
    }
  }
  let due = 0;
  const later = () => {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(reachable);
  };
  const sizes = new ResizeObserver(later);
  sizes.observe(root);
  const changes = new MutationObserver(later);
  changes.observe(root, { childList: true, subtree: true, attributeFilter: ["open", "hidden"] });

  const listeners = [["change:head", head], ["change:notice", say], ["msg:custom", arrived]];
  for (const name of names) {
    const draw = () => {
      const state = model.get(name);
      if (!state || !Object.keys(state).length) return;
      // What is drawn anew may have had the focus: without it the keys would be the notebook's again.
      const focused = () => root.contains(root.getRootNode().activeElement);
      const had = focused();
      shown[name].draw(state);
      if (had && !focused()) root.focus({ preventScroll: true });
    };
    listeners.push([`change:${name}`, draw]);
  }
  function arrived(message, buffers) {
    if (message.do === "tree") shown.search?.arrived(message, buffers[0]);
    else if (message.do === "hover") shown.search?.hovered(message.shown);
    else if (message.do === "why") shown.search?.explained(message, buffers[0]);
    else if (message.do === "preview") shown.rules?.arrived(message.match, message.shown);
    else if (message.do === "kernels") shown.compare?.arrived(message);
    else if (message.do === "file") download(el, message.name, message.text ?? buffers[0]);
  }
  for (const [event, listener] of listeners) model.on(event, listener);
  el.classList.add("ein-host");
  el.append(root);
  for (const [event, listener] of listeners) if (event.startsWith("change:")) listener();

  return () => {
    showSaved();
    sizes.disconnect();
    changes.disconnect();
    for (const [event, listener] of listeners) model.off(event, listener);
    for (const panel of Object.values(shown)) panel.destroy?.();
  };
}

/** Copy the text of *box*, and say so on *button*; pages that are not secure have no clipboard but that of a selection. */
async function copy(box, button) {
  const page = box.ownerDocument;
  try {
    await page.defaultView.navigator.clipboard.writeText(box.textContent);
    button.textContent = "✓ Copied";
  } catch {
    page.getSelection().selectAllChildren(box);
    button.textContent = page.execCommand("copy") ? "✓ Copied" : "Press Ctrl+C";
  }
}

function download(el, name, held) {
  const page = el.ownerDocument;
  const link = page.createElement("a");
  link.href = URL.createObjectURL(new Blob([held], { type: typeof held === "string" ? "text/plain" : "application/octet-stream" }));
  link.download = name;
  page.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Show what Python recorded in *data* in *el*, without a kernel. */
export function offline(el, data) {
  const model = new Offline(data);
  render({ model, el, greyOut: (root) => model.greyOut(root) });
  return model;
}

export { default as katex } from "katex"; // the tests of the sources take it from here

export default { render };
