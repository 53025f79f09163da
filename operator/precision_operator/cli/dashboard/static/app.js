// Views, the news that the server sends, and the theme.

import { command } from "./command.js";
import { el, tick } from "./dom.js";
import { Fleet } from "./fleet.js";
import { Incident, Incidents } from "./incidents.js";
import { Policy } from "./policy.js";
import { Workload } from "./workload.js";

const SILENT_MS = 25000;
const THEMES = ["auto", "light", "dark"];
const main = document.getElementById("main"), live = document.getElementById("live"), announce = document.getElementById("announce");
const state = { policies: {}, workloads: {}, details: {}, about: {}, known: false, chosenWhy: "" };
const drawer = new Workload();
let view = {}, watched = null, source = null, silence = 0;

history.replaceState(null, "", location.pathname + location.hash);  // the token is used up, and nobody's business

function connect(policy) {
  if (source && policy === watched) return;
  source?.close();
  watched = policy;
  state.details = {};
  source = new EventSource(`api/news${policy ? `?policy=${encodeURIComponent(policy)}` : ""}`);
  source.addEventListener("whole", (event) => take(JSON.parse(event.data), true));
  source.addEventListener("change", (event) => take(JSON.parse(event.data), false));
  source.addEventListener("alive", alive);
  source.addEventListener("error", () => source.readyState === EventSource.CLOSED ? ended() : lost());
}

function alive() {
  if (live.dataset.state !== "live") warn(state.about.problem);
  live.dataset.state = "live";
  live.textContent = "Live";
  clearTimeout(silence);
  silence = setTimeout(silent, SILENT_MS);
}

function lost() {
  live.dataset.state = "lost";
  live.textContent = "Not live: reconnecting…";
}

/** No news for long: the server was ended, or this machine slept, and then the browser connects again by itself. */
function silent() {
  lost();
  warn("the dashboard does not answer. Where this stays so, run `kubectl precision dashboard` again, and open the address that it prints.");
}

/** The server does not know this page, and the browser has given up: it was started anew. */
function ended() {
  clearTimeout(silence);
  lost();
  live.textContent = "Not live";
  warn("the dashboard has ended, or was started again. Run `kubectl precision dashboard` again, and open the address that it prints.");
}

/** Say why what is shown may be old; nothing where nothing is wrong. */
function warn(why) {
  const problem = document.getElementById("problem");
  problem.textContent = why ? `What is shown may be old: ${why}` : "";
  problem.hidden = !why;
}

/** Take in news: by topic, rows by key, null for one that is gone. */
function take(news, whole) {
  alive();
  const changed = {};
  for (const topic of ["policies", "workloads"]) {
    const rows = { ...(news[topic] ?? {}) };
    if (whole && Object.keys(news).length) for (const key of Object.keys(state[topic])) if (!(key in rows)) rows[key] = null;
    changed[topic] = Object.entries(rows);
    for (const [key, row] of changed[topic]) {
      if (topic === "policies" && row) tell(key, state.policies[key], row);
      if (row === null) delete state[topic][key];
      else state[topic][key] = row;
    }
  }
  state.known = state.known || Object.keys(news).length > 0;
  for (const [key, row] of Object.entries(news[`details/${watched}`] ?? {})) state.details[key] = row ?? {};
  if (news.about?.cluster) about(news.about.cluster);
  view.fleet?.update(changed);
  view.policy?.update();
  for (const [id, row] of changed.workloads) drawer.changed(id, row);
  if (changed.workloads.length && !performance.getEntriesByName("fleet-shown").length) requestAnimationFrame(() => setTimeout(() => performance.mark("fleet-shown")));
}

function tell(key, before, row) {
  if (before && before.phase !== row.phase) announce.textContent = `${key} is ${row.phase}: ${row.reason}`;
}

function about(cluster) {
  state.about = cluster;
  document.getElementById("where").textContent = [cluster.where, ...cluster.flags].join(" ");
  warn(cluster.problem);
}

function press(key, verb) {
  const row = state.policies[key], button = row?.buttons.find((one) => one.verb === verb);
  if (!button) return;
  if (button.refused && !(verb === "ack" && row.prerequisites.length)) {
    state.chosenWhy = `${button.label} has nothing to do: ${button.refused}`;
    view.policy?.update();
    return;
  }
  state.chosenWhy = "";
  command(row, verb, button.label);
}

function route() {
  const [, name = "", namespace = "", object = ""] = decodeURIComponent(location.hash.slice(1)).split("/");
  const first = !main.childElementCount;
  const open = (id, row, cell) => drawer.open(id, row, cell);
  drawer.node.hidden = true;
  state.chosenWhy = "";
  const key = name === "policy" ? `${namespace}/${object}` : "";
  connect(key);
  if (key) {
    const fleet = new Fleet(state, open, key);
    view = { fleet, policy: new Policy(key, state, press, fleet.node) };
  } else if (name === "incident") view = { incident: new Incident(namespace, object) };
  else if (name === "incidents") view = { incidents: new Incidents() };
  else view = { fleet: new Fleet(state, open) };
  const shown = (view.policy ?? view.incident ?? view.incidents ?? view.fleet).node;
  main.replaceChildren(el("div", { class: "page" }, shown, drawer.node));
  const current = name.startsWith("incident") ? "incidents" : "fleet";
  for (const link of document.querySelectorAll("nav a")) link.dataset.view === current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  document.title = key || object ? `${object} · Fleet precision` : "Fleet precision";
  if (!first) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  tick();
}

function theme(chosen) {
  document.documentElement.dataset.theme = chosen;
  localStorage.setItem("theme", chosen);
  const button = document.getElementById("theme");
  button.textContent = `Theme: ${chosen}`;
  button.onclick = () => theme(THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
}

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", route);
setInterval(() => tick(), 1000);
const kept = localStorage.getItem("theme");
theme(THEMES.includes(kept) ? kept : "auto");
route();
