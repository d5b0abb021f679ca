// A model that answers from what Python recorded: every node of a session, and the states of its last search.

const NO_KERNEL = "this page has no kernel";

export class Offline {
  constructor(data) {
    this.data = data;
    this.listeners = {};
    this.node = data.here;
    this.undone = [];
    this.reach = "scope";
    this.further = false;
    this.at = data.nodes[data.here].expression.at;
    this.token = "";
    this.state = { panels: data.panels, label: "einnet explorer, recorded", notice: {}, search: data.search };
    this.show();
  }

  get(name) {
    return this.state[name];
  }

  on(event, listener) {
    (this.listeners[event] ??= []).push(listener);
  }

  off(event, listener) {
    this.listeners[event] = (this.listeners[event] ?? []).filter((each) => each !== listener);
  }

  emit(event, ...values) {
    for (const listener of this.listeners[event] ?? []) listener(...values);
  }

  set(values) {
    Object.assign(this.state, values);
    for (const name of Object.keys(values)) this.emit(`change:${name}`);
  }

  /** Grey out the controls in *root* whose message, named by `data-do`, only a kernel answers. */
  greyOut(root) {
    for (const control of root.querySelectorAll("[data-do]")) {
      if (this[`do_${control.dataset.do}`]) continue;
      if ("disabled" in control) control.disabled = true;
      else control.inert = true;
      if (!control.title.includes(NO_KERNEL)) control.title = [`only in a notebook, as ${NO_KERNEL}`, control.title].filter(Boolean).join(": ");
    }
  }

  get here() {
    return this.data.nodes[this.node];
  }

  show() {
    const { head, history, expression, rules, refusals, graph } = this.here;
    const paths = expression.paths;
    while (this.at && !paths.includes(this.at)) this.at = this.at.split(".").slice(0, -1).join(".");
    const at = (this.at ||= expression.at);
    if (!this.token || !(this.token in expression.tokens)) this.token = at && `p${at}`;
    const names = this.token.startsWith("p") ? [] : (expression.tokens[this.token]?.names ?? []);
    const about = (m) => m.at === at && (JSON.stringify({ ...m.params, attributes: null }).match(/[\p{L}\p{N}_]+/gu) ?? []).some((word) => names.includes(word));
    const inside = { selection: (m) => m.at === at && (!names.length || about(m)), scope: (m) => m.at === at || m.at.startsWith(`${at}.`), everywhere: () => true }[this.reach];
    this.set({
      head: { ...head, redo: this.undone.length > 0 },
      history,
      expression: { ...expression, at, token: this.token },
      rules: { ...rules, at, reach: this.reach, open: this.further, matches: rules.matches.filter(inside), refusals: refusals[at]?.refusals ?? [], laws: { ...rules.laws, ...refusals[at]?.laws } },
      graph: { ...graph, at: Object.keys(graph.paths).find((name) => graph.paths[name] === at.split(".")[0]) ?? "" },
    });
  }

  goto(node) {
    this.node = node;
    this.at = this.here.expression.at;
    this.show();
  }

  say(text, code = "") {
    this.set({ notice: { text, kind: "", code } });
  }

  send(message) {
    if (this.state.notice.text && !["state", "tree", "preview", "select", "hover", "why"].includes(message.do)) this.say("");
    const answer = this[`do_${message.do}`];
    if (answer) answer.call(this, message);
    else this.say(`${NO_KERNEL}: run it in a notebook to ${message.do}`);
  }

  do_hush() {}

  do_open() {}

  do_close() {}

  do_preview() {}

  do_select({ at, token }) {
    this.at = at;
    this.token = token ?? `p${at}`;
    this.show();
  }

  do_reach({ reach }) {
    this.reach = reach;
    this.show();
  }

  do_further({ open }) {
    this.further = open;
    this.show();
  }

  do_goto({ node }) {
    this.undone = [];
    this.goto(node);
  }

  do_undo() {
    if (this.here.parent < 0) return;
    this.undone.push(this.node);
    this.goto(this.here.parent);
  }

  do_redo() {
    if (this.undone.length) this.goto(this.undone.pop());
  }

  do_apply({ rule, at, params }) {
    const wanted = JSON.stringify([rule, at, params]);
    const child = this.here.children.find((c) => JSON.stringify([c.rule, c.at, c.params]) === wanted);
    if (child) {
      this.undone = [];
      this.goto(child.node);
    } else this.say(`${NO_KERNEL}: this step was not recorded; the expression above shows its result`);
  }

  do_check() {
    this.say("the list shows the verdict of every step: ✓ proved, ≈ rounded or exact (equal on random inputs), ? unknown, ✗ false");
  }

  do_script() {
    this.say("the whole session as Python", this.data.script);
  }

  do_latex() {
    this.say("the derivation in LaTeX (amsmath)", this.data.latex);
  }

  do_export() {
    this.emit("msg:custom", { do: "file", name: "session.py", text: this.data.script }, []);
  }

  do_save() {
    this.do_export();
  }

  do_share() {
    this.say("this page is the file to share");
  }

  do_tree() {
    for (const { header, bytes } of this.data.tree?.batches ?? []) {
      const buffer = Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0));
      this.emit("msg:custom", header, [new DataView(buffer.buffer)]);
    }
  }

  do_why() {
    const { header, bytes } = this.data.tree.why;
    const buffer = Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0));
    this.emit("msg:custom", header, [new DataView(buffer.buffer)]);
  }

  do_hover({ state }) {
    const shown = this.data.tree.details[state];
    if (shown) this.emit("msg:custom", { do: "hover", shown }, []);
  }

  do_state({ state }) {
    const detail = this.data.tree.details[state];
    if (detail) this.set({ search: { ...this.state.search, detail } });
    else this.say(`${NO_KERNEL}: only the position of state ${state} in the tree was recorded`);
  }
}
