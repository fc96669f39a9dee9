// Draws the timeline as SVG: curves, labels, what the model says, and what happened. It knows nothing of buttons.

const ROW = 52, CAPTION = 16, BAND = 18, TOP = 14, AXIS = 20; // pixels
const COLOURS = 8; // of classes; more of them begin anew
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const SIGNS = { // as on the chart of quality, and a cross
  drift: "m-5 0h10l-5 8z", swap: "m-4 0h8v8h-8z", back: "m0 0l5 5l-5 5l-5 -5z", alarm: "m-4 1l8 8m0 -8l-8 8",
};
const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const seconds = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const minutes = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const days = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
export const moment = (ts) => whole.format(ts * 1000);
export const clock = (ts) => seconds.format(ts * 1000);
export const short = (value) => value === null ? "–" : String(Number(value.toPrecision(4)));
export const colour = (data, name) => `c${Math.max(0, data.classes.indexOf(name)) % COLOURS}`;

/** How high a picture of `data` is. */
export function height(data) {
  const bands = data.values ? 1 : 2;
  return TOP + data.features.length * (CAPTION + ROW) + bands * CAPTION + (data.values ? ROW : bands * BAND) + AXIS;
}

/** SVG of `data` within `view` (`from`, `to`, `width`), with what is chosen and where the cursor is. */
export function draw(data, view, chosen, cursor) {
  const x = (ts) => (ts - view.from) / (view.to - view.from) * view.width;
  const high = height(data), parts = [];
  let y = TOP;
  const caption = (text) => {
    parts.push(`<text class="axis" x="2" y="${y + 12}">${escaped(text)}</text>`);
    y += CAPTION;
  };
  parts.push(axis(view, x, high));
  for (const [i, one] of data.features.entries()) {
    const [low, top] = bounds([one.low, one.high]);
    caption(`${one.name}${low === null ? "" : `: ${short(low)} to ${short(top)} ${one.unit}`}`);
    parts.push(`<path class="curve f${i % 3}" d="${curve(data, one, x, y, low, top)}"/>`);
    y += ROW;
  }
  if (data.values) {
    const [low, top] = bounds([data.labels.map((run) => run[2]), data.predictions.map((said) => said[1])]);
    caption(`Label (dots) and model (line)${low === null ? "" : `: ${short(low)} to ${short(top)}`}`);
    const at = (value) => (y + ROW - 4 - (value - low) / (top - low) * (ROW - 8)).toFixed(1);
    const line = data.predictions.map(([ts, value], i) => `${i ? "L" : "M"}${x(ts).toFixed(1)} ${at(value)}`).join("");
    const dots = data.labels.map(([ts, , value]) => `M${x(ts).toFixed(1)} ${at(value)}h.01`).join("");
    parts.push(`<path class="said" d="${line}"/><path class="given" d="${dots}"/>`);
    y += ROW;
  } else {
    caption("Labels");
    for (const [from, to, name] of data.labels) parts.push(box(data, name, x(from) - 1, x(to) + 1, y, BAND));
    y += BAND;
    caption(data.missing === null ? "The model says" : `The model says nothing yet: ${data.missing}`);
    parts.push(...said(data, x, y));
    y += BAND;
  }
  for (const [ts, kind, text] of data.marks) {
    const at = x(ts).toFixed(1);
    parts.push(`<g class="mark ${kind}"><title>${escaped(text)}</title><line x1="${at}" x2="${at}" y1="8" y2="${y}"/>`
      + `<path d="M${at} 1${SIGNS[kind] ?? ""}"/></g>`);
  }
  if (chosen) {
    const [from, to] = chosen.map(x);
    parts.push(`<rect class="chosen" x="${from}" width="${Math.max(2, to - from)}" y="0" height="${y}"/>`);
  }
  if (cursor !== null) parts.push(`<line class="cursor" x1="${x(cursor)}" x2="${x(cursor)}" y1="0" y2="${y}"/>`);
  return parts.join("");
}

function bounds(lists) {
  const values = lists.flat().filter((value) => value !== null);
  if (values.length === 0) return [null, null];
  const low = values.reduce((a, b) => Math.min(a, b)), top = values.reduce((a, b) => Math.max(a, b));
  return low === top ? [low - 1, top + 1] : [low, top];
}

