// Candidates measured in turn with the original, on a device that is there or as another one's profile has them.
import { h, seconds } from "./dom.js";

const PROFILE = "profile:";
const ORIGINAL = "start";
const percent = (part) => `${Math.round(100 * part)} %`;
const rate = (value) => (value >= 1e12 ? `${(value / 1e12).toPrecision(3)} T` : value >= 1e9 ? `${(value / 1e9).toPrecision(3)} G` : `${(value / 1e6).toPrecision(3)} M`);

export function benchPanel({ act, bus, save }) {
  const list = h("div.ein-scroll");
  const device = h("select", { ariaLabel: "device", onchange: () => placed() });
  const file = h("input", { type: "text", placeholder: "FILE.sqlite or FILE.json", title: "times that were recorded on another machine", ariaLabel: "file of the profile", hidden: true });
  const note = h("p.ein-faint");
  const rounds = h("input", { type: "number", min: 3, max: 500, value: 15, ariaLabel: "rounds" });
  const start = h("button", { type: "button", title: "measure the selected programs in interleaved rounds", onclick: () => go() }, "Measure");
  const stop = h("button", { type: "button", onclick: () => act({ do: "bench_stop" }) }, "■ Stop");
  const csv = h("button", { type: "button", onclick: () => save("bench.csv", state.csv) }, "CSV");
  const svg = h("button", { type: "button", onclick: () => save("bench.svg", state.svg) }, "SVG");
  const said = h("span", { role: "status" });
  const progress = h("progress", { max: 1, value: 0, ariaLabel: "progress of the measurement" });
  const body = h("div.ein-bench", {}, h("div.ein-tools", {}, h("label", {}, "on ", device), file, h("label", {}, rounds, " rounds"), start, stop, progress, said, csv, svg), note, list);
  let state = { rows: [] };
  const chosen = new Set();

  function go() {
    act({ do: "bench", keys: state.rows.filter((row) => chosen.has(row.key) && fits(row)).map((row) => row.key), rounds: Number(rounds.value), device: device.value === PROFILE ? PROFILE + file.value.trim() : device.value });
  }

  /** Another device was chosen: other engines run on the CPU only. */
  function placed() {
    file.hidden = device.value !== PROFILE;
    rows();
  }

  function draw(next) {
    const known = new Set(state.rows.map((row) => row.key));
    state = next;
    for (const row of next.rows) if (!known.has(row.key) && row.suggested) chosen.add(row.key);
    if (device.children.length !== next.devices.length) {
      const was = device.value || next.device;
      device.replaceChildren(...next.devices.map((d) => h("option", { value: d.name, disabled: Boolean(d.missing), title: d.missing }, d.missing ? `${d.says} (not available)` : d.says)));
      device.value = next.devices.find((d) => was.startsWith(d.name))?.name ?? next.devices[0].name;
    }
    note.textContent = next.note;
    note.hidden = !next.note;
    start.disabled = next.running;
    stop.hidden = !next.running;
    csv.disabled = !next.csv;
    svg.disabled = !next.svg;
    progress.hidden = !next.running;
    progress.value = next.progress;
    said.textContent = next.says ?? "";
    bus.measured?.(next.rows);
    rows();
  }

  function rows() {
    const slowest = Math.max(0, ...state.rows.map((row) => row.measured ?? 0));
    list.replaceChildren(
      h(
        "table",
        {},
        h("caption", {}, state.caption),
        h("thead", {}, h("tr", {}, ["measure", "program", "estimated", "measured ± IQR", "share", "speed-up", "max |err|", "of the roof", "FLOP/s", "bytes/s"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, state.rows.map((row) => line(row, slowest))),
      ),
    );
  }

  /** Whether *row* can be measured on the chosen device. */
  const fits = (row) => !row.missing && (!row.engine || device.value === "cpu");

  function line(row, slowest) {
    if (row.missing) return h("tr.ein-faint", {}, h("td"), h("td", {}, row.label), h("td", { colSpan: 8 }, row.missing));
    const box = h("input", {
      type: "checkbox",
      checked: (chosen.has(row.key) && fits(row)) || row.key === ORIGINAL,
      disabled: row.key === ORIGINAL || !fits(row), // the others are compared with the original
      ariaLabel: `measure ${row.label}`,
      onchange: () => (box.checked ? chosen.add(row.key) : chosen.delete(row.key)),
    });
    const bar = row.measured && slowest ? h("div.ein-bar", { style: `width:${(100 * row.measured) / slowest}%` }) : null;
    return h(
      "tr",
      {},
      h("td", {}, box),
      h("td", {}, row.label),
      h("td.ein-number", {}, row.estimated == null ? "" : seconds(row.estimated)),
      h("td.ein-number", {}, row.failed ? h("span.worse", {}, row.failed) : row.measured ? row.how ? `${seconds(row.measured)} (${row.how})` : `${seconds(row.measured)} ± ${seconds(row.iqr)}` : ""),
      h("td.ein-bars", {}, bar),
      h("td.ein-number", {}, row.speedup ? `${row.speedup.toFixed(2)}×` : ""),
      h("td.ein-number", {}, row.error == null ? "" : row.error.toExponential(1)),
      h("td.ein-number", {}, row.roof ? `${percent(row.roof.part)} (${row.roof.bound})` : ""),
      h("td.ein-number", {}, row.roof ? `${rate(row.roof.flops)} (${percent(row.roof.flops_part)})` : ""),
      h("td.ein-number", {}, row.roof ? `${rate(row.roof.bytes)} (${percent(row.roof.bytes_part)})` : ""),
    );
  }

  return { title: "Benchmark", body, draw };
}
