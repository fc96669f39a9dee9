// The map of the samples: a point for each, by colour and shape of its class. One stop of the Tab key: arrows go from
// point to point, Enter shows one, and so does a click.

import { confirmed, localise, refresh } from "./page.js";
import { change, confirm } from "./suspects.js";

const section = document.getElementById("map");
const LOOKS = 8; // shapes, and colours in page.css
const SHAPES = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-4,-4h8v8h-8z", "M0,-5L5,4H-5z", "M0,-5.5L5.5,0L0,5.5L-5.5,0z",
  "M-1.5,-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z", "M0,5L5,-4H-5z",
  "M-5,-3L-3,-5L0,-2L3,-5L5,-3L2,0L5,3L3,5L0,2L-3,5L-5,3L-2,0z", "M-5,-2h10v4h-10z",
];
const EDGE = 14, NARROW = 560, REACH = 20; // pixels
const HELP = "Arrow keys go from sample to sample, Enter shows one.";

let drawn = null; // data-drawn of what is shown
let data = null;
let active = -1; // the point that the keyboard is at
let place, picture, mark, voice, card;

const shapeOf = (c) => SHAPES[(c + Math.floor(c / LOOKS)) % LOOKS];
const colourOf = (c) => `point k${c % LOOKS}`;
const percent = (share) => `${Math.round(100 * share)} %`;
const count = () => data.points.offset.length;

function element(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "g", "circle"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const where = (i) => {
  const box = picture.viewBox.baseVal;
  const along = (v, size) => EDGE + ((v + 1) / 2) * (size - 2 * EDGE);
  return [along(data.points.x[i], box.width), along(-data.points.y[i], box.height)];
};

function spot(i) {
  const { label, answer } = data.points;
  const [x, y] = where(i).map((v) => v.toFixed(1));
  const shape = element("path", { d: shapeOf(label[i]), class: colourOf(label[i]) });
  const size = picture.viewBox.baseVal.width < NARROW ? 0.7 : 1;
  const ring = label[i] === answer[i] ? [] : [element("circle", { r: 7.5, class: "ring" })];
  return element("g", { transform: `translate(${x},${y}) scale(${size})` }, shape, ...ring);
}

function draw() {
  const width = Math.max(260, Math.round(place.clientWidth));
  const height = Math.round(Math.min(480, Math.max(300, width * 0.45)));
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  mark = element("circle", { r: 11, class: "mark" });
  const { label, answer } = data.points;
  const order = [...Array(count()).keys()].sort((a, b) => (label[a] !== answer[a]) - (label[b] !== answer[b]));
  picture.replaceChildren(...order.map(spot), mark);
  go(active);
}

function legend() {
  const many = new Map();
  for (const c of data.points.label) many.set(c, (many.get(c) ?? 0) + 1);
  const lines = [...many.keys()].sort((a, b) => a - b).map((c) => {
    const sign = element("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true" },
      element("path", { d: shapeOf(c), class: colourOf(c) }));
    return element("li", {}, sign, `${data.classes[c]} (${many.get(c)})`);
  });
  const ring = element("svg", { viewBox: "-8 -8 16 16", "aria-hidden": "true" },
    element("circle", { r: 6, class: "ring" }));
  return element("ul", { class: "classes" }, ...lines, element("li", {}, ring, "the model says otherwise"));
}

function words(i) {
  const { label, answer, confidence } = data.points;
  return `Labelled ${data.classes[label[i]]}; the model says ${data.classes[answer[i]]}, ${percent(confidence[i])} sure.`;
}

function go(i) {
  active = i;
  mark.setAttribute("visibility", i < 0 ? "hidden" : "visible");
  if (i < 0) return;
  const [x, y] = where(i);
  mark.setAttribute("transform", `translate(${x.toFixed(1)},${y.toFixed(1)})`);
}

/** The nearest point in a direction: what lies aside counts twice. */
function next(dx, dy) {
  if (active < 0) return 0;
  const [x, y] = where(active);
  let best = active, least = Infinity;
  for (let i = 0; i < count(); i++) {
    const [u, v] = where(i);
    const ahead = (u - x) * dx + (v - y) * dy, aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
    const far = ahead + 2 * aside;
    if (ahead > 0.5 && aside <= 2 * ahead && far < least) [best, least] = [i, far];
  }
  return best;
}

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function key(event) {
  const shows = event.key === "Enter" || event.key === " ";
  if (!shows && !STEPS[event.key] && event.key !== "Home") return;
  event.preventDefault();
  if (!shows) go(event.key === "Home" ? 0 : next(...STEPS[event.key]));
  if (active < 0) return;
  if (shows) inspect(active);
  else voice.textContent = words(active);
}

