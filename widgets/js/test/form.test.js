import { describe, expect, it, spy } from "./check.js";
import { form, read, show } from "../src/form.js";

describe("parameters as text", () => {
  const values = [["r", "s"], [], [0, 1], { t1: "h+r-1", n: "n" }, "Matmul", 3, true, { r: [0, 4] }, [[1, 2]]];
  for (const value of values) {
    it(`reads back ${JSON.stringify(value)}`, () => expect(read(show(value), value)).toEqual(value));
  }

  it("keeps equal signs in indices, and ignores empty lines", () => {
    expect(read("a = x == 1\n\n b=y ", { a: "x" })).toEqual({ a: "x == 1", b: "y" });
  });
});

describe("a form", () => {
  const match = { params: { outer: ["c"], apart: true } };

  it("gives what is written in it", () => {
    const submit = spy();
    const made = form(match, submit);
    made.querySelector("input").value = "r, s";
    made.dispatchEvent(new Event("submit", { cancelable: true }));
    expect(submit).toHaveBeenLastCalledWith({ outer: ["r", "s"], apart: true });
  });

  it("says what it cannot read, and gives nothing", () => {
    const submit = spy();
    const made = form(match, submit);
    made.querySelectorAll("input")[1].value = "yes!";
    made.dispatchEvent(new Event("submit", { cancelable: true }));
    expect(submit).toHaveBeenCalledTimes(0);
    expect(made.querySelector("[role=alert]").textContent).toContain("apart");
  });
});
