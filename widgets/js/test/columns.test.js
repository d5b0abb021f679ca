import { describe, expect, it } from "./check.js";
import { candidateTable } from "../src/candidates.js";
import { Columns, layout } from "../src/columns.js";
import { filter } from "../src/filter.js";

function batch(from, states, merged = 0, merges = []) {
  const n = states.length;
  const bytes = new Uint8Array(12 * n + 8 * merges.length);
  const column = (type, offset, values) => new type(bytes.buffer, offset, values.length).set(values);
  column(Int32Array, 0, states.map((s) => s.parent));
  column(Float32Array, 4 * n, states.map((s) => s.seconds ?? -1));
  column(Int32Array, 8 * n, merges.flat());
  const rest = 8 * n + 8 * merges.length;
  column(Uint8Array, rest, states.map((s) => s.depth ?? 0));
  column(Uint8Array, rest + n, states.map((s) => s.distance ?? 255));
  column(Uint8Array, rest + 2 * n, states.map((s) => s.phase ?? 1));
  column(Uint8Array, rest + 3 * n, states.map((s) => s.rule ?? 0));
  return [{ from, count: n, merged, merges: merges.length, rules: ["summation_splitting", "traversal_merging"], found: states.flatMap((s, k) => (s.operators ? [{ state: from + k, eoperators: 1, steps: 3, ...s }] : [])) }, new DataView(bytes.buffer)];
}

const TREE = [
  { parent: 0, phase: 0 },
  { parent: 0, depth: 1, distance: 2 },
  { parent: 0, depth: 1, distance: 1, rule: 1 },
  { parent: 1, depth: 1, distance: 0, phase: 2, seconds: 0.002, operators: "Matmul(m=196, n=32)" },
  { parent: 1, depth: 2, distance: 1 },
];

describe("columns", () => {
  it("take states in order, and none twice", () => {
    const columns = new Columns();
    expect(columns.append(...batch(0, TREE.slice(0, 3), 0, [[1, 2]]))).toBe(true);
    expect(columns.append(...batch(4, TREE.slice(4)))).toBe(false); // state 3 is missing
    expect(columns.append(...batch(0, TREE, 0, [[1, 2], [2, 0]]))).toBe(true); // from the start again, and one more
    expect(columns.count).toBe(5);
    expect(columns.merges).toEqual([[1, 2], [2, 0]]);
    expect([...columns.parent.slice(0, 5)]).toEqual([0, 0, 0, 1, 1]);
    expect(columns.way(4)).toEqual([4, 1, 0]);
    expect(columns.candidate(3)).toBe(true);
  });

  it("grow beyond what they have room for", () => {
    const columns = new Columns();
    const many = Array.from({ length: 3000 }, (_, n) => ({ parent: Math.max(0, n - 1), distance: n % 7 }));
    columns.append(...batch(0, many.slice(0, 900)));
    columns.append(...batch(900, many.slice(900)));
    expect(columns.count).toBe(3000);
    expect(columns.distance[2999]).toBe(2999 % 7);
    expect(columns.parent[901]).toBe(900);
  });
});

describe("layout", () => {
  it("puts leaves side by side and parents in the middle", () => {
    const columns = new Columns();
    columns.append(...batch(0, TREE));
    const { x, row, rows, leaves } = layout(columns);
    expect(leaves).toBe(3); // 3, 4 and 2
    expect([...x]).toEqual([1.25, 0.5, 2, 0, 1]);
    expect([...row]).toEqual([0, 1, 1, 2, 2]);
    expect(rows).toBe(2);
  });

  it("lays out ten thousand states quickly, a chain of them, and none", () => {
    const columns = new Columns();
    columns.append(...batch(0, Array.from({ length: 10_000 }, (_, n) => ({ parent: n ? n - 1 : 0 }))));
    expect(layout(columns).leaves).toBe(1);
    expect(layout(new Columns()).leaves).toBe(1);
    const wide = new Columns();
    wide.append(...batch(0, Array.from({ length: 10_000 }, (_, n) => ({ parent: Math.floor((n - 1) / 3) || 0 }))));
    const { x, row, first, next } = layout(wide);
    for (let n = 0; n < wide.count; n++) {
      const children = [];
      for (let k = first[n]; k >= 0; k = next[k]) children.push(k);
      if (children.length) expect(x[n]).toBe((x[children[0]] + x[children.at(-1)]) / 2);
      for (const k of children) expect(row[k]).toBe(row[n] + 1);
    }
  });
});

