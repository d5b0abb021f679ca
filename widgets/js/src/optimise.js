// A whole model: progress with cancel, then the table of its parts, before and after.
import { h, seconds } from "./dom.js";

export function optimisePanel({ act }) {
  const start = h("button", { type: "button", onclick: () => act({ do: "optimise", device: chosen }) }, "▶ Optimise");
  let chosen = null; // another device than Python's
  const device = h("select", { ariaLabel: "device", onchange: () => (chosen = device.value) });
  const on = h("label", {}, "on ", device);
  const note = h("p.ein-faint");
  const cancel = h("button", { type: "button", title: "stop and keep the results so far", onclick: () => act({ do: "cancel" }) }, "■ Cancel");
  const path = h("input", { type: "text", ariaLabel: "file to write" });
  const write = h("button", { type: "button", onclick: () => act({ do: "write", path: path.value }) }, "Save here");
  const bundle = h("button", { type: "button", title: "write a folder of this name without .onnx, which ONNX Runtime runs from any language", onclick: () => act({ do: "bundle", path: path.value }) }, "Save bundle");
  const fetched = h("button", { type: "button", title: "download the optimised model in this browser", onclick: () => act({ do: "download" }) }, "⤓ Download ONNX");
  const progress = h("progress", { max: 1, value: 0, ariaLabel: "progress of the optimisation" });
  const said = h("p.ein-lines", { role: "status" });
  const holder = h("div.ein-scroll");
  const pictures = h("div.ein-graphs");
  const body = h("div.ein-optimise", {}, h("div.ein-tools", {}, start, on, cancel, progress, fetched, path, write, bundle), note, said, holder, pictures);

  function draw(state) {
    start.disabled = state.status === "running";
    start.hidden = state.status === "done";
    on.hidden = state.status !== "idle";
    if (device.children.length !== state.devices.length) {
      device.replaceChildren(...state.devices.map((d) => h("option", { value: d.name, disabled: Boolean(d.missing), title: d.missing, selected: d.name === state.device }, d.missing ? `${d.says} (not available)` : d.says)));
    }
    note.textContent = state.status === "idle" ? state.note : "";
    cancel.hidden = state.status !== "running";
    progress.hidden = state.status !== "running";
    if (state.progress === null) progress.removeAttribute("value");
    else progress.value = state.progress;
    for (const element of [fetched, path, write, bundle]) element.hidden = state.status !== "done";
    for (const element of [fetched, bundle]) element.hidden ||= !state.file;
    if (!path.value || path.hidden) path.value = state.path;
    said.textContent = state.says;
    holder.replaceChildren(
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["nodes", "before", "after", "ratio", "now", "certificate", "numerics"].map((name) => h("th", { scope: "col" }, name)))),
        h(
          "tbody",
          {},
          state.rows.map((row) =>
            h(
              row.kept ? "tr.ein-kept" : "tr",
              {},
              h("td", { title: row.nodes.join(", ") }, row.nodes.slice(0, 2).join(", ") + (row.nodes.length > 2 ? `, … (${row.nodes.length})` : "")),
              h("td.ein-number", {}, row.before == null ? "" : seconds(row.before)),
              h("td.ein-number", {}, row.after == null ? "" : seconds(row.after)),
              h("td", {}, row.before && row.after ? `${(row.before / row.after).toFixed(2)}×` : ""),
              h("td", {}, row.now),
              h("td", {}, row.certificate),
              h("td", {}, row.numerics),
            ),
          ),
        ),
      ),
    );
    pictures.replaceChildren(...state.graphs.map((pair) => graphs(pair)));
  }

  return { title: "Optimise", body, draw };
}

function graphs({ name, before, after }) {
  const side = (caption, svg) => {
    const figure = h("figure", {}, h("figcaption", {}, caption));
    figure.insertAdjacentHTML("beforeend", svg);
    return figure;
  };
  return h("details", {}, h("summary", {}, name), h("div.ein-pair", {}, side("before", before), side("after", after)));
}
