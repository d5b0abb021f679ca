// Chosen nodes side by side over the full width: formulas with the tokens that differ, graphs, costs, proofs, steps.
import { counted, h, seconds } from "./dom.js";
import { badge } from "./expression.js";
import { formula } from "./formula.js";

export function comparePanel({ act }) {
  const table = h("div.ein-scroll");
  const sides = h("div.ein-sides");
  const body = h("div.ein-compare", {}, table, sides);
  // A node that is pointed at is marked in every graph.
  sides.addEventListener("pointerover", (event) => {
    const name = event.target.closest?.("g.node")?.dataset.name;
    for (const node of sides.querySelectorAll("g.node")) node.classList.toggle("ein-pointed", name != null && node.dataset.name === name);
  });

  function draw({ sides: found }) {
    const panel = body.closest(".ein-panel");
    if (panel) panel.hidden = !found.length;
    body.hidden = !found.length;
    if (!found.length) return;
    const rows = [
      ["library operators", (side) => side.calls],
      ["distance", (side) => side.distance ?? "–"],
      ["estimated", (side) => seconds(side.seconds)],
      ["measured", (side) => (side.measured ? seconds(side.measured) : "not measured")],
      ["numerics", (side) => side.numerics],
      [`equal to ${found[0].name}`, (side) => (side.certificate ? (side.same ? "the same program" : badge(side.certificate)) : "")],
    ];
    table.replaceChildren(
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, h("td"), found.map((side) => h("th", { scope: "col" }, side.name)))),
        h("tbody", {}, rows.map(([name, cell]) => h("tr", {}, h("th", { scope: "row" }, name), found.map((side) => h("td", {}, cell(side)))))),
      ),
    );
    sides.replaceChildren(...found.map((side, n) => column(side, n, found[0], act)));
  }

  /** The kernels of a node, each beside the equation that it implements. */
  function arrived({ node, kernels }) {
    for (const holder of sides.querySelectorAll(`.ein-kernels[data-node="${node}"]`)) {
      const lines = holder.latex.split("\n");
      holder.replaceChildren(...kernels.flatMap(({ text, why }, n) => [formula({ latex: lines[n], text: lines[n] }), text ? h("pre", { tabIndex: 0 }, text) : h("p.ein-faint", {}, why)]));
    }
  }

  return { title: "Comparison", body, draw, arrived };
}

function column(side, n, first, act) {
  const holder = h("div.ein-kernels", { data: { node: side.id } }, h("p.ein-faint", {}, "generating …"));
  holder.latex = side.latex;
  const kernels = h("details", { ontoggle: (event) => event.target.open && act({ do: "kernels", node: side.id }) }, h("summary", {}, "generated kernels (C)"), holder);
  const picture = h("div.ein-graph");
  picture.innerHTML = side.svg;
  for (const title of picture.querySelectorAll("title")) {
    title.parentNode.dataset.name = title.textContent;
    title.remove();
  }
  picture.firstChild?.setAttribute("role", "img");
  picture.firstChild?.setAttribute("aria-label", `graph of ${side.name}; nodes of one name stand in one place, equations that differ are red`);
  const steps = side.steps.length ? h("details", {}, h("summary", {}, `${counted(side.steps.length, "step")} from ${first.name}`), h("ol", {}, side.steps.map((step) => h("li", {}, step)))) : null;
  const differ = Object.values(side.marks)[0]?.length ?? 0;
  return h(
    "div.ein-side",
    {},
    h("div.ein-label", {}, h("b", {}, side.name), h(`span.ein-key.${n ? "new" : "old"}`, {}, `${counted(differ, "token")} ${n ? `not in ${first.name}` : "not in the next"}`)),
    formula(side),
    picture,
    h("div", {},
      steps,
      n && !side.follows ? h("button", { type: "button", title: "look for steps that lead straight from one to the other, for up to 20 s; they become a branch", onclick: () => act({ do: "connect", a: first.id, b: side.id }) }, `Find steps from ${first.name}`) : null,
      kernels,
    ),
  );
}