/** An area between least and largest values, in pieces where samples are missing. */
function curve(data, one, x, y, low, top) {
  const width = (data.to - data.from) / data.width, at = data.at;
  const steps = at.slice(1).map((place, i) => place - at[i]).sort((a, b) => a - b);
  const longest = Math.max(3, 6 * (steps[steps.length >> 1] ?? 1));
  const level = (value) => (y + ROW - 4 - (value - low) / (top - low) * (ROW - 8)).toFixed(1);
  const pieces = [];
  let before = null;
  for (const [i, place] of at.entries()) {
    if (one.low[i] === null) continue;
    if (before === null || place - before > longest) pieces.push([[], []]);
    before = place;
    const across = x(data.from + (place + 0.5) * width).toFixed(1), [upper, lower] = pieces[pieces.length - 1];
    upper.push(`${across} ${level(one.high[i])}`);
    lower.push(`${across} ${level(one.low[i])}`);
  }
  return pieces.map(([upper, lower]) =>
    upper.length === 1 ? `M${upper[0]}V${lower[0].split(" ")[1]}h.01` : `M${upper.join("L")}L${lower.reverse().join("L")}Z`,
  ).join("");
}

/** Predictions as boxes, the higher the surer; neighbours with one answer share its name. */
function said(data, x, y) {
  const found = data.predictions, parts = [];
  const gaps = found.slice(1).map(([ts], i) => ts - found[i][0]).sort((a, b) => a - b);
  const reach = gaps.length ? 2 * gaps[gaps.length >> 1] : (data.to - data.from) / 100;
  let run = null;
  const name = () => { if (run) parts.push(word(run.name, run.from, run.to, y, BAND)); };
  for (const [i, [ts, answer, sure]] of found.entries()) {
    if (!answer) continue; // no class yet
    const from = x(Math.max(ts - reach, i ? (found[i - 1][0] + ts) / 2 : ts - reach / 2));
    const to = x(Math.min(ts + reach, i + 1 < found.length ? (ts + found[i + 1][0]) / 2 : ts + reach / 2));
    const tall = BAND * (0.2 + 0.8 * sure);
    parts.push(`<rect class="${colour(data, answer)}" x="${from.toFixed(1)}" width="${Math.max(1, to - from).toFixed(1)}"`
      + ` y="${(y + BAND - tall).toFixed(1)}" height="${tall.toFixed(1)}"/>`);
    if (run && run.name === answer && from - run.to < 2) run.to = to;
    else { name(); run = { name: answer, from, to }; }
  }
  name();
  return parts;
}

function box(data, name, from, to, y, tall) {
  return `<rect class="${colour(data, name)}" x="${from.toFixed(1)}" width="${(to - from).toFixed(1)}" y="${y}" height="${tall}"/>`
    + word(name, from, to, y, tall);
}

function word(name, from, to, y, tall) {
  const left = Math.max(0, from);
  if (to - left < 7 * name.length + 8) return "";
  return `<text class="name" x="${(left + 4).toFixed(1)}" y="${y + tall - 5}">${escaped(name)}</text>`;
}

function axis(view, x, high) {
  const least = 90 * (view.to - view.from) / view.width;
  const step = STEPS.find((one) => one >= least) ?? 86400 * Math.ceil(least / 86400);
  const zone = -60 * new Date(view.from * 1000).getTimezoneOffset(); // ticks on whole hours and days of the reader
  const format = step >= 86400 ? days : step >= 60 ? minutes : seconds, parts = [];
  for (let ts = Math.ceil((view.from + zone) / step) * step - zone; ts <= view.to; ts += step) {
    const at = x(ts).toFixed(1), midnight = (ts + zone) % 86400 === 0;
    parts.push(`<line class="grid" x1="${at}" x2="${at}" y1="${TOP}" y2="${high - AXIS}"/>`);
    if (x(ts) > 36 && x(ts) < view.width - 36)
      parts.push(`<text class="axis" text-anchor="middle" x="${at}" y="${high - 5}">${(midnight ? days : format).format(ts * 1000)}</text>`);
  }
  return parts.join("");
}