describe("filter", () => {
  const columns = new Columns();
  columns.append(...batch(0, TREE));
  const kept = (words) => {
    const test = filter(words, columns);
    return TREE.map((_, n) => n).filter((n) => !test || test(columns, n));
  };

  it("understands numbers, candidates and rules, all at once", () => {
    expect(kept("")).toEqual([0, 1, 2, 3, 4]);
    expect(kept("distance<=1")).toEqual([2, 3, 4]);
    expect(kept("distance<=1 depth=1")).toEqual([2, 3]);
    expect(kept("candidates")).toEqual([3]);
    expect(kept("seconds<0.01")).toEqual([3]);
    expect(kept("cost<3ms")).toEqual([3]);
    expect(kept("cost<200us")).toEqual([]);
    expect(kept("steps<=3")).toEqual([3]);
    expect(kept("merging")).toEqual([2]);
    expect(kept("phase:converging")).toEqual([3]);
  });

  it("finds calls by operator and attributes, and rules on the way", () => {
    expect(kept("operator:matmul")).toEqual([3]);
    expect(kept("matmul m=196")).toEqual([3]);
    expect(kept("operator:matmul m=19")).toEqual([]);
    expect(kept("rule:split")).toEqual([1, 3, 4]);
  });

  it("says what it does not understand, and what may have been meant", () => {
    expect(() => filter("colour<1", columns)).toThrow("expected one of distance, depth, steps, cost, seconds");
    expect(() => filter("depth<1e", columns)).toThrow("expected a number");
    expect(() => filter("spliting", columns)).toThrow("splitting was meant?");
    expect(() => filter("operator:matmol", columns)).toThrow("matmul was meant?");
    expect(() => filter("rules:split", columns)).toThrow("expected one of candidates");
    expect(() => filter("phase:middle", columns)).toThrow("expected one of start");
    expect(kept("why:luck")).toEqual([]); // no reasons are known yet
  });

  it("finds states by the reasons of moves that were not followed", () => {
    columns.explain(["the same program", "eOperator: intensity # < #"], new DataView(Int32Array.of(1, 0, 4, 0, 4, 1).buffer));
    expect(kept('why:"same program"')).toEqual([1, 4]);
    expect(kept('why:"intensity # <" depth=2')).toEqual([4]);
    expect(() => filter("why:luck", columns)).toThrow("expected a part of “the same program”");
  });

  it("keeps the ways to what it finds", () => {
    const flags = Uint8Array.from(TREE, (_, n) => (n === 3 ? 1 : 0));
    const { row, leaves } = layout(columns, columns.ways(flags));
    expect([...row]).toEqual([0, 1, -1, 2, -1]);
    expect(leaves).toBe(1);
  });
});

describe("candidates", () => {
  it("are in one row if they have the same calls, sorted, and filtered", async () => {
    const columns = new Columns();
    const call = (operators, seconds) => ({ parent: 0, phase: 2, depth: 1, operators, seconds, numerics: "exact" });
    columns.append(...batch(0, [{ parent: 0, phase: 0 }, call("Matmul(m=2)", 3), call("Conv2d(n=1)", 2), call("Matmul(m=2)", 1)]));
    const picked = [];
    const table = candidateTable({ pick: (n) => picked.push(n) });
    document.body.replaceChildren(table.root);
    const rows = () => [...table.root.querySelectorAll("tbody tr")].map((tr) => tr.cells[0].innerText.trim());
    table.show(columns, null, -1);
    await new Promise((done) => setTimeout(done, 50));
    expect(table.root.querySelector("caption").textContent).toBe("3 candidates, 2 sets of calls");
    expect(rows()).toEqual(["3 +1", "2"]);
    table.root.querySelector("tbody button[aria-expanded]").click();
    expect(rows()).toEqual(["3 −1", "1", "2"]);
    table.root.querySelectorAll("thead button")[1].click();
    expect(rows()[0]).toBe("2"); // Conv2d comes first
    table.root.querySelector("tbody button").click();
    expect(picked).toEqual([2]);
    const cell = (name) => [...table.root.querySelectorAll(`td[data-column="${name}"]`)].map((td) => td.textContent);
    table.measured(new Map([[2, 5e-6], [3, 2e-6]]));
    expect([cell("measured"), cell("rules"), cell("numerics")]).toEqual([["5.00 µs", "2.00 µs", ""], ["summation splitting", "summation splitting", "summation splitting"], ["exact", "exact", "exact"]]);
    table.show(columns, Uint8Array.from([0, 1, 0, 0]), -1);
    await new Promise((done) => setTimeout(done, 600));
    expect(table.root.querySelector("caption").textContent).toBe("1 of 3 candidates, 1 set of calls");
    columns.wrong = new Map([[3, { rule: "half", why: "rule half makes a false step at 0: element [0, 0]" }]]);
    table.show(columns, null, -1);
    await new Promise((done) => setTimeout(done, 600));
    expect(table.root.querySelector("caption").textContent).toBe("3 candidates (1 false), 3 sets of calls");
    expect(rows()).toEqual(["2", "1", "3"]); // last, though it is the cheapest
    expect([cell("numerics")[2], table.root.querySelector(".ein-false").title]).toEqual(["✗ false: rule half", "rule half makes a false step at 0: element [0, 0]"]);
    expect([1, 2, 3].filter((n) => filter("false", columns)(columns, n))).toEqual([3]);
    table.destroy();
  });
});
