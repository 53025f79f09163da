// The fleet: counts that filter, and a grid a policy.

import { ago, count, el, show } from "./dom.js";
import { CODES, Grid, MODES, SAID, VERDICTS } from "./grid.js";
import { badge, progress } from "./policy.js";

const NAMES = { breached: "Breached", held: "Held", waiting: "Not acknowledged", acknowledged: "Acknowledged", unknown: "Unknown" };

/** The view of all policies; with a name, of one policy's workloads alone. */
export class Fleet {
  constructor(state, open, only = "") {
    this.state = state;
    this.open = open;
    this.only = only;
    this.sections = new Map();
    this.chosen = new Set();
    this.words = "";
    this.filters = el("div", { class: "filters", role: "group", "aria-label": "Filter workloads" });
    this.search = el("input", {
      type: "search", class: "search", placeholder: "Filter by name", "aria-label": "Filter workloads by name",
      oninput: () => { this.words = this.search.value.trim().toLowerCase(); this.refilter(); },
    });
    this.list = el("div", { class: "policies" });
    this.empty = el("p", { class: "none", hidden: true });
    this.node = el("div", { class: "fleet" },
      only ? el("h2", {}, "Workloads") : el("h1", { class: "unseen" }, "Fleet"),
      el("div", { class: "tools" }, this.filters, this.search), legend(), this.empty, this.list);
    this.update({ policies: Object.entries(state.policies), workloads: Object.entries(state.workloads) });
  }

  mine(key) {
    return !this.only || key === this.only;
  }

  /** Take in what changed. */
  update({ policies = [], workloads = [] }) {
    for (const [key, row] of policies) {
      if (!this.mine(key)) continue;
      if (row === null) this.drop(key);
      else this.head(this.section(key), key, row);
    }
    const byPolicy = new Map();
    for (const [id, row] of workloads) {
      const key = row?.policy ?? this.owner(id);
      if (!key || !this.mine(key)) continue;
      if (!byPolicy.has(key)) byPolicy.set(key, []);
      byPolicy.get(key).push([id, row]);
    }
    for (const [key, changes] of byPolicy) this.section(key).grid.update(changes);
    if (workloads.length || policies.length) this.counts();
  }

  owner(id) {
    for (const [key, section] of this.sections) if (section.grid.cells.has(id)) return key;
    return "";
  }

  section(key) {
    let found = this.sections.get(key);
    if (!found) {
      const grid = new Grid(key, this.open);
      grid.filter = (row) => this.passes(row);
      const head = el("div", { class: "policy-head" });
      found = { grid, head, node: el("section", { class: "card policy", "aria-label": `Policy ${key}` }, this.only ? null : head, grid.node) };
      this.sections.set(key, found);
      const after = [...this.sections.keys()].sort().indexOf(key);
      this.list.insertBefore(found.node, this.list.children[after] ?? null);
    }
    return found;
  }

  head(section, key, row) {
    show(section.head,
      el("h2", {}, el("a", { href: `#/policy/${key}`, id: `open-${key}` }, key)), badge(row),
      el("span", { class: "faint" }, "for ", ago(row.phaseSince)),
      el("span", { class: "grow" }),
      row.step ? el("span", {}, `step ${row.step}`) : null, progress(row),
      el("p", { class: "why" }, el("b", {}, row.reason || "no reason yet"), row.message ? `: ${row.message}` : ""));
  }

  drop(key) {
    this.sections.get(key)?.node.remove();
    this.sections.delete(key);
  }

  counts() {
    const rows = [...this.sections.values()].flatMap((section) => [...section.grid.rows.values()]);
    const by = (field, value) => rows.filter((row) => row[field] === value).length;
    const chip = (field, value, name, code) => {
      const id = `${field}:${value}`;
      return el("button", {
        type: "button", class: "chip", id: `chip-${field}-${value}`, "aria-pressed": String(this.chosen.has(id)), onclick: () => this.toggle(id),
      }, el("span", { class: "cell", "data-mode": field === "mode" ? value : "none", "data-verdict": field === "verdict" ? value : "acknowledged", "aria-hidden": "true" }, code),
      name, " ", el("b", {}, count(by(field, value))));
    };
    show(this.filters, el("span", { class: "total" }, el("b", {}, count(rows.length)), " workloads"),
      MODES.filter((mode) => by("mode", mode)).map((mode) => chip("mode", mode, mode === "unknown" ? "mode unknown" : mode, CODES[mode])),
      el("span", { class: "divider" }),
      VERDICTS.map((verdict) => chip("verdict", verdict, NAMES[verdict], "")));
    this.empty.hidden = this.sections.size > 0 || !this.state.known;
    this.empty.textContent = "No PrecisionPolicy here. `kubectl precision dashboard -A` shows all namespaces.";
  }

  toggle(id) {
    if (!this.chosen.delete(id)) this.chosen.add(id);
    this.refilter();
    this.counts();
  }

  refilter() {
    for (const section of this.sections.values()) section.grid.show((row) => this.passes(row));
  }

  passes(row) {
    const chosen = (field) => [...this.chosen].filter((id) => id.startsWith(field)).map((id) => id.slice(field.length + 1));
    const among = (field) => { const some = chosen(field); return !some.length || some.includes(row[field]); };
    return row.name.toLowerCase().includes(this.words) && among("mode") && among("verdict");
  }
}

function legend() {
  const cell = (verdict) => el("span", { class: "cell", "data-mode": "bf16", "data-verdict": verdict, "aria-hidden": "true" }, "bf");
  return el("details", { class: "legend-box" }, el("summary", {}, "What the cells say"),
    el("p", {}, "The letters and the fill are the mode that a workload's pods were asked for, or report where --prometheus is given: ",
      "32 is fp32, bf is bf16, 16 is fp16, ± several at once, ? not known. The frame and the sign are the verdict:"),
    el("ul", {}, VERDICTS.map((verdict) => el("li", {}, cell(verdict), ` ${SAID[verdict]}`)),
      el("li", {}, el("span", { class: "cell", "data-mode": "bf16", "data-verdict": "acknowledged", "data-problem": true, "aria-hidden": "true" }, "bf"), " something to look at")),
    el("p", {}, "Arrow keys move between cells, Enter opens one, Escape closes it."));
}
