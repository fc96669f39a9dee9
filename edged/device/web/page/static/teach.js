// The timeline: a person looks at what the sensors measured, drags over a stretch and says what it was.

import { post } from "./page.js";
import { clock, colour, draw, height, moment, short } from "./timeline.js";

const root = document.getElementById("teach");
const SHORTEST = 60; // seconds that can be seen at once
const CURVES = 3;
const BUTTONS = 12; // classes that get a button each
const NONE = ""; // the choice of a curve that is not drawn
const SPANS = { "1 min": 60, "1 h": 3600, "1 day": 86400, "All": Infinity };

const rights = new Set((root?.dataset.rights ?? "").split(" "));
const values = root?.dataset.task !== "classify"; // numbers, or no labels at all, in place of classes
const may = { label: rights.has("label"), control: rights.has("control") };

const frame = `
<p id="teach-empty" hidden></p>
<div id="teach-all" hidden>
  <div class="buttons" id="teach-tools" role="group" aria-label="Zoom">
    <label id="teach-keys">Key <select id="teach-key"></select></label>
    <button type="button" data-go="in" aria-label="Zoom in">+</button>
    <button type="button" data-go="out" aria-label="Zoom out">−</button>
    <button type="button" data-go="back" aria-label="Earlier">‹</button>
    <button type="button" data-go="on" aria-label="Later">›</button>
    ${Object.keys(SPANS).map((name) => `<button type="button" data-span="${name}" aria-pressed="false">${name}</button>`).join("")}
  </div>
  <p id="teach-range"></p>
  <div id="teach-picture" role="application" tabindex="0" aria-label="Timeline" aria-describedby="teach-help">
    <svg aria-hidden="true"></svg></div>
  <p id="teach-at" role="status"></p>
  <details id="teach-more"><summary>Curves, keyboard, events</summary><div class="buttons" id="teach-curves"></div>
    <p id="teach-help">Drag over a stretch to choose it; or tap its beginning and its end. Click into the picture, then:
      ← → move the line, Shift with ← → chooses, + − or the wheel zoom, Page Up and Page Down go back and on,
      Home and End go to the oldest and the newest sample, Escape lets go. Two fingers zoom on a phone.</p>
    <ul id="teach-events"></ul></details>
  <div id="teach-panel" role="group" aria-label="What you chose" hidden>
    <p id="teach-chosen" role="status"></p><div id="teach-names"></div></div>
  <p id="teach-done"><span id="teach-said" role="status"></span> <button type="button" id="teach-undo" hidden>Undo</button></p>
  <div id="teach-now" hidden><h3>From now on</h3><p id="teach-holds" role="status"></p><div id="teach-hold"></div></div>
</div>`;

const at = (id) => document.getElementById(`teach-${id}`);
let data = null; // the newest answer of the device
let view = null; // what is shown: from, to, width
let chosen = null; // two times
let anchor = null; // a tap, or where Shift was pressed first
let cursor = null; // a time
let curves = [];
let follows = true; // the newest sample stays in sight
let undoes = null; // number of the newest label

// ---- what the device says ------------------------------------------------------------------

let under = null; // the request under way
let took = 0; // milliseconds
let rest = null;

function url(path, fields) {
  const query = new URLSearchParams(fields);
  if (data?.key) query.set("key", at("key").value || data.key);
  for (const name of curves) query.append("feature", name);
  return `${path}?${query}`;
}

async function load() {
  under?.abort();
  const mine = under = new AbortController();
  const width = Math.max(100, Math.min(2000, Math.round(at("picture").clientWidth || 600)));
  const fields = view && view.whole !== true ? { from: view.from, to: view.to, width } : { width };
  const began = performance.now();
  try {
    const answer = await fetch(url("api/timeline", fields), { signal: mine.signal });
    const found = await answer.json();
    if (mine !== under) return;
    took = performance.now() - began;
    under = null;
    if (answer.status === 404) { at("key").value = ""; data = view = null; return later(0); } // its last sample has gone
    if (answer.ok) take(found);
    else tell(found.error);
  } catch (problem) {
    if (problem.name !== "AbortError") { under = null; tell("The device does not answer."); }
  }
}

