// The grid of workloads: one cell each, by policy and cohort. One cell of a grid is in the tab order; arrows move.

import { count, el } from "./dom.js";

const CODES = { fp32: "32", bf16: "bf", fp16: "16", mixed: "±", unknown: "?" };
const VERDICTS = ["breached", "held", "waiting", "acknowledged", "unknown"];
const SAID = {
  breached: "breached",
  held: "held, rolled back by itself",
  waiting: "not acknowledged yet",
  acknowledged: "acknowledged",
  unknown: "verdict unknown",
};

const byName = new Intl.Collator(undefined, { numeric: true });

export const MODES = Object.keys(CODES);
export { CODES, SAID, VERDICTS };

/** What a screen reader says of a cell. */
export function label(row) {
  const mode = row.mode === "unknown" ? "mode unknown" : `${row.mode} ${row.source}`;
  const problems = row.problems ? `, ${row.problems} to look at` : "";
  return `${row.name}, ${row.kind}, ${mode}, ${SAID[row.verdict]}${problems}`;
}

/** The grid of one policy's workloads. */
export class Grid {
  constructor(policy, open) {
    this.cells = new Map();
    this.rows = new Map();
    this.groups = new Map();
    this.open = open;
    this.filter = () => true;
    this.node = el("div", {
      class: "grid", role: "listbox", "aria-label": `Workloads of ${policy}`,
      onkeydown: (event) => this.key(event),
      onclick: (event) => this.choose(event.target.closest("[role=option]")),
      onfocusin: (event) => this.rove(event.target),
    });
  }

  /** Take in what changed: a row, or null where the workload is gone. */
  update(changes) {
    const dirty = new Set();
    for (const [id, row] of changes) {
      const cell = this.cells.get(id);
      if (row === null) {
        if (cell) this.remove(id, cell);
        continue;
      }
      const moved = this.rows.get(id)?.cohort !== row.cohort;
      this.rows.set(id, row);
      if (cell) this.paint(cell, row);
      else this.cells.set(id, this.paint(el("div", { role: "option", tabindex: "-1", "data-id": id }), row));
      if (moved) dirty.add(row.cohort);
    }
    for (const cohort of dirty) this.sort(cohort);
    for (const [cohort, group] of this.groups) this.head(cohort, group);
    if (!this.node.querySelector("[tabindex='0']")) this.rove(this.visible()[0]);
  }

  paint(cell, row) {
    cell.textContent = CODES[row.mode] ?? CODES.unknown;
    cell.className = "cell";
    cell.dataset.mode = row.mode in CODES ? row.mode : "unknown";
    cell.dataset.verdict = row.verdict;
    cell.toggleAttribute("data-problem", row.problems > 0);
    cell.setAttribute("aria-label", label(row));
    cell.title = label(row);
    cell.hidden = !this.filter(row);
    return cell;
  }

  remove(id, cell) {
    const next = cell === document.activeElement ? cell.nextElementSibling ?? cell.previousElementSibling : null;
    this.cells.delete(id);
    this.rows.delete(id);
    cell.remove();
    next?.focus();
  }

  /** Put the cells of a cohort in the order of their names. */
  sort(cohort) {
    const ids = [...this.rows].filter(([, row]) => row.cohort === cohort).map(([id]) => id);
    ids.sort((a, b) => byName.compare(this.rows.get(a).name, this.rows.get(b).name));
    const focused = document.activeElement;
    this.group(cohort).cells.replaceChildren(...ids.map((id) => this.cells.get(id)));
    if (focused !== document.activeElement) focused.focus();
  }

  group(cohort) {
    let found = this.groups.get(cohort);
    if (!found) {
      const name = el("span", { class: "cohort" });
      const cells = el("div", { class: "cells", role: "presentation" });
      found = { name, cells, node: el("div", { role: "group", "aria-label": cohort }, name, cells) };
      this.groups.set(cohort, found);
      this.node.append(found.node);
    }
    return found;
  }

  head(cohort, group) {
    const shown = [...group.cells.children].filter((cell) => !cell.hidden).length;
    const all = group.cells.children.length;
    group.name.textContent = `${cohort} · ${shown === all ? count(all) : `${count(shown)} of ${count(all)}`}`;
    group.name.setAttribute("aria-hidden", "true");
    group.node.hidden = shown === 0;
    if (all === 0) {
      group.node.remove();
      this.groups.delete(cohort);
    }
  }

  /** Show only the rows that pass. */
  show(filter) {
    this.filter = filter;
    for (const [id, row] of this.rows) this.cells.get(id).hidden = !filter(row);
    for (const [cohort, group] of this.groups) this.head(cohort, group);
    const current = this.node.querySelector("[tabindex='0']");
    if (!current || current.hidden) this.rove(this.visible()[0]);
  }

  visible() {
    return [...this.node.querySelectorAll("[role=option]")].filter((cell) => !cell.hidden);
  }

  /** Make this cell the one in the tab order. */
  rove(cell) {
    if (!cell?.matches?.("[role=option]")) return;
    for (const other of this.node.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
    cell.tabIndex = 0;
  }

  choose(cell) {
    if (!cell) return;
    this.node.querySelector("[aria-selected=true]")?.removeAttribute("aria-selected");
    cell.setAttribute("aria-selected", "true");
    this.open(cell.dataset.id, this.rows.get(cell.dataset.id), cell);
  }

  key(event) {
    const cell = event.target.closest("[role=option]");
    if (!cell || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(cell);
      return;
    }
    const cells = this.visible();
    const to = target(cells, cells.indexOf(cell), event.key);
    if (to === undefined) return;
    event.preventDefault();
    cells[to]?.focus();
  }
}

function target(cells, at, key) {
  switch (key) {
    case "ArrowRight": return Math.min(at + 1, cells.length - 1);
    case "ArrowLeft": return Math.max(at - 1, 0);
    case "Home": return 0;
    case "End": return cells.length - 1;
    case "ArrowDown": return across(cells, at, 1);
    case "ArrowUp": return across(cells, at, -1);
    case "PageDown": return across(cells, at, 1, 10);
    case "PageUp": return across(cells, at, -1, 10);
    default: return undefined;
  }
}

/** The nearest cell so many lines further, whatever the number of columns. */
function across(cells, at, way, lines = 1) {
  const place = (cell) => cell.getBoundingClientRect();
  const left = place(cells[at]).left;
  let line = place(cells[at]).top, best = at, distance = 0, passed = 0;
  for (let i = at + way; i >= 0 && i < cells.length; i += way) {
    const here = place(cells[i]), off = Math.abs(here.left - left);
    if (here.top !== line && ++passed > lines) break;
    if (here.top !== line || (passed && off < distance)) [best, distance] = [i, off];
    line = here.top;
  }
  return best;
}
