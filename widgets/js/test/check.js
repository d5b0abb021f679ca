// What the tests are written with: they run in a browser, from the sources, without Node (tests/test_front_end.py).

const tests = [];
const before = [];
const within = [];

export function describe(name, define) {
  within.push(name);
  define();
  within.pop();
}

export function it(name, test) {
  tests.push({ name: [...within, name].join(" "), test });
}

export function beforeAll(prepare) {
  before.push(prepare);
}

/** Run all tests in turn; one line a test that failed, and how many there were. */
export async function run() {
  for (const prepare of before) await prepare();
  const failed = [];
  for (const { name, test } of tests) {
    try {
      await test();
    } catch (error) {
      failed.push(`${name}: ${error.stack ?? error}`);
    }
  }
  return { count: tests.length, failed };
}

/** A function that remembers what it was called with. */
export function spy() {
  const made = (...given) => {
    made.calls.push(given);
  };
  made.calls = [];
  return made;
}

/** Whether two plain values are the same, whatever the order of their keys. */
export function same(a, b) {
  if (Object.is(a, b)) return true;
  if (typeof a !== "object" || typeof b !== "object" || a === null || b === null || Array.isArray(a) !== Array.isArray(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => name in b && same(a[name], b[name]));
}

function fail(found, sense, expected) {
  throw new Error(`found ${say(found)}, expected ${sense}${say(expected)}`);
}

function say(value) {
  if (value instanceof Node || typeof value === "function") return String(value);
  return JSON.stringify(value) ?? String(value);
}

export function expect(found) {
  return {
    toBe: (expected) => Object.is(found, expected) || fail(found, "", expected),
    toEqual: (expected) => same(found, expected) || fail(found, "", expected),
    toContain: (expected) => found.includes(expected) || fail(found, "it to contain ", expected),
    toThrow: (says = "") => {
      let error;
      try {
        found();
      } catch (thrown) {
        error = thrown;
      }
      if (!error?.message.includes(says)) fail(error?.message, "an error that says ", says);
    },
    toHaveBeenLastCalledWith: (...expected) => same(found.calls.at(-1), expected) || fail(found.calls.at(-1), "", expected),
    toHaveBeenCalledTimes: (n) => found.calls.length === n || fail(found.calls, `${n} calls `, n),
    not: {
      toBe: (expected) => Object.is(found, expected) && fail(found, "other than ", expected),
      toEqual: (expected) => same(found, expected) && fail(found, "other than ", expected),
    },
  };
}