function later(pause) {
  clearTimeout(rest);
  rest = setTimeout(load, pause);
}

function take(found) {
  const names = found.names ?? data?.names ?? [];
  if (found.key === null) return empty(found);
  at("empty").hidden = true;
  at("all").hidden = false;
  const ahead = data && follows && !chosen && !view.whole ? found.last - view.to : 0;
  data = { ...found, names, values };
  if (!view || (view.whole && !chosen)) view = within(data.first, data.last, true);
  else if (ahead > 0) { view = within(view.from + ahead, view.to + ahead); later(0); }
  if (curves.length === 0) curves = data.features.map((one) => one.name);
  show();
}

function empty(found) {
  data = view = null;
  at("all").hidden = true;
  at("empty").hidden = false;
  at("empty").textContent = `No samples yet. edged listens on ${found.topics.join(", ")}; send one and it shows here.`;
}

// ---- what is shown -------------------------------------------------------------------------

function within(from, to, whole = false) {
  return { from: Math.min(from, to - SHORTEST), to, whole };
}

function paint() {
  if (!data) return;
  const svg = root.querySelector("svg"), width = at("picture").clientWidth;
  if (width === 0) return;
  const high = height(data);
  svg.setAttribute("viewBox", `0 0 ${width} ${high}`);
  svg.setAttribute("height", high);
  Object.assign(at("picture").dataset, { from: view.from, to: view.to });
  svg.innerHTML = draw(data, { ...view, width }, chosen, cursor);
}

function show() {
  paint();
  const part = data.every > 1 ? `, drawn from every ${data.every}th` : "";
  at("range").textContent = `${moment(view.from)} to ${moment(view.to)}: ${data.samples.toLocaleString()} samples${part}`;
  const span = view.to - view.from;
  for (const one of root.querySelectorAll("[data-span]"))
    one.setAttribute("aria-pressed", view.whole ? one.dataset.span === "All" : Math.abs(SPANS[one.dataset.span] - span) < 0.5);
  options(at("key"), data.keys, data.key);
  at("keys").hidden = data.keys.length < 2;
  lists();
  holds();
  panel();
  read();
}

function options(select, names, wanted) {
  const told = names.join("\n");
  if (select.dataset.told !== told) {
    select.replaceChildren(...names.map((name) => new Option(name || "–", name)));
    select.dataset.told = told;
  }
  if (document.activeElement !== select) select.value = wanted;
}

function lists() {
  const place = at("curves");
  if (place.childElementCount === 0) {
    for (let i = 0; i < Math.min(CURVES, data.names.length); i++) {
      const label = document.createElement("label"), select = document.createElement("select");
      label.append(`Curve ${i + 1} `, select);
      select.addEventListener("change", choose);
      place.append(label);
    }
  }
  for (const [i, select] of [...place.querySelectorAll("select")].entries())
    options(select, i ? [NONE, ...data.names] : data.names, curves[i] ?? NONE);
  at("events").replaceChildren(...data.marks.slice(-20).map(([ts, , text]) => {
    const line = document.createElement("li");
    line.textContent = `${moment(ts)} ${text}`;
    return line;
  }));
}

function choose() {
  curves = [...new Set([...at("curves").querySelectorAll("select")].map((one) => one.value))].filter((name) => name !== NONE);
  load();
}

/** What is known of the moment where the cursor is. */
function read() {
  if (cursor === null || !data) return at("at").replaceChildren();
  const place = (cursor - data.from) / (data.to - data.from) * data.width;
  const nearest = (list, of) => list.reduce((best, one, i) =>
    best === -1 || Math.abs(of(one) - cursor) < Math.abs(of(list[best]) - cursor) ? i : best, -1);
  const i = data.at.reduce((best, one, j) => best === -1 || Math.abs(one - place) < Math.abs(data.at[best] - place) ? j : best, -1);
  const told = [moment(cursor)];
  if (i >= 0) for (const one of data.features) told.push(`${one.name} ${short(one.low[i])}${one.unit && ` ${one.unit}`}`);
  const label = data.labels.find(([from, to]) => from <= cursor && cursor <= to);
  if (label) told.push(`label ${label[2]}`);
  const said = data.predictions[nearest(data.predictions, (one) => one[0])];
  if (said && said[1] !== "") told.push(`the model says ${values ? short(said[1]) : `${said[1]}, ${Math.round(100 * said[2])} %`}`);
  at("at").textContent = told.join(" · ");
}

