// The workload that a cell stands for, beside the grid.

import { ago, el, fact, show } from "./dom.js";

/** The panel. It is read anew whenever its cell changed. */
export class Workload {
  constructor() {
    this.body = el("div", {});
    this.node = el("aside", {
      class: "drawer", id: "drawer", "aria-label": "Workload", hidden: true,
      onkeydown: (event) => { if (event.key === "Escape") this.close(); },
    }, el("button", { type: "button", class: "quiet close", "aria-label": "Close workload", onclick: () => this.close() }, "✕"), this.body);
  }

  /** Show the workload of a cell, and take the focus. */
  async open(id, row, cell) {
    Object.assign(this, { id, row, cell });
    await this.read();
    this.node.hidden = false;
    this.body.querySelector("h2")?.focus();
  }

  close() {
    this.node.hidden = true;
    this.cell?.removeAttribute("aria-selected");
    this.cell?.focus();
    this.id = undefined;
  }

  /** Its cell changed. */
  changed(id, row) {
    if (id !== this.id) return;
    if (row === null) { this.close(); return; }
    this.row = row;
    this.read();
  }

  async read() {
    const id = this.id, key = id.slice(this.row.policy.length + 1);
    const answer = await fetch(`api/workload?policy=${encodeURIComponent(this.row.policy)}&key=${encodeURIComponent(key)}`);
    const found = await answer.json().catch(() => ({ error: `the dashboard answered ${answer.status}` }));
    if (id === this.id) show(this.body, ...(found.error ? [el("h2", { tabindex: "-1" }, this.row.name), el("p", { class: "none" }, found.error)] : parts(found)));
  }
}

function parts(found) {
  const acknowledged = { true: "yes", false: "not yet" }[found.acknowledged] ?? "not known";
  return [
    el("h2", { tabindex: "-1", id: "workload-title" }, found.name), el("p", { class: "faint" }, `${found.kind} · ${found.cohort}`),
    el("dl", { class: "facts narrow" },
      fact("policy", el("a", { href: `#/policy/${found.policy}` }, found.policy)),
      fact("assigned", found.assigned ?? "nothing: as its template has it"), fact("reports", found.reported.join(" and ")),
      fact("acknowledged", acknowledged), fact("generation", found.generation), fact("delivery", found.delivery ?? "none that the policy allows")),
    list("Breaches", found.breaches.map((b) => [el("b", {}, `${b.severity} ${b.signal}`), ` ${b.measured} for `, ago(b.since)])),
    list("To look at", found.problems.map((problem) => [problem])),
    el("h3", {}, "Pods"),
    found.pods.length ? el("ul", { class: "pods" }, found.pods.map(pod)) : el("p", { class: "none" }, "It has no pods."),
  ].flat();
}

function list(name, items) {
  return items.length ? [el("h3", {}, name), el("ul", { class: "attention" }, items.map((item) => el("li", {}, item)))] : [];
}

function pod(one) {
  const reports = one.reports ? (one.reports.ageSeconds === null ? ", reports nothing" : `, reports ${one.reports.mode ?? "no mode"} ${Math.round(one.reports.ageSeconds)} s ago`) : "";
  return el("li", {}, el("b", {}, one.name), ` requested ${one.requested ?? "unknown"}${one.generation ? `, generation ${one.generation}` : ""}${one.node ? `, on ${one.node}` : ""}${reports}`,
    one.problems.length ? el("ul", { class: "attention" }, one.problems.map((problem) => el("li", {}, problem))) : null);
}
