// The computation graph: zoom, pan, find; click a node to come to its expression.
import { h } from "./dom.js";

const STEP = 1.25;
const HIGHEST = 480;
/** Pixels that the pointer may move while a button is down and still click. */
const STILL = 4;

export function graphPanel({ act, save }) {
  const picture = h("div.ein-graph", { tabIndex: 0, role: "group", ariaLabel: "computation graph: + and − zoom, arrows move, 0 shows all" });
  const legend = h("div.ein-legend");
  const find = h("input.ein-find", { type: "search", placeholder: "find a node …", ariaLabel: "find a node", oninput: () => look(), onkeydown: (event) => event.key === "Enter" && look(1) });
  const found = h("span.ein-count", { role: "status" });
  const button = (text, title, click) => h("button", { type: "button", title, ariaLabel: title, onclick: click }, text);
  const svg = button("SVG", "save this graph to a file", () => save("graph.svg", source));
  const tools = h("div.ein-tools", {}, find, found, button("+", "zoom in", () => zoom(1 / STEP)), button("−", "zoom out", () => zoom(STEP)), button("Fit", "show the whole graph", () => fit()));
  const body = h("div", {}, tools, picture, h("div.ein-tools.ein-foot", {}, legend, svg));
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

  function draw(state) {
    const other = source !== (state.svg ?? "");
    source = state.svg ?? "";
    if (other) picture.innerHTML = source;
    svg.disabled = !source;
    tools.hidden = !source;
    legend.replaceChildren();
    if (!drawn()) return picture.replaceChildren(h("p", {}, state.says));
    if (other) prepare(state);
    select(state.at);
    legend.replaceChildren(...Object.entries(state.kinds).map(([kind, colour]) => h("span", {}, h("i", { style: `background:${colour}` }), kind)));
  }

  function prepare(state) {
    const it = drawn();
    const { x, y, width, height } = it.viewBox.baseVal;
    whole = { x, y, w: width, h: height };
    it.removeAttribute("height");
    it.removeAttribute("width");
    it.style.cssText = `width:100%;max-width:${1.4 * width}px;max-height:${HIGHEST}px;aspect-ratio:${width}/${height}`;
    it.setAttribute("role", "group");
    it.setAttribute("aria-label", state.says);
    fit();
    for (const title of it.querySelectorAll("g.edge title, g.graph > title, g.cluster > title")) title.remove();
    for (const node of nodes()) {
      const name = node.querySelector("title")?.textContent ?? "";
      const path = state.paths[name];
      node.dataset.name = name;
      if (path == null) continue;
      node.classList.add("ein-link");
      node.setAttribute("tabindex", "0");
      node.setAttribute("role", "button");
      node.setAttribute("aria-label", `${name}: show its expression`);
      const go = () => act({ do: "select", at: path });
      node.addEventListener("click", () => dragged || go());
      node.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        go();
      });
    }
    look();
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