// ---- where it is looked at -----------------------------------------------------------------

function go(from, to) {
  if (!data) return;
  const span = Math.max(SHORTEST, Math.min(to - from, Math.max(SHORTEST, data.last - data.first)));
  const middle = (from + to) / 2;
  let start = middle - span / 2;
  start = Math.min(start, Math.max(data.last, data.first + SHORTEST) - span * 0.5); // half of it stays in sight
  start = Math.max(start, data.first - span * 0.5);
  const all = span >= data.last - data.first - 1e-6 && span > SHORTEST;
  view = all ? within(data.first, data.last, true) : within(start, start + span);
  follows = view.to >= data.last;
  paint();
  later(120);
}

function zoom(factor, about = (view.from + view.to) / 2) {
  go(about - (about - view.from) * factor, about + (view.to - about) * factor);
}

function shift(part) {
  const step = part * (view.to - view.from);
  go(view.from + step, view.to + step);
}

const DO = { in: () => zoom(0.5, chosen ? (chosen[0] + chosen[1]) / 2 : undefined), out: () => zoom(2),
  back: () => shift(-0.5), on: () => shift(0.5) };

function newest(span) {
  const end = chosen ? (chosen[0] + chosen[1] + span) / 2 : data.last;
  if (span === Infinity) go(data.first, data.last);
  else go(end - span, end);
}

// ---- what is chosen ------------------------------------------------------------------------

let counting = null;

function pick(from, to) {
  chosen = from === null ? null : [Math.min(from, to), Math.max(from, to)];
  paint();
  panel();
  clearTimeout(counting);
  if (!chosen) return;
  at("chosen").textContent = `${clock(chosen[0])} to ${clock(chosen[1])} …`;
  counting = setTimeout(count, 80);
}

async function count() {
  const [from, to] = chosen;
  const answer = await fetch(url("api/timeline/count", { from, to })).catch(() => null);
  if (!answer?.ok || !chosen || chosen[0] !== from || chosen[1] !== to) return;
  const { samples } = await answer.json();
  at("chosen").textContent = `${many(samples)} from ${clock(from)} to ${clock(to)}. What was it?`;
}

const many = (count) => `${count.toLocaleString()} ${count === 1 ? "sample" : "samples"}`;

function panel() {
  const shown = chosen !== null && may.label && data !== null && root.dataset.task !== "reconstruct";
  at("panel").hidden = !shown;
  if (shown) answers(at("names"), "name", [["null", "None of these (take the label away)"]]);
}

function holds() {
  at("now").hidden = !may.label || root.dataset.task === "reconstruct" || root.dataset.task === "forecast";
  if (at("now").hidden) return;
  const held = data.held;
  at("holds").textContent = held === null
    ? `Nothing is set: new samples of ${data.key} get no label by themselves.`
    : `New samples of ${data.key} are labelled ${held.label}, since ${moment(held.since)}.`;
  answers(at("hold"), "hold", held === null ? [] : [["stop", "Stop"]], held?.label);
}

/** Buttons for classes, or a field for a number or a new name; rebuilt only when they differ, so the focus stays. */
function answers(place, act, more, pressed) {
  const told = JSON.stringify([data.classes, data.free > 0, more, pressed]);
  if (place.dataset.told === told) return;
  const focus = place.contains(document.activeElement) ? document.activeElement : null;
  if (focus?.matches("input, select") && focus.value) return; // somebody is writing there
  const was = focus?.dataset.value;
  place.dataset.told = told;
  place.replaceChildren();
  const line = document.createElement("div");
  line.className = "buttons";
  const button = (value, text, kind) => {
    const one = document.createElement("button");
    one.type = "button";
    one.textContent = text;
    Object.assign(one.dataset, { act, value });
    if (kind) one.className = kind;
    if (act === "hold" && kind) one.setAttribute("aria-pressed", value === pressed);
    line.append(one);
  };
  const few = !values && data.classes.length <= BUTTONS;
  if (few) for (const name of data.classes) button(name, name, `named ${colour(data, name)}`);
  for (const [value, text] of more) button(value, text);
  place.append(line);
  if (values || !few || data.free > 0) place.append(form(act, few));
  if (was !== undefined) [...place.querySelectorAll("button")].find((one) => one.dataset.value === was)?.focus();
}

