// The computation graph: zoom, pan, find; layers that fold; values of nodes; click a node to come to its expression.
import { h } from "./dom.js";

const STEP = 1.25;
const HIGHEST = 480;
/** Pixels that the pointer may move while a button is down and still click. */
const STILL = 4;

/** What the colour of a node can say; texts say the same. */
const OVERLAYS = ["kind", "time", "bytes", "proof", "element type"];
const PROOFS = { proved: "var(--ein-fill-layer)", rounded: "var(--ein-fill-expression)", exact: "var(--ein-fill-expression)", unknown: "var(--ein-fill-input)", false: "var(--ein-fill-different)", unchanged: "var(--ein-fill-view)", open: "var(--ein-fill-input)" };
const TYPES = ["library", "expression", "weight", "layer", "eOperator", "input"];

export function graphPanel({ act, save }) {
  const picture = h("div.ein-graph", { tabIndex: 0, role: "group", ariaLabel: "computation graph: + and − zoom, arrows move, 0 shows all" });
  const legend = h("div.ein-legend");
  const find = h("input.ein-find", { type: "search", placeholder: "find a node …", ariaLabel: "find a node", oninput: () => look(), onkeydown: (event) => event.key === "Enter" && look(1) });
  const found = h("span.ein-count", { role: "status" });
  const button = (text, title, click) => h("button", { type: "button", title, ariaLabel: title, onclick: click }, text);
  const svg = button("SVG", "save this graph to a file", () => save("graph.svg", source));
  const colour = h("select", { ariaLabel: "colour of nodes", onchange: () => overlay() }, OVERLAYS.map((name) => h("option", { value: name }, `colour: ${name}`)));
  const fold = button("", "", () => act({ do: "fold", all: !state.folded.length }));
  fold.dataset.do = "fold";
  const tools = h("div.ein-tools", {}, find, found, colour, fold, button("+", "zoom in", () => zoom(1 / STEP)), button("−", "zoom out", () => zoom(STEP)), button("Fit", "show the whole graph", () => fit()));
  const body = h("div", {}, tools, picture, h("div.ein-tools.ein-foot", {}, legend, svg));
  let state = { folded: [] };
  let source = "";
  let whole = null;
  let view = null;
  let turn = 0;

  const drawn = () => picture.querySelector("svg");
  const nodes = () => [...picture.querySelectorAll("g.node")];

  function show() {
    drawn().setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  }

  function fit() {
    view = { ...whole };
    if (drawn()) show();
  }

  /** Scale the view by *factor* around the point (*u*, *v*) of the picture, as parts of its size. */
  function zoom(factor, u = 0.5, v = 0.5) {
    if (!drawn()) return;
    const scale = Math.min(1, Math.max(whole.w / 40, view.w * factor) / whole.w) * (whole.w / view.w);
    view.x += u * view.w * (1 - scale);
    view.y += v * view.h * (1 - scale);
    view.w *= scale;
    view.h *= scale;
    move(0, 0);
  }

  /** Move the view by parts of its size; something of the graph stays in it. */
  function move(u, v) {
    const inside = (at, size, low, length) => Math.min(low + length - size / 4, Math.max(low - (3 * size) / 4, at));
    view.x = inside(view.x + u * view.w, view.w, whole.x, whole.w);
    view.y = inside(view.y + v * view.h, view.h, whole.y, whole.h);
    show();
  }

  /** Mark the nodes whose text contains what is looked for, and show one of them: *next* goes on to another. */
  function look(next = 0) {
    const wanted = find.value.trim().toLowerCase();
    const hits = wanted ? nodes().filter((node) => node.textContent.toLowerCase().includes(wanted)) : [];
    for (const node of nodes()) node.classList.toggle("ein-found", hits.includes(node));
    found.textContent = wanted ? (hits.length ? `${((turn = next ? turn + 1 : 0) % hits.length) + 1} of ${hits.length}` : "none") : "";
    if (!hits.length) return;
    centre(hits[turn % hits.length]);
  }

  function centre(node) {
    const area = drawn().getBoundingClientRect();
    const at = node.getBoundingClientRect();
    if (at.left >= area.left && at.right <= area.right && at.top >= area.top && at.bottom <= area.bottom) return;
    move(((at.left + at.right) / 2 - (area.left + area.right) / 2) / area.width, ((at.top + at.bottom) / 2 - (area.top + area.bottom) / 2) / area.height);
  }

  picture.addEventListener("wheel", (event) => {
    if (!drawn() || !(event.ctrlKey || event.metaKey || event.altKey)) return; // else the page scrolls
    event.preventDefault();
    const area = drawn().getBoundingClientRect();
    zoom(STEP ** Math.sign(event.deltaY), (event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
  }, { passive: false });

  let drag = null;
  let dragged = false;
  picture.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (drawn() && event.button === 0) drag = { x: event.clientX, y: event.clientY };
  });
  picture.addEventListener("pointermove", (event) => {
    if (!drag || (!dragged && Math.hypot(event.clientX - drag.x, event.clientY - drag.y) < STILL)) return;
    if (!dragged) picture.setPointerCapture(event.pointerId);
    dragged = true;
    const area = drawn().getBoundingClientRect();
    move((drag.x - event.clientX) / area.width, (drag.y - event.clientY) / area.height);
    drag = { x: event.clientX, y: event.clientY };
  });
  for (const end of ["pointerup", "pointercancel"]) picture.addEventListener(end, () => (drag = null));
  picture.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
    if (!drawn() || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") zoom(1 / STEP);
    else if (event.key === "-") zoom(STEP);
    else if (event.key === "0") fit();
    else if (steps[event.key]) move(...steps[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  function draw(next) {
    state = next;
    const other = source !== (state.svg ?? "");
    source = state.svg ?? "";
    if (other) picture.innerHTML = source;
    svg.disabled = !source;
    tools.hidden = !source && !state.layers;
    fold.hidden = !state.layers;
    fold.textContent = state.folded?.length ? "Unfold" : "Fold";
    fold.title = state.folded?.length ? "show all equations" : "show each layer as one node";
    legend.replaceChildren();
    if (!drawn()) return picture.replaceChildren(h("p", {}, state.says));
    if (other) prepare();
    select(state.at);
    overlay();
  }

  function prepare() {
    const it = drawn();
    const { x, y, width, height } = it.viewBox.baseVal;
    whole = { x, y, w: width, h: height };
    it.removeAttribute("height");
    it.removeAttribute("width");
    it.style.cssText = `width:100%;max-width:${1.4 * width}px;max-height:${HIGHEST}px;aspect-ratio:${width}/${height}`;
    it.setAttribute("role", "group");
    it.setAttribute("aria-label", state.says);
    fit();
    for (const group of it.querySelectorAll("g.cluster.layer")) {
      const layer = group.querySelector("title").textContent.replace(/^cluster_/, "");
      press(group, `fold ${layer}`, { do: "fold", layer });
    }
    for (const title of it.querySelectorAll("g.edge title, g.graph > title, g.cluster > title")) title.remove();
    for (const node of nodes()) {
      const name = node.querySelector("title")?.textContent ?? "";
      const path = state.paths[name];
      node.dataset.name = name;
      if (state.folded?.includes(name)) press(node, `unfold ${name}`, { do: "fold", layer: name });
      else if (path != null) press(node, `${name}: show its expression`, { do: "select", at: path });
    }
    look();
  }

  /** Make *part* of the picture a button, with a *label*, that sends *message*. */
  function press(part, label, message) {
    part.classList.add("ein-link");
    part.setAttribute("tabindex", "0");
    part.setAttribute("role", "button");
    part.setAttribute("aria-label", label);
    part.addEventListener("click", () => dragged || act(message));
    part.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      act(message);
    });
  }

  /** Write the chosen value of each node as its last line, and colour the nodes by it. */
  function overlay() {
    const chosen = state.values?.[colour.value];
    const kinds = chosen ? [...new Set(Object.values(chosen).map(([, kind]) => kind))].filter((kind) => typeof kind === "string") : [];
    const paint = (kind) => (typeof kind === "string" ? (PROOFS[kind] ?? `var(--ein-fill-${TYPES[kinds.indexOf(kind) % TYPES.length]})`) : `color-mix(in srgb, var(--ein-heat) ${Math.round(90 * kind)}%, var(--ein-paper))`);
    for (const node of nodes()) {
      node.querySelector(".ein-value")?.remove();
      const lines = node.querySelectorAll("text");
      const last = lines.length > 1 ? lines[lines.length - 1] : null;
      if (last) last.style.visibility = "";
      const [text, kind] = chosen?.[node.dataset.name] ?? [];
      if (chosen) node.style.setProperty("--ein-fill", text == null ? "none" : paint(kind));
      else node.style.removeProperty("--ein-fill");
      if (text == null) continue;
      const { x, y, width, height } = node.getBBox();
      if (last) last.style.visibility = "hidden"; // the value stands in its place
      const place = last ? { x: last.getAttribute("x"), y: last.getAttribute("y") } : { x: x + width / 2, y: y + height - 4 };
      const value = document.createElementNS("http://www.w3.org/2000/svg", "text");
      for (const [name, given] of Object.entries({ class: "ein-value", ...place, "text-anchor": "middle" })) value.setAttribute(name, given);
      value.textContent = text;
      node.append(value);
      const room = width - 8;
      if (value.getComputedTextLength() > room) for (const [name, given] of [["textLength", room], ["lengthAdjust", "spacingAndGlyphs"]]) value.setAttribute(name, given);
    }
    const swatch = (fill, text) => h("span", {}, h("i", { style: `background:${fill}` }), text);
    if (!chosen) legend.replaceChildren(...(state.kinds ?? []).map((kind) => swatch(`var(--ein-fill-${kind})`, kind)));
    else if (kinds.length) legend.replaceChildren(...kinds.map((kind) => swatch(paint(kind), kind === "open" ? "not proved yet" : kind)));
    else legend.replaceChildren(swatch(paint(0), "less"), swatch(paint(1), `most${colour.value === "time" ? ", estimated" : ""}`));
  }

  function select(name) {
    for (const node of nodes()) node.classList.toggle("ein-here", node.dataset.name === name);
  }

  /** Show the node of the *token* that is pointed at. */
  function hover(token) {
    for (const node of nodes()) node.classList.toggle("ein-pointed", node.dataset.name === token?.node);
  }

  return { title: "Graph", body, draw, hover };
}
