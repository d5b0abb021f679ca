// A filter in words, as a test of states; words that mean nothing are refused, with what may have been meant.
import { NONE, PHASES } from "./columns.js";

const UNITS = { "": 1, s: 1, ms: 1e-3, us: 1e-6, µs: 1e-6, ns: 1e-9 };
const FIELDS = ["candidates", "false", "distance", "depth", "cost", "steps", "rule:", "operator:", "phase:", "why:"];
const COMPARE = {
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b,
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
};
const READ = {
  distance: (c, n) => (c.distance[n] === NONE ? null : c.distance[n]),
  depth: (c, n) => c.depth[n],
  steps: (c, n) => c.found.get(n)?.steps ?? null,
  cost: (c, n) => (c.seconds[n] < 0 ? null : c.seconds[n]),
};
READ.seconds = READ.cost;

/**
 * A test of states from *words*, all of which are meant, or null where they say nothing: `distance<=1`, `depth=3`,
 * `steps<9`, `cost<20us`, `candidates`, `false` (candidates with a false step), `phase:converging`, `rule:split` (a rule on the way), `operator:matmul`, `m=196`
 * (an attribute of a call), `why:"same program"` (of a move that was not followed), or a part of the last rule's or of an
 * operator's name.  Throws what it does not understand.
 */
export function filter(words, columns) {
  const tests = (words.match(/(?:[^\s"]|"[^"]*"?)+/g) ?? []).map((word) => test(word.replaceAll('"', ""), columns));
  return tests.length ? (c, n) => tests.every((one) => one(c, n)) : null;
}

function test(word, columns) {
  const compared = /^(\w+?)(<=|>=|=|<|>)(.+)$/.exec(word);
  if (compared && !word.startsWith("why:")) return comparison(word, ...compared.slice(1));
  const [, field, value] = /^(\w+):(.*)$/.exec(word) ?? [];
  const text = (value ?? word).toLowerCase();
  const rules = columns.rules.filter((rule) => rule.includes(text));
  const operators = [...columns.found.values()].some((one) => one.operators.toLowerCase().includes(text));
  switch (field) {
    case undefined:
      if (word === "candidates" || word === "candidate") return (c, n) => c.candidate(n);
      if (word === "false") return (c, n) => c.wrong.has(n);
      if (columns.count && !rules.length && !operators) throw new Error(`found no rule or operator with ${word}${meant(word, columns)}`);
      return (c, n) => (c.rules[c.rule[n]] ?? "").includes(text) || calls(c, n).includes(text);
    case "rule":
      if (columns.count && !rules.length) throw new Error(`found no rule with ${text}${meant(text, columns)}`);
      return (c, n) => c.way(n).some((k) => k && (c.rules[c.rule[k]] ?? "").includes(text));
    case "operator":
      if (columns.count && !operators) throw new Error(`found no candidate that calls ${text}${meant(text, columns)}`);
      return (c, n) => calls(c, n).includes(text);
    case "phase":
      if (!PHASES.includes(text)) throw new Error(`found phase ${text}, expected one of ${PHASES.join(", ")}`);
      return (c, n) => PHASES[c.phase[n]] === text;
    case "why":
      return because(text, columns);
    default:
      throw new Error(`found field ${field}, expected one of ${FIELDS.join(", ")}`);
  }
}

function comparison(word, name, sign, value) {
  const [, digits, unit] = /^([\d.]+(?:e[+-]?\d+)?)(s|ms|us|µs|ns)?$/i.exec(value) ?? [];
  const bound = Number(digits) * (UNITS[unit ?? ""] ?? NaN);
  if (name in READ) {
    if (Number.isNaN(bound)) throw new Error(`${word}: found ${value}, expected a number`);
    return (c, n) => {
      const here = READ[name](c, n);
      return here !== null && COMPARE[sign](here, bound);
    };
  }
  if (sign !== "=") throw new Error(`${word}: expected one of ${Object.keys(READ).join(", ")} and a number`);
  const call = new RegExp(`\\b${name}=${value.replace(/[^\w.-]/g, "")}\\b`); // an attribute of a call
  return (c, n) => call.test(c.found.get(n)?.operators ?? "");
}

/** A test of states with a move that was not followed, and a reason with *text*. */
function because(text, columns) {
  if (!columns.reasons) return () => false; // they come when they are asked for
  const { texts, pairs } = columns.reasons;
  const wanted = new Set(texts.flatMap((reason, n) => (reason.toLowerCase().includes(text) ? [n] : [])));
  if (texts.length && !wanted.size) throw new Error(`found no reason with ${text}, expected a part of ${texts.slice(0, 3).map((t) => `“${t}”`).join(", ")}${texts.length > 3 ? ", …" : ""}`);
  const states = new Set();
  for (let k = 0; k < pairs.length; k += 2) if (wanted.has(pairs[k + 1])) states.add(pairs[k]);
  return (_, n) => states.has(n);
}

const calls = (c, n) => (c.found.get(n)?.operators ?? "").toLowerCase();

/** The known word that is nearest to *word*, as a question. */
function meant(word, columns) {
  const operators = [...columns.found.values()].flatMap((one) => one.operators.toLowerCase().match(/[a-z]\w*(?=\()/g) ?? []);
  const known = new Set([...columns.rules.flatMap((rule) => [rule, ...rule.split("_")]), ...operators, ...FIELDS]);
  const [near, far] = [...known].map((one) => [one, distance(word, one)]).sort((a, b) => a[1] - b[1])[0] ?? ["", Infinity];
  return far <= Math.max(1, word.length / 3) ? `; ${near} was meant?` : "";
}

/** The edit distance of two words. */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, k) => k);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let k = 1; k <= b.length; k++) next[k] = Math.min(next[k - 1] + 1, row[k] + 1, row[k - 1] + (a[i - 1] === b[k - 1] ? 0 : 1));
    row = next;
  }
  return row[b.length];
}
