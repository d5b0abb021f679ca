// The iterator mapping table of a scope against an operator: who stands where, and what does not fit.
import { h } from "./dom.js";

export function tablePanel({ act }) {
  const against = h("select", { ariaLabel: "operator", onchange: () => act({ do: "table", operator: against.value }) });
  const holder = h("div.ein-scroll");
  const said = h("p");
  let at = "";
  const body = h("div.ein-table", {}, h("div.ein-tools", {}, h("label", {}, "against ", against)), holder, said);

  function draw(state) {
    at = state.at;
    against.replaceChildren(...state.operators.map((name) => h("option", { value: name, selected: name === state.operator }, name)));
    said.textContent = state.says ?? "";
    if (!state.rows) return holder.replaceChildren();
    const head = ["group", ...state.tensors, `${state.operator} has`, "the scope has", "mismatch"];
    holder.replaceChildren(
      h(
        "table",
        {},
        h("caption", {}, `scope ${state.at} against ${state.operator}: distance ${state.distance}`),
        h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))),
        h(
          "tbody",
          {},
          state.rows.map((row) =>
            h(
              row.mismatch ? "tr.ein-wrong" : "tr",
              { data: { names: row.found.map((x) => x.split(":")[0]).join(" ") } },
              h("th", { scope: "row" }, row.group),
              [...row.group].map((letter) => h("td", {}, letter === "Y" ? "✓" : "–")),
              h("td", {}, row.expected.join(", ") || "–"),
              h("td", {}, row.found.join(", ") || "–"),
              h("td", {}, row.mismatch ? `✗ ${row.mismatch}` : "✓"),
            ),
          ),
        ),
      ),
      ...(state.map ? [map(state.map)] : []),
    );
  }

  /** Show the groups of the iterators of the *token* that is pointed at. */
  function hover(token) {
    const names = token?.at === at ? token.names : [];
    for (const row of holder.querySelectorAll("[data-names]")) row.classList.toggle("ein-pointed", row.dataset.names.split(" ").some((name) => names.includes(name)));
  }

  return { title: "Iterator table", body, draw, hover };
}

function map(rows) {
  return h(
    "table",
    {},
    h("caption", {}, "a match: each iterator of the operator, and its iterators in this scope"),
    h("tbody", {}, rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value)))),
  );
}
