// The computation graph: click a node to come to its expression.
import { h } from "./dom.js";

export function graphPanel({ act, save }) {
  const picture = h("div.ein-graph", { role: "group", ariaLabel: "computation graph" });
  const legend = h("div.ein-legend");
  const svg = h("button", { type: "button", title: "save this graph to a file", onclick: () => save("graph.svg", source) }, "SVG");
  const body = h("div", {}, picture, h("div.ein-tools.ein-foot", {}, legend, svg));
  let source = "";

  function draw(state) {
    source = state.svg ?? "";
    picture.innerHTML = source;
    svg.disabled = !source;
    legend.replaceChildren();
    const drawn = picture.querySelector("svg");
    if (!drawn) return picture.replaceChildren(h("p", {}, state.says));
    drawn.setAttribute("role", "group");
    drawn.setAttribute("aria-label", state.says);
    for (const title of drawn.querySelectorAll("g.edge title, g.graph > title, g.cluster > title")) title.remove();
    for (const node of drawn.querySelectorAll("g.node")) {
      const title = node.querySelector("title");
      const name = title?.textContent ?? "";
      const path = state.paths[name];
      node.dataset.name = name;
      if (path == null) continue;
      node.classList.add("ein-link");
      node.setAttribute("tabindex", "0");
      node.setAttribute("role", "button");
      node.setAttribute("aria-label", `${name}: show its expression`);
      const go = () => act({ do: "select", at: path });
      node.addEventListener("click", go);
      node.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        go();
      });
    }
    select(state.at);
    legend.replaceChildren(...Object.entries(state.kinds).map(([kind, colour]) => h("span", {}, h("i", { style: `background:${colour}` }), kind)));
  }

  function select(name) {
    for (const node of picture.querySelectorAll("g.node")) node.classList.toggle("ein-here", node.dataset.name === name);
  }

  return { title: "Graph", body, draw };
}