function form(act, few) {
  const made = document.createElement("form"), id = `teach-${act}-field`;
  made.dataset.act = act;
  const asks = values ? "Value" : few ? "A new name" : "Name";
  made.innerHTML = `<label for="${id}">${asks}</label> <input id="${id}" required autocomplete="off" maxlength="100"`
    + (values ? ' type="number" step="any"' : few ? "" : ` list="${id}-list"`) + `> <button>${act === "hold" ? "From now on" : "Set"}</button>`;
  if (!values && !few) {
    const list = document.createElement("datalist");
    list.id = `${id}-list`;
    list.append(...data.classes.map((name) => new Option(name)));
    made.append(list);
  }
  return made;
}

// ---- what is taught ------------------------------------------------------------------------

function tell(text, number = null) {
  at("said").textContent = text;
  undoes = number;
  at("undo").hidden = number === null || !may.control;
}

async function command(name, fields) {
  try {
    const answer = await (await post(`api/commands/${name}`, fields)).json();
    if (answer.error) tell(`That did not work: ${answer.error}`);
    return answer.error ? null : answer;
  } catch {
    tell("The device does not answer.");
    return null;
  }
}

async function name(label) {
  if (!chosen) return;
  const [from, to] = chosen;
  tell("Saving …");
  const answer = await command("label", { key: data.key, from, to, label });
  if (answer === null) return;
  if (answer.state !== "successful") return tell("Saving goes on; it shows here when it is done.");
  const { labelled, before, number } = answer.data;
  tell(label === null ? `${many(before.labelled)} lost the label.` : `${many(labelled)} now ${labelled === 1 ? "is" : "are"} ${label}.`, number);
  pick(null);
  anchor = null;
  soon();
}

async function hold(label) {
  const answer = await command("label", { key: data.key, label, hold: true });
  if (answer?.state !== "successful") return;
  tell(label === null ? "New samples get no label by themselves any more." : `From now on: ${label}.`, answer.data.number);
  soon();
}

async function undo() {
  const answer = await command("label.undo", { number: undoes });
  if (answer === null) return;
  tell(answer.state === "successful" ? "Undone." : "Undoing goes on.");
  at("picture").focus();
  soon();
}

/** What was taught is in the picture at once, and the answers of the model a moment later. */
function soon() {
  for (const pause of [0, 700, 1500, 3000, 6000]) setTimeout(load, pause);
}

// ---- hands ---------------------------------------------------------------------------------

const fingers = new Map();
let begun = null; // the first place of a drag
let pinch = null;

const time = (event) => {
  const box = at("picture").getBoundingClientRect();
  return view.from + Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * (view.to - view.from);
};

function down(event) {
  if (!data || event.button > 0) return;
  fingers.set(event.pointerId, event);
  at("picture").setPointerCapture(event.pointerId);
  if (fingers.size === 2) { begun = null; pinch = pinched(); return pick(null); }
  begun = { x: event.clientX, ts: time(event), moved: false };
}

function pinched() {
  const [a, b] = [...fingers.values()];
  return { apart: Math.max(20, Math.abs(a.clientX - b.clientX)), from: view.from, to: view.to,
    about: (time(a) + time(b)) / 2, middle: (a.clientX + b.clientX) / 2 };
}

