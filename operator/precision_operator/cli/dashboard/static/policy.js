// One policy: phase, commands, timeline, signals, workloads.

import { charts } from "./chart.js";
import { ago, count, el, fact, moment, show, zone } from "./dom.js";

const SIGNS = { Pending: "○", Progressing: "▶", Paused: "❚❚", Healthy: "✓", Degraded: "!", RollingBack: "↩", Held: "■" };

/** The phase as a badge: colour, sign and word. */
export function badge(row) {
  const paused = row.suspended ? " (paused)" : "";
  return el("span", { class: "badge", "data-phase": row.phase }, el("span", { "aria-hidden": "true" }, SIGNS[row.phase] ?? "?"), ` ${row.phase}${paused}`);
}

/** How many workloads are where the policy wants them. */
export function progress(row) {
  const label = `${count(row.moved)} of ${count(row.total)} ${row.placed}`;
  return el("span", { class: "progress" }, el("progress", { max: Math.max(1, row.total), value: row.moved, "aria-label": label }), ` ${label}`);
}

/** The page of a policy; its parts change by themselves. */
export class Policy {
  constructor(key, state, command, workloads) {
    this.key = key;
    this.state = state;
    this.command = command;
    this.head = el("div", { class: "card" });
    this.timeline = el("section", { class: "card", "aria-labelledby": "timeline-title" });
    this.signals = el("section", { class: "card", "aria-labelledby": "signals-title" });
    this.node = el("div", { class: "one" }, el("p", { class: "crumb" }, el("a", { href: "#/" }, "Fleet"), " / ", key),
      this.head, el("div", { class: "pair" }, this.timeline, this.signals), workloads);
    this.update();
  }

  update() {
    const row = this.state.policies[this.key];
    if (!row) {
      show(this.head, el("h1", {}, this.key), el("p", { class: "none" }, this.state.known ? "There is no such policy any more." : "Loading…"));
      return;
    }
    show(this.head, ...head(this.key, row, this.state.chosenWhy ?? "", (verb) => this.command(this.key, verb)));
    this.details(this.state.details);
  }

  details(details) {
    const entries = [...(details.timeline?.entries ?? [])].reverse();
    show(this.timeline, el("h2", { id: "timeline-title" }, "Timeline ", el("small", {}, `newest first, ${zone}`)),
      (details.notes?.notes ?? []).map((note) => el("p", { class: "none" }, note)),
      entries.length ? el("ol", { class: "timeline", tabindex: "0", "aria-labelledby": "timeline-title" }, entries.map(entry)) : el("p", { class: "none" }, "Nothing is recorded yet."));
    show(this.signals, el("h2", { id: "signals-title" }, "Signals ", el("small", {}, `times in ${zone}`)),
      charts(details.charts?.charts ?? []));
  }
}

function entry(item) {
  const again = item.count > 1 ? ` (${count(item.count)} times)` : "";
  return el("li", { "data-source": item.source }, el("div", { class: "when" }, moment(item.at), " ", el("span", { class: "tag" }, item.source)),
    el("div", {}, el("b", {}, item.reason), item.by ? ` by ${item.by}` : "", item.message ? `: ${item.message}` : "", again));
}

function head(key, row, why, press) {
  const waits = row.waiting && row.waiting.reason !== row.reason ? [el("b", {}, row.waiting.reason), `: ${row.waiting.message}`] : "";
  return [
    el("div", { class: "title" }, el("h1", {}, key), badge(row), el("span", { class: "faint" }, "for ", ago(row.phaseSince)),
      row.deleted ? el("span", { class: "tag" }, "policy deleted") : null),
    el("p", { class: "why" }, el("b", {}, row.reason || "no reason yet"), row.message ? `: ${row.message}` : "", " ", el("span", { class: "faint" }, `(${row.meaning})`)),
    steps(row),
    el("dl", { class: "facts" },
      fact("workloads", progress(row)), fact("target", `${row.target}, fallback ${row.fallback ?? "as the templates have it"}`),
      fact("breached", `${count(row.breached)}, and ${count(row.unknown)} without believable data`),
      fact("evidence", row.evidenceSince ? ["good for ", ago(row.evidenceSince)] : "none yet"),
      fact("waits for", waits), fact("generation", `${row.generation}, transition ${row.transitionId}`),
      fact("rollback", row.incident ? rollback(row) : "")),
    row.breaches.length || row.attention.length ? el("ul", { class: "attention", "aria-label": "To look at" },
      row.breaches.map((b) => el("li", {}, el("b", {}, `${b.severity} ${b.signal}`), ` ${b.measured} in ${b.whose} for `, ago(b.since))),
      row.attention.map((a) => el("li", {}, el("b", {}, `${a.condition} ${a.reason}`), a.message ? `: ${a.message}` : ""))) : null,
    el("div", { class: "commands", role: "group", "aria-label": "Commands" }, row.buttons.map((button) => el("button", {
      type: "button", id: `command-${button.verb}`, class: button.verb === "emergency" ? "danger" : "", "data-verb": button.verb,
      "aria-disabled": button.refused ? "true" : false, title: button.refused || `${button.label}: shows a preview first`,
      "aria-describedby": button.refused ? "why-not" : false, onclick: () => press(button.verb),
    }, button.label))),
    el("p", { class: "why-not faint", id: "why-not", "aria-live": "polite" }, why || "A command shows a preview first. A button that is dimmed says why when it is pressed."),
  ];
}

function steps(row) {
  const at = Number.parseInt(row.step, 10) - 1;
  return el("ol", { class: "steps", "aria-label": "Steps" }, row.stages.map((weight, i) => {
    const state = row.phase === "Healthy" || i < at ? "done" : i === at ? "current" : "next";
    return el("li", { "data-state": state, "aria-current": state === "current" ? "step" : false }, `${weight} %`);
  }));
}

function rollback(row) {
  const incident = row.incident, at = (name) => (Date.parse(incident[name]) - Date.parse(incident.detectedAt)) / 1000;
  const stages = [["decided", "decidedAt"], ["requested", "lastPatchAt"], ["in fallback", "lastAckAt"], ["recovered", "recoveredAt"], ["deadline", "deadlineAt"]]
    .map(([name, field]) => `${name} ${incident[field] ? `+${at(field).toFixed(1)} s` : "not yet"}`);
  return [`${incident.id} ${incident.severity} ${incident.scope} `, el("b", {}, incident.reason), `: ${stages.join(", ")}`];
}
