// The states of a search as columns that grow, as they come from Python.

const GROWTH = 2;
export const NONE = 255;
export const PHASES = ["start", "explorative", "converging"];

export class Columns {
  constructor() {
    this.count = 0;
    this.merges = [];
    this.rules = [];
    this.found = new Map();
    this.wrong = new Map(); // the rule that makes a false candidate, and why, by state
    this.reasons = null;
    this.reserve(1024);
  }

  reserve(size) {
    const grown = (type, old) => {
      const made = new type(size);
      if (old) made.set(old.subarray(0, this.count));
      return made;
    };
    this.capacity = size;
    this.parent = grown(Int32Array, this.parent);
    this.seconds = grown(Float32Array, this.seconds);
    this.depth = grown(Uint8Array, this.depth);
    this.distance = grown(Uint8Array, this.distance);
    this.phase = grown(Uint8Array, this.phase);
    this.rule = grown(Uint8Array, this.rule);
  }

  /**
   * Take in *count* states from number *from* on, and *merges* (pairs: a state, and the one it would have reached again)
   * from number *merged* on, and what is known of the candidates *found*.  What is here already is left; returns false
   * where states before *from* are missing.
   */
  append({ from, count, merged, merges, rules, found }, buffer) {
    if (from > this.count) return false;
    if (rules) this.rules = rules;
    for (const one of found ?? []) this.found.set(one.state, one);
    const bytes = buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength);
    let offset = 0;
    const take = (type, n) => {
      const taken = new type(bytes, offset, n);
      offset += taken.byteLength;
      return taken;
    };
    const columns = {
      parent: take(Int32Array, count),
      seconds: take(Float32Array, count),
      pairs: take(Int32Array, 2 * merges),
      depth: take(Uint8Array, count),
      distance: take(Uint8Array, count),
      phase: take(Uint8Array, count),
      rule: take(Uint8Array, count),
    };
    if (from + count > this.capacity) this.reserve(Math.max(from + count, GROWTH * this.capacity));
    for (const name of ["parent", "seconds", "depth", "distance", "phase", "rule"]) this[name].set(columns[name], from);
    this.count = Math.max(this.count, from + count);
    for (let k = this.merges.length - merged; k >= 0 && k < merges; k++) this.merges.push([columns.pairs[2 * k], columns.pairs[2 * k + 1]]);
    return true;
  }

  /** Take in why moves were not followed: *texts*, and pairs of a state and the number of its text. */
  explain(texts, buffer) {
    this.reasons = { texts, pairs: new Int32Array(buffer.buffer.slice(buffer.byteOffset, buffer.byteOffset + buffer.byteLength)) };
  }

  candidate(n) {
    return this.phase[n] === 2;
  }

  /** The flags of the states on the ways to those that *matches* flags; the start always has one. */
  ways(matches) {
    const kept = new Uint8Array(this.count);
    if (this.count) kept[0] = 1;
    for (let n = this.count - 1; n > 0; n--) if (matches[n] || kept[n]) kept[n] = kept[this.parent[n]] = 1;
    return kept;
  }

  /** The states from *n* up to the start. */
  way(n) {
    const found = [];
    for (let k = n; k > 0; k = this.parent[k]) found.push(k);
    return n >= 0 ? [...found, 0] : found;
  }

  /** The rules of the moves from the start to state *n*, each once. */
  rulesOn(n) {
    const names = this.way(n).filter((k) => k).map((k) => (this.rules[this.rule[k]] ?? "").replaceAll("_", " "));
    return [...new Set(names.reverse())].filter(Boolean);
  }
}

/**
 * Leaves side by side in the order of a walk, parents above the middle of their children; *row* is the depth below the
 * start.  States that *kept* (a flag a state) leaves out have no place: their row is -1.
 */
export function layout(columns, kept = null) {
  const n = columns.count;
  const x = new Float64Array(n);
  const row = new Int32Array(n);
  const first = new Int32Array(n).fill(-1);
  const last = new Int32Array(n).fill(-1);
  const next = new Int32Array(n).fill(-1);
  let rows = 0;
  for (let k = 1; k < n; k++) {
    const p = columns.parent[k];
    if (kept && !kept[k]) {
      row[k] = -1;
      continue;
    }
    row[k] = row[p] + 1;
    if (row[k] > rows) rows = row[k];
    if (first[p] < 0) first[p] = k;
    else next[last[p]] = k;
    last[p] = k;
  }
  let leaves = 0;
  let here = n ? 0 : -1;
  while (here >= 0) {
    while (first[here] >= 0) here = first[here];
    x[here] = leaves++;
    while (here >= 0 && next[here] < 0) {
      here = here === 0 ? -1 : columns.parent[here];
      if (here >= 0) x[here] = (x[first[here]] + x[last[here]]) / 2;
    }
    if (here >= 0) here = next[here];
  }
  return { x, row, rows, leaves: Math.max(1, leaves), first, next };
}
