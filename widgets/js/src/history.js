// Where the session has been: a tree of steps; go anywhere, compare two.
import { h, reveal } from "./dom.js";
import { badge } from "./expression.js";

/** Nodes that are compared at a time. */
const COMPARED = 4;

export function historyPanel({ act }) {
  const list = h("ol.ein-nodes", { ariaLabel: "derivation" });
  const tools = h("div.ein-tools");
  const name = h("input", { type: "text", ariaLabel: "name of the pin", data: { do: "pin_node" }, placeholder: "name" });
  const note = h("textarea", { rows: 2, ariaLabel: "note", data: { do: "note" }, placeholder: "note" });
  const file = h("input", { type: "file", accept: ".eins,.json", hidden: true, ariaLabel: "file of a session", onchange: () => open() });
  const annotate = h(
    "details.ein-annotate",
    {},
    h("summary", {}),
    h("form", { onsubmit: (event) => pin(event) }, name, h("button", { type: "submit", data: { do: "pin_node" }, title: "give the current node this name" }, "Pin")),
    h("form", { onsubmit: (event) => write(event) }, note, h("button", { type: "submit", data: { do: "note" }, title: "attach this note to the current node; an empty one removes it" }, "Note")),
  );
  const compared = h("div.ein-compared", { ariaLive: "polite" });
  const body = h("div.ein-history", {}, list, annotate, tools, compared);
  let state = { nodes: [], here: 0 };
  let chosen = [];

  function choose(id, on) {
    chosen = on ? [...chosen, id].slice(-COMPARED) : chosen.filter((n) => n !== id);
    if (chosen.length > 1) act({ do: "compare", a: chosen[0], b: chosen[1], more: chosen.slice(2) });
    else act({ do: "compare" });
    for (const box of list.querySelectorAll("input")) box.checked = chosen.includes(Number(box.value));
  }

  function pin(event) {
    event.preventDefault();
    act({ do: "pin_node", node: state.here, name: name.value });
    name.value = "";
  }

  function write(event) {
    event.preventDefault();
    act({ do: "note", node: state.here, text: note.value });
  }

  async function open() {
    const [chosen] = file.files;
    if (chosen) act({ do: "load", name: chosen.name, text: await chosen.text() });
    file.value = ""; // the same file can be opened again
  }

  function row(node) {
    const here = node.id === state.here;
    return h(
      "li",
      { data: { node: node.id }, style: `--depth:${node.branch}` },
      h("input", {
        type: "checkbox",
        value: node.id,
        checked: chosen.includes(node.id),
        ariaLabel: `compare #${node.id}`,
        title: "select two to four nodes to compare them",
        data: { do: "compare" },
        onchange: (event) => choose(node.id, event.target.checked),
      }),
      h(
        `button.ein-node${here ? ".here" : ""}${node.way ? ".way" : ""}`,
        { type: "button", ariaCurrent: here ? "step" : null, onclick: () => act({ do: "goto", node: node.id }) },
        h("span", {}, h("b", {}, `E${node.step}`), h("span.ein-at", {}, ` #${node.id}`)),
        h("span", {}, node.rule ? node.rule.replaceAll("_", " ") : "start", node.at ? h("span.ein-at", {}, ` at ${node.at}`) : null),
        h("span.ein-params", {}, node.says),
        node.id && node.certificate ? h(`i.ein-sign.${node.certificate}${node.claimed ? ".claimed" : ""}`, { title: `this step: ${node.certificate}${node.claimed ? ", says the file; not confirmed" : ""}` }, { proved: "✓", rounded: "≈", exact: "≈", unknown: "?", false: "✗" }[node.certificate]) : null,
      ),
      (node.pins ?? []).map((one) => h("span.ein-pin", {}, h("span", {}, `⚲ ${one}`), h("button", { type: "button", title: `remove the name ${one}`, ariaLabel: `remove the pin ${one}`, data: { do: "unpin" }, onclick: () => act({ do: "unpin", name: one }) }, "×"))),
      node.note ? h("p.ein-note", {}, node.note) : null,
    );
  }

  function draw(next) {
    const asked = next.compare && (next.compare.a.id !== state.compare?.a.id || next.compare.b.id !== state.compare?.b.id);
    const moved = next.here !== state.here || next.nodes.length !== state.nodes.length;
    const here = next.nodes.find((node) => node.id === next.here);
    annotate.firstChild.textContent = `Pin or note E${here?.step ?? 0} #${next.here}`;
    if (moved || here?.note !== state.nodes.find((node) => node.id === state.here)?.note) note.value = here?.note ?? "";
    if (next.chosen?.length && String(next.chosen) !== String(state.chosen)) chosen = [...next.chosen]; // Python chose
    state = next;
    chosen = chosen.filter((id) => id < next.nodes.length);
    list.replaceChildren(...next.nodes.map(row));
    compared.replaceChildren(...(next.compare ? comparison(next.compare) : []));
    if (asked) reveal(body, compared);
    else if (moved) reveal(body, list.querySelector(".here"));
  }

  tools.append(
    h("button", { type: "button", title: "prove that the current program equals the start", onclick: () => act({ do: "check" }) }, "Prove"),
    h("button", { type: "button", title: "show the derivation as Python code", onclick: () => act({ do: "script" }) }, "Script"),
    h("button", { type: "button", title: "show the derivation in LaTeX", onclick: () => act({ do: "latex" }) }, "LaTeX"),
    h("button", { type: "button", title: "save the current derivation with its certificates to a file that einnet-explore check reads (e)", onclick: () => act({ do: "export" }) }, "Record"),
    h("button", { type: "button", title: "save the whole session to a file: branches, pins, notes, searches, settings", onclick: () => act({ do: "save" }) }, "Save"),
    h("button", { type: "button", title: "open the file of a session in place of this one", data: { do: "load" }, onclick: () => file.click() }, "Open"),
    file,
    h("button", { type: "button", title: "save all nodes and the last search as one interactive HTML file, which needs no kernel and no network", onclick: () => act({ do: "share" }) }, "Share"),
  );

  return {
    title: "Derivation",
    body,
    draw,
    key(event) {
      const order = state.nodes.map((node) => node.id);
      const here = order.indexOf(state.here);
      if (event.key === "[" && here > 0) act({ do: "goto", node: order[here - 1] });
      else if (event.key === "]" && here < order.length - 1) act({ do: "goto", node: order[here + 1] });
      else return event.key === "[" || event.key === "]";
      return true;
    },
  };
}

function comparison(pair) {
  const same = { true: "the same program (equal canonical keys)", false: "different programs" }[String(pair.same)];
  return [
    h("div.ein-label", {}, `#${pair.a.id} and #${pair.b.id}: ${same}`, badge(pair.certificate)),
    h("div.ein-faint", {}, "side by side in the panel “Comparison” below"),
  ];
}
