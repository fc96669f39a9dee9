// Keeps the page up to date and carries out what its buttons say. What a section shows comes from the device as HTML;
// this file knows when to ask for it.

const at = (id) => document.getElementById(id);
const PAUSE = 1000; // milliseconds between two looks at everything
const LIVELY = ["predictions", "sensors"]; // what changes with every sample

// ---- what is shown -------------------------------------------------------------------------

const shown = new Map();
const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const calendar = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

export function localise(root) {
  const today = new Date().toDateString();
  for (const one of root.querySelectorAll("time")) {
    const then = new Date(one.dateTime);
    one.textContent = (then.toDateString() === today ? clock : calendar).format(then);
  }
}

function put(name, inside) {
  const section = at(name);
  if (!section || "own" in section.dataset || shown.get(name) === inside) return; // own: a script fills it
  const place = section.querySelector(".inside");
  const focus = place.contains(document.activeElement) ? document.activeElement : null;
  if (focus?.matches("input, select")) return; // somebody is writing there
  const open = [...place.querySelectorAll("details[open]")].map((one) => one.id);
  place.innerHTML = inside;
  for (const id of open) at(id)?.setAttribute("open", "");
  section.hidden = inside === "";
  localise(place);
  shown.set(name, inside);
  if (focus?.id) at(focus.id)?.focus();
}

let asked = 0; // when it was last asked for
let due = null;
let wanted = []; // names of sections, or null for all

async function look() {
  const only = wanted;
  due = null;
  wanted = [];
  asked = performance.now();
  const answer = await fetch("api/page" + (only === null ? "" : `?only=${only.join(",")}`)).catch(() => null);
  if (answer === null) return;
  if (answer.status === 401) return location.reload();
  if (!answer.ok) return;
  for (const [name, inside] of Object.entries(await answer.json())) put(name, inside);
}

// Together and not too often; what a person has just done, at once.
export function refresh(names, now = false) {
  wanted = names === null || wanted === null ? null : [...new Set([...wanted, ...names])];
  if (due !== null && !now) return;
  clearTimeout(due);
  due = setTimeout(look, now ? 0 : Math.max(50, asked + PAUSE - performance.now()));
}

// ---- what is said --------------------------------------------------------------------------

let hush = null;
export function say(text) {
  at("said").textContent = text;
  clearTimeout(hush);
  hush = setTimeout(() => { at("said").textContent = ""; }, 10000);
}

function told(command, answer) {
  if (answer.error) return `${command}: ${answer.error}`;
  if (answer.state === "accepted") return `${command}: running`;
  const verdict = answer.data?.verdict;
  if (verdict) return `${command}: ${verdict.summary || verdict.reasons.join("; ")}`;
  return `${command}: done`;
}

// ---- what is done --------------------------------------------------------------------------

export function confirmed(head, text) {
  const dialog = at("ask");
  at("ask-head").textContent = head;
  at("ask-text").textContent = text;
  at("ask-yes").textContent = head; // the button repeats the verb
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

export async function post(path, values) {
  const headers = { "content-type": "application/json" };
  const csrf = document.body.dataset.csrf;
  if (csrf) headers["x-csrf-token"] = csrf;
  return fetch(path, { method: "POST", headers, body: JSON.stringify(values) });
}

async function send(command, fields) {
  say(`${command} …`);
  try {
    const answer = await post(`api/commands/${command}`, fields);
    say(told(command, await answer.json()));
  } catch {
    say(`${command}: no response from device`);
  }
  refresh(null, true);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-command]");
  if (!button) return;
  const { command, fields, ask } = button.dataset;
  if (await confirmed(button.textContent, ask)) await send(command, JSON.parse(fields));
});

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.dataset.command) return;
  event.preventDefault();
  const { command, sample } = form.dataset;
  const entry = form.elements.namedItem("label");
  const label = entry.type === "number" ? Number(entry.value) : entry.value;
  if (!(await confirmed("Submit label", `Label sample ${sample} as ${label}?`))) return;
  entry.blur();
  await send(command, { id: sample, label });
});

at("login")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await post("api/login", { code: at("code").value });
  at("code").value = "";
  if (answer.ok) location.reload();
  else say((await answer.json()).error);
});

at("leave")?.addEventListener("click", async () => {
  await post("api/logout", {});
  location.reload();
});

// ---- what happens --------------------------------------------------------------------------

const NAMES = ["events", "metrics", "predictions", "state/model", "state/training", "state/drift", "state/buffer",
  "state/config", "response/evaluate", "response/train"]; // those two are answered twice: the second time here
const STATES = { live: "live", lost: "Disconnected. Showing the last known data.", rest: "Paused in the background" };
let source = null; // the event stream, while the page is seen: a browser opens six connections to a host at most

function line(state) {
  if (at("line").className === state) return;
  at("line").textContent = STATES[state];
  at("line").className = state;
  if (state === "live") refresh(null);
}

function heard(name, values) {
  const answer = name.startsWith("response/");
  refresh(name === "predictions" ? LIVELY : null, answer);
  if (answer) say(told(name.slice(9), values));
  document.dispatchEvent(new CustomEvent("edged", { detail: name })); // for other parts of the page
}

function open() {
  const own = source = new EventSource("api/events?topics=events,state,metrics,predictions,response");
  own.onopen = () => line("live");
  own.onerror = () => {
    line("lost");
    if (own.readyState === EventSource.CLOSED) setTimeout(() => { if (source === own) open(); }, 3000); // refused
  };
  for (const name of NAMES) own.addEventListener(name, (event) => heard(name, JSON.parse(event.data)));
}

function rest() {
  source?.close();
  source = null;
  line("rest");
}

function seen() {
  if (document.hidden) rest();
  else if (source === null) open();
}

localise(document);
if ("live" in document.body.dataset) {
  document.addEventListener("visibilitychange", seen);
  seen();
  setInterval(() => { if (!document.hidden) refresh(null); }, 15000); // ages grow without any event
}