async function inspect(i) {
  go(i);
  voice.textContent = "";
  const answer = await fetch(`api/labels/samples/${data.points.offset[i]}`).catch(() => null);
  if (!answer?.ok) {
    card.replaceChildren(element("p", {}, "This sample is not stored any more."));
    return;
  }
  const one = await answer.json();
  const time = element("time", { datetime: new Date(1000 * one.ts).toISOString() }, "");
  const values = one.values.map((value, at) => `${one.features[at]} ${value}`).join(", ");
  const more = one.features.length > one.values.length ? " …" : "";
  card.replaceChildren(
    element("p", {}, time, " ", element("b", {}, one.key)),
    element("p", {}, one.label === null ? "It has no label any more." : words(i)),
    element("p", {}, element("small", {}, values + more)),
    ...("may" in place.dataset && one.label !== null ? [buttons(i, one)] : []),
  );
  localise(card);
}

function buttons(i, one) {
  const right = element("button", { type: "button" }, "The label is right");
  right.addEventListener("click", async () => {
    if (!(await confirmed("The label is right", `Keep ${one.label}, and not ask about it again?`))) return;
    if ((await confirm([one.id])) !== null) settled(`${one.label} is confirmed.`);
  });
  const options = data.known.map((name) => element("option", name === data.classes[data.points.answer[i]] ? { selected: "" } : {}, name));
  const choice = element("select", { id: "map-class" }, ...options);
  const set = element("button", { type: "button" }, "Change");
  set.addEventListener("click", async () => {
    const name = choice.value;
    if (!(await confirmed("Change", `Label sample ${one.id} of ${one.key} as ${name}?`))) return;
    if ((await change([{ id: one.id, label: name }])) === null) return;
    data.points.label[i] = data.classes.indexOf(name);
    place.querySelector(".classes").replaceWith(legend());
    draw();
    settled(`Changed from ${one.label} to ${name}.`);
  });
  const label = element("label", { for: "map-class" }, "It should be");
  return element("div", { class: "buttons" }, right, element("span", {}, label, " ", choice), set);
}

function settled(text) {
  card.querySelector(".buttons")?.replaceWith(element("p", {}, text));
  refresh(null, true);
}

async function load() {
  const answer = await fetch("api/labels/map").catch(() => null);
  if (!answer?.ok || !place.isConnected) return;
  data = await answer.json();
  active = -1;
  picture = element("svg", { "aria-hidden": "true" });
  const frame = element("div", {
    role: "application", tabindex: 0, class: "picture", "aria-label": `Map of ${count()} samples`,
    "aria-describedby": "map-help",
  }, picture);
  voice = element("p", { id: "map-voice", "aria-live": "polite" });
  card = element("div", { id: "map-card", "aria-live": "polite" });
  place.replaceChildren(legend(), frame, element("p", { id: "map-help" }, `${HELP} Or click on one.`), voice, card);
  draw();
  frame.addEventListener("keydown", key);
  picture.addEventListener("click", ({ offsetX, offsetY }) => {
    const far = [...Array(count()).keys()].map((i) => Math.hypot(where(i)[0] - offsetX, where(i)[1] - offsetY));
    const nearest = far.reduce((best, one, i) => (one < far[best] ? i : best), 0);
    if (far[nearest] < REACH) inspect(nearest);
  });
}

const sight = new IntersectionObserver((seen) => {
  if (!seen.some((one) => one.isIntersecting) || drawn === place.dataset.drawn) return;
  drawn = place.dataset.drawn;
  load();
}, { rootMargin: "200px" });

function look() {
  const before = place;
  place = document.getElementById("map-place");
  drawn = null;
  sight.disconnect();
  if (!place) return;
  if (before && active >= 0) offer(before); // somebody looks at a sample: the map stays as it is
  else sight.observe(place);
}

function offer(before) {
  place.replaceChildren(...before.children);
  if (document.getElementById("map-newer")) return;
  const newer = element("button", { type: "button", id: "map-newer" }, "Show the newer map");
  newer.addEventListener("click", load);
  place.prepend(newer);
}

if (section) {
  new MutationObserver(look).observe(section.querySelector(".inside"), { childList: true });
  let width = 0;
  new ResizeObserver(() => {
    if (place?.clientWidth === width || !data || !picture?.isConnected) return;
    width = place.clientWidth;
    draw();
  }).observe(section);
  look();
}
