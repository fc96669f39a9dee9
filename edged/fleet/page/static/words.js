"use strict";
// How things are said: one place for what the table and the details have in common.

const NOTHING = "–";
const STATES = {
  online: "online",
  waiting: "no word yet",
  silent: "silent",
  offline: "offline",
  unknown: "not known",
};

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

const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

const words = {
  // One line on whether it is there, that claims no more than is known.
  standing(device, standing, now) {
    const since = standing.since;
    switch (standing.state) {
      case "online":
        return `online, last word ${ago(now - since)} ago`;
      case "offline":
        if (since === null) return "offline, since when is not known";
        return standing.exact ? `offline since ${clock(since)}` : `offline, left after ${clock(since)}`;
      case "silent": {
        const status = device.status === null ? "" : "the broker holds it for online, but ";
        if (since === null) return `silent: ${status}nothing has come since this page listens`;
        return `silent: ${status}no word since ${clock(since)}${standing.exact ? "" : " or later"}`;
      }
      case "waiting":
        return `${device.status === null ? "" : "the broker holds it for online; "}no word from itself yet`;
      default:
        return "not known: no connection to the broker";
    }
  },

  seen(standing, now) {
    if (standing.since === null) return NOTHING;
    return standing.exact ? `${ago(now - standing.since)} ago` : `≤ ${ago(now - standing.since)} ago`;
  },

  quality: ({ quality }) => (quality === null ? NOTHING : `${figure(quality.value)} ${quality.name}`),

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
    if (isObject(told.paused)) return "stopped";
    if (list(told.waiting_for).length) return `waits: ${list(told.waiting_for).map(figure).join(", ")}`;
    return isNumber(told.runs) ? plural(told.runs, "run") : NOTHING;
  },

  health(device) {
    const problems = device.problems;
    if (problems.length === 0) return "ok";
    return problems.length === 1 ? problems[0] : `${problems[0]} (+${problems.length - 1})`;
  },

  // An event's fields beside its name and its numbering.
  fields(told) {
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