function move(event) {
  if (!data) return;
  if (fingers.has(event.pointerId)) fingers.set(event.pointerId, event);
  if (pinch && fingers.size === 2) {
    const [a, b] = [...fingers.values()], box = at("picture").getBoundingClientRect();
    const factor = pinch.apart / Math.max(20, Math.abs(a.clientX - b.clientX));
    const moved = ((a.clientX + b.clientX) / 2 - pinch.middle) / box.width * (pinch.to - pinch.from) * factor;
    return go(pinch.about - (pinch.about - pinch.from) * factor - moved, pinch.about + (pinch.to - pinch.about) * factor - moved);
  }
  cursor = time(event);
  if (begun && (begun.moved ||= Math.abs(event.clientX - begun.x) > 5)) pick(begun.ts, cursor);
  else paint();
  read();
}

function up(event) {
  fingers.delete(event.pointerId);
  if (fingers.size < 2) pinch = null;
  if (!begun) return;
  const tapped = !begun.moved && event.type === "pointerup";
  const ts = begun.ts;
  begun = null;
  if (!tapped) return;
  cursor = ts;
  if (anchor === null || chosen) { anchor = ts; pick(null); }
  else { pick(anchor, ts); anchor = null; }
  read();
}

function wheel(event) {
  if (!data || !(event.ctrlKey || document.activeElement === at("picture"))) return; // the page scrolls
  event.preventDefault();
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) shift(Math.sign(event.deltaX) * 0.1);
  else zoom(event.deltaY > 0 ? 1.3 : 1 / 1.3, time(event));
}

function key(event) {
  if (!data || event.altKey || event.ctrlKey || event.metaKey) return;
  const step = (view.to - view.from) / 50, by = { ArrowLeft: -step, ArrowRight: step }[event.key];
  const acts = { "+": () => zoom(0.5, cursor ?? undefined), "=": () => zoom(0.5, cursor ?? undefined), "-": () => zoom(2, cursor ?? undefined),
    PageUp: () => shift(-1), PageDown: () => shift(1), Escape: () => { anchor = null; pick(null); },
    Home: () => { cursor = data.first; go(data.first, data.first + view.to - view.from); },
    End: () => { cursor = data.last; go(data.last - (view.to - view.from), data.last); } };
  if (by === undefined && !acts[event.key]) return;
  event.preventDefault();
  if (by === undefined) { acts[event.key](); return read(); }
  cursor ??= (view.from + view.to) / 2;
  if (event.shiftKey && (anchor === null || !chosen)) anchor = cursor;
  cursor += by;
  if (cursor < view.from || cursor > view.to) go(view.from + by, view.to + by);
  if (event.shiftKey) pick(anchor, cursor);
  else paint();
  read();
}

function begin() {
  root.closest("section").dataset.own = "";
  root.innerHTML = frame;
  const picture = at("picture");
  picture.addEventListener("pointerdown", down);
  picture.addEventListener("pointermove", move);
  picture.addEventListener("pointerup", up);
  picture.addEventListener("pointercancel", up);
  picture.addEventListener("wheel", wheel, { passive: false });
  picture.addEventListener("keydown", key);
  at("key").addEventListener("change", () => { view = null; chosen = anchor = cursor = null; follows = true; load(); });
  at("undo").addEventListener("click", undo);
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.go) DO[button.dataset.go]();
    else if (button?.dataset.span) newest(SPANS[button.dataset.span]);
    else if (button?.dataset.act === "name") name(button.dataset.value === "null" && !button.className ? null : button.dataset.value);
    else if (button?.dataset.act === "hold") hold(button.dataset.value === "stop" && !button.className ? null : button.dataset.value);
  });
  root.addEventListener("submit", (event) => {
    event.preventDefault();
    const field = event.target.querySelector("input"), said = values ? Number(field.value) : field.value.trim();
    field.blur();
    field.value = "";
    (event.target.dataset.act === "hold" ? hold : name)(said);
  });
  let seen = false, due = 0;
  new IntersectionObserver(([entry]) => { seen = entry.isIntersecting; }).observe(root.closest("section"));
  new ResizeObserver(paint).observe(picture);
  document.addEventListener("edged", ({ detail }) => { // what the device sends to the page
    const now = performance.now();
    if (!seen || document.hidden || fingers.size || under || now < due) return;
    if (detail !== "predictions" && data !== null && !detail.startsWith("events")) return;
    due = now + Math.max(1000, 20 * took);
    load();
  });
  load();
}

if (root) begin();
