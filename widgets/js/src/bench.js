// Candidates measured in turn with the original on this device.
import { h, seconds } from "./dom.js";

export function benchPanel({ act, save }) {
  const list = h("div.ein-scroll");
  const rounds = h("input", { type: "number", min: 3, max: 500, value: 15, ariaLabel: "rounds" });
  const start = h("button", { type: "button", title: "measure the chosen ones in interleaved rounds", onclick: () => go() }, "Measure");
  const stop = h("button", { type: "button", onclick: () => act({ do: "bench_stop" }) }, "■ Stop");
  const csv = h("button", { type: "button", onclick: () => save("bench.csv", state.csv) }, "CSV");
  const svg = h("button", { type: "button", onclick: () => save("bench.svg", state.svg) }, "SVG");
  const said = h("span", { role: "status" });
  const progress = h("progress", { max: 1, value: 0, ariaLabel: "progress of the measurement" });
  const body = h("div.ein-bench", {}, h("div.ein-tools", {}, start, stop, h("label", {}, rounds, " rounds"), csv, svg, progress, said), list);
  let state = { rows: [] };
  const chosen = new Set();

  function go() {
    act({ do: "bench", keys: state.rows.filter((row) => chosen.has(row.key)).map((row) => row.key), rounds: Number(rounds.value) });
  }

  function draw(next) {
    const known = new Set(state.rows.map((row) => row.key));
    state = next;
    for (const row of next.rows) if (!known.has(row.key) && row.suggested) chosen.add(row.key);
    const slowest = Math.max(0, ...next.rows.map((row) => row.measured ?? 0));
    start.disabled = next.running;
    stop.hidden = !next.running;
    csv.disabled = !next.csv;
    svg.disabled = !next.svg;
    progress.hidden = !next.running;
    progress.value = next.progress;
    said.textContent = next.says ?? "";
    list.replaceChildren(
      h(
        "table",
        {},
        h("caption", {}, next.device),
        h("thead", {}, h("tr", {}, ["measure", "program", "estimated", "measured ± IQR", "share", "speed-up", "max |err|"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, next.rows.map((row) => line(row, slowest))),
      ),
    );
  }

  function line(row, slowest) {
    const box = h("input", {
      type: "checkbox",
      checked: chosen.has(row.key),
      ariaLabel: `measure ${row.label}`,
      onchange: () => (box.checked ? chosen.add(row.key) : chosen.delete(row.key)),
    });
    const bar = row.measured && slowest ? h("div.ein-bar", { style: `width:${(100 * row.measured) / slowest}%` }) : null;
    return h(
      "tr",
      {},
      h("td", {}, box),
      h("td", {}, row.label),
      h("td", {}, seconds(row.estimated)),
      h("td", {}, row.failed ? h("span.worse", {}, row.failed) : row.measured ? `${seconds(row.measured)} ± ${seconds(row.iqr)}` : ""),
      h("td.ein-bars", {}, bar),
      h("td", {}, row.speedup ? `${row.speedup.toFixed(2)}×` : ""),
      h("td", {}, row.error == null ? "" : row.error.toExponential(1)),
    );
  }

  return { title: "Benchmark", body, draw };
}
