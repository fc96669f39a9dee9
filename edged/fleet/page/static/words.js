"use strict";
// How things are said: one place for what the table and the details have in common.

const NOTHING = "–";

function ago(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

function clock(milliseconds) {
  const time = new Date(milliseconds);
  const today = time.toDateString() === new Date().toDateString();
  return today ? time.toLocaleTimeString() : time.toLocaleString();
}

function figure(value) {
  if (isNumber(value)) return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
  if (value === null || value === undefined) return NOTHING;
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 300 ? `${text.slice(0, 300)}…` : text;
}

// As on the device page: shares in percent, all else as a number.
const SHARES = ["accuracy", "balanced_accuracy", "coverage"];
const measure = (name, value) => (SHARES.includes(name) ? `${(100 * value).toFixed(1)} %` : figure(value));

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

const words = {
  // One line on whether it is there, that claims no more than is known.
  standing(device, standing, now) {
    const since = standing.since;
    switch (standing.state) {
      case "online":
        return `online, last seen ${ago(now - since)} ago`;
      case "offline":
        if (since === null) return "offline, time unknown";
        return standing.exact ? `offline since ${clock(since)}` : `offline since ${clock(since)} or later`;
      case "failed":
        return "failed: the stream does not run";
      case "silent": {
        const status = device.life.status === null ? "" : "marked online at the broker, but ";
        if (since === null) return `silent: ${status}no message since this page connected`;
        return `silent: ${status}no message since ${clock(since)}${standing.exact ? "" : " or later"}`;
      }
      case "waiting":
        return `${device.life.status === null ? "" : "marked online at the broker; "}no message yet`;
      default:
        return "unknown: not connected to the broker";
    }
  },

  seen(standing, now) {
    if (standing.since === null) return NOTHING;
    return standing.exact ? `${ago(now - standing.since)} ago` : `≤ ${ago(now - standing.since)} ago`;
  },

  model: ({ streams, states }) => (streams === null ? figure(states.model.version) : plural(Object.keys(streams).length, "stream")),

  quality: ({ quality }) => (quality === null ? NOTHING : `${measure(quality.name, quality.value)}${quality.name === "accuracy" ? "" : ` ${quality.name}`}`),

  drift(device) {
    const last = device.drift;
    return last === null ? NOTHING : `${figure(last.level)} (${figure(last.source)})`;
  },

  training(device) {
    const told = device.states.training;
    if (device.running !== null) {
      const { step, steps } = part(device.running);
      return isNumber(step) ? `step ${step} of ${figure(steps ?? "?")}` : "running";
    }
    if (told.on_hold === true) return "paused";
    if (isObject(told.paused)) return "paused after failures";
    if (list(told.waiting_for).length) return `blocked: ${list(told.waiting_for).map(figure).join(", ")}`;
    return isNumber(told.runs) ? plural(told.runs, "run") : NOTHING;
  },

  // What the newest labels did, in the device's own words.
  learned(device) {
    const { summary } = device.states.training;
    return typeof summary === "string" ? figure(summary) : NOTHING;
  },

  health(device) {
    const problems = device.problems;
    if (problems.length === 0) return "OK";
    return problems.length === 1 ? problems[0] : `${problems[0]} (+${problems.length - 1})`;
  },

  // An event's fields beside its name and its numbering.
  fields(told) {
    if (typeof told.summary === "string") return figure(told.summary);
    const left = Object.entries(told).filter(([name]) => !["event", "ts", "seq", "boot", "historical"].includes(name));
    return left.map(([name, value]) => `${name} ${figure(value)}`).join(", ").slice(0, 600);
  },
};

function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  if (name) made.className = name;
  return made;
}

const at = (id) => document.getElementById(id);

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
