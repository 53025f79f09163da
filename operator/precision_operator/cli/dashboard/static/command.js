// A command: its preview by the API server, and then the write.

import { el, show } from "./dom.js";

const HEADERS = { "Content-Type": "application/json", "X-Precision-Dashboard": "1" };
const PAUSE_MS = 300;

async function post(path, body) {
  const answer = await fetch(`api/${path}`, { method: "POST", headers: HEADERS, body: JSON.stringify(body) });
  const found = await answer.json().catch(() => ({ error: `the dashboard answered ${answer.status}` }));
  return found.error ? { error: found.error } : found;
}

/** The dialog of one command; resolves to what was said once it is closed. */
export function command(row, verb, label) {
  const dialog = document.getElementById("dialog");
  const [namespace, policy] = [row.namespace, row.name];
  const result = el("div", { class: "preview", role: "status" });
  const why = el("input", { type: "text", maxlength: "200", id: "why", autocomplete: "off", oninput: later });
  const boxes = verb === "ack" ? row.prerequisites.map((one) => el("label", { class: "check" },
    el("input", { type: "checkbox", value: one.item, checked: true, onchange: later }), ` ${one.item}: ${one.meaning}`)) : [];
  const apply = el("button", { type: "button", class: verb === "emergency" ? "danger" : "primary", disabled: true, onclick: write }, "Apply");
  const cancel = el("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const explains = verb !== "pause" && verb !== "resume";
  let timer = 0, asked = 0, seen = null;

  const wish = () => ({
    namespace, policy, verb, message: explains ? why.value : "",
    items: boxes.map((box) => box.querySelector("input")).filter((box) => box.checked).map((box) => box.value),
  });

  function later() {
    apply.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(preview, PAUSE_MS);
  }

  async function preview() {
    const turn = ++asked, wanted = wish();
    if (verb === "ack" && !wanted.items.length) return show(result, el("p", {}, "Choose at least one."));
    const found = await post("preview", wanted).catch(away);
    if (turn !== asked) return undefined;
    seen = found.kubectl ? { ...wanted, transitionId: found.transitionId } : null;
    apply.disabled = !seen;
    return show(result, ...(seen ? shown(found) : [el("p", { class: "refused" }, found.error ?? found.already)]));
  }

  async function write() {
    apply.disabled = true;
    const found = await post("apply", seen).catch(away);
    cancel.textContent = "Close";
    cancel.focus();
    if (found.done) apply.remove();
    show(result, el("p", { class: found.done ? "written" : "refused" }, found.done ? `Written: ${found.done}.` : found.error ?? found.already),
      found.note ? el("p", {}, found.note) : null);
  }

  dialog.replaceChildren(
    el("h2", { id: "dialog-title" }, `${label}: ${namespace}/${policy}`),
    ...(boxes.length ? [el("fieldset", {}, el("legend", {}, "What is acknowledged"), boxes)] : []),
    ...(explains ? [el("label", { for: "why" }, "Why (kept beside the command)"), why] : []),
    result, el("div", { class: "actions" }, cancel, apply));
  show(result, el("p", { class: "faint" }, "Asking the API server…"));
  dialog.showModal();
  preview();
}

const away = () => ({ error: "the dashboard does not answer: is `kubectl precision dashboard` still running?" });

function shown(found) {
  return [
    el("p", {}, `Preview, accepted by the API server with your rights. Nothing is written yet. Then: ${found.done}.`),
    found.note ? el("p", { class: "note" }, found.note) : null,
    el("p", { class: "faint" }, "The same from a shell:"),
    el("pre", { tabindex: "0", "aria-label": "kubectl precision" }, el("code", {}, found.precision)),
    el("pre", { tabindex: "0", "aria-label": "kubectl" }, el("code", {}, found.kubectl)),
  ];
}
