// Incidents: the list, and one with its evidence.

import { charts } from "./chart.js";
import { ago, el, fact, moment, show, zone } from "./dom.js";

async function read(path) {
  const answer = await fetch(`api/${path}`);
  return answer.json().catch(() => ({ error: `the dashboard answered ${answer.status}` }));
}

const failed = (error) => el("p", { class: "none", role: "alert" }, error);

/** All incidents. */
export class Incidents {
  constructor() {
    this.body = el("div", { class: "card" }, el("p", { class: "none" }, "Loading…"));
    this.node = el("div", { class: "one" }, el("h1", {}, "Incidents"), this.body);
    this.update();
  }

  async update() {
    const found = await read("incidents").catch((error) => ({ error: String(error) }));
    if (found.error) return show(this.body, failed(found.error));
    if (!found.incidents.length) return show(this.body, el("p", { class: "none" }, "No incident: nothing was rolled back, or its reports were pruned."));
    return show(this.body, el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Incidents" }, el("table", {},
      el("thead", {}, el("tr", {}, ["Decided", "Incident", "Policy", "Severity", "Scope", "Phase", "Reason"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, found.incidents.map((one) => el("tr", {},
        el("td", {}, moment(one.decidedAt)),
        el("td", {}, el("a", { href: `#/incident/${one.namespace}/${one.name}`, id: `incident-${one.name}` }, one.id)),
        el("td", {}, el("a", { href: `#/policy/${one.namespace}/${one.policy}` }, `${one.namespace}/${one.policy}`)),
        el("td", {}, el("span", { class: "severity", "data-severity": one.severity }, one.severity)), el("td", {}, one.scope), el("td", {}, one.phase), el("td", {}, one.reason)))))));
  }
}

/** One incident. */
export class Incident {
  constructor(namespace, name) {
    this.body = el("div", { class: "one" }, el("p", { class: "none" }, "Loading…"));
    this.node = el("div", { class: "one" }, el("p", { class: "crumb" }, el("a", { href: "#/incidents" }, "Incidents"), " / ", `${namespace}/${name}`), this.body);
    this.path = `incident?namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name)}`;
    this.update();
  }

  async update() {
    const found = await read(this.path).catch((error) => ({ error: String(error) }));
    show(this.body, ...(found.error ? [el("h1", {}, "Incident"), failed(found.error)] : parts(found)));
  }
}

function parts(found) {
  const report = found.report, stages = report.stages ?? {};
  const met = { true: "met", false: "missed" }[found.metDeadline] ?? "not all have acknowledged yet";
  const list = (items) => items ?? [];
  return [
    el("div", { class: "card" },
      el("div", { class: "title" }, el("h1", {}, `${report.reason}: ${found.namespace}/${report.policy}`), el("span", { class: "severity", "data-severity": report.severity }, report.severity), el("span", { class: "tag" }, report.phase ?? "Active")),
      el("p", { class: "why" }, report.message ?? ""),
      el("dl", { class: "facts" },
        fact("scope", `${report.scope}: ${list(report.workloads).join(", ") || "none named"}`),
        fact("rollback", `${report.target} → ${report.fallback}`),
        fact("before", report.phaseBefore), fact("detected", moment(stages.detectedAt), " ", ago(stages.detectedAt), " ago"),
        fact("decided", moment(stages.decidedAt)), fact("last pod requested", stages.lastPatchAt ? moment(stages.lastPatchAt) : "not yet"),
        fact("in fallback", stages.lastAckAt ? moment(stages.lastAckAt) : "not yet"),
        fact("deadline", moment(stages.deadlineAt), ` (${met})`),
        fact("recorded", `${found.passes} decisions: `, el("code", {}, found.replay)),
        fact("as a folder", el("code", {}, found.export)))),
    section("Evidence", `metrics around the breach, times in ${zone}`, found.charts.length ? charts(found.charts) : none()),
    section("Timeline", "", list(report.timeline).length ? el("ol", { class: "timeline" }, report.timeline.map((one) => el("li", {}, el("div", { class: "when" }, moment(one.at)), el("div", {}, el("b", {}, one.what), one.message ? `: ${one.message}` : "")))) : none()),
    section("Verification", "", list(report.checklist).length ? table(["Window", "Check", "Result", "Observed"], report.checklist.map((one) => [one.window, one.name, one.result ?? "Pending", one.observed ?? ""])) : none()),
    section("Root-cause questions", "", list(report.questions).length ? el("dl", { class: "questions" }, report.questions.map((one) => [el("dt", {}, one.question), el("dd", {}, one.answer, one.evidence ? el("p", { class: "faint" }, one.evidence) : null)])) : none()),
    section("Messages", "", list(report.messages).length ? el("div", {}, report.messages.map((one) => el("details", {}, el("summary", {}, `${one.kind}: ${one.subject}`), el("pre", { tabindex: "0" }, one.body)))) : none()),
  ];
}

const none = () => el("p", { class: "none" }, "Nothing is recorded.");

function section(name, small, ...body) {
  return el("section", { class: "card", "aria-label": name }, el("h2", {}, name, " ", el("small", {}, small)), ...body);
}

function table(columns, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": columns.join(", ") }, el("table", {},
    el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell)))))));
}
