"use strict";
// Everything wired together: the connection, what is known, and what is shown of it.

const SHOWN_AT_MOST_EVERY = 100; // milliseconds
const ANSWERS_SHOWN = 200;
const setting = (name) => document.querySelector(`meta[name="edged-${name}"]`).content;

const fleet = new Fleet(setting("root"));
const url = brokerUrl(setting("broker"));
let due = null;
let took = 0; // milliseconds

function changed() {
  due ??= setTimeout(show, Math.max(SHOWN_AT_MOST_EVERY, 3 * took)); // most of the time is for messages
}

function show() {
  clearTimeout(due);
  due = null;
  const now = Date.now();
  table.show(now);
  rounds.show(now);
  detail.show(now);
  took = Date.now() - now;
}

function answers() {
  const { open, good, bad } = asking.count;
  at("answers").hidden = asking.asked.size === 0;
  say(at("answered"), `${good} succeeded, ${bad} failed, ${open} pending.`);
  const lines = [...asking.asked.values()].reverse().slice(0, ANSWERS_SHOWN).map((one) => {
    const line = element("li");
    line.dataset.answer = one.state;
    line.append(element("b", one.device), ` ${one.command}: `, element("strong", one.state), one.text ? ` – ${one.text}` : "");
    return line;
  });
  at("answer-list").replaceChildren(...lines);
}

const link = new Link(url, setting("root"), {
  up() {
    fleet.listening = Date.now();
    connection(`Connected to ${url}.`, true);
  },
  down(why, pause) {
    fleet.listening = null;
    asking.lost();
    connection(`Disconnected: ${why}. Showing the last known data. Retrying in ${pause / 1000} s.`, true);
  },
  refused(why) {
    fleet.listening = null;
    asking.lost();
    connection(why, false);
  },
  message(topic, payload, retained) {
    const now = Date.now();
    const taken = fleet.take(topic, payload, retained, now);
    if (taken === null) return;
    if (taken.device !== null) asking.take(taken.device, taken.name, taken.told, now);
    changed();
  },
});
let answersDue = null;
const asking = new Asking(link, setting("root"), () => {
  answersDue ??= setTimeout(() => {
    answersDue = null;
    answers();
    detail.answered();
  }, SHOWN_AT_MOST_EVERY);
});
const sending = new Sending(fleet, asking);
const detail = new Detail(fleet, new Teaching(asking), (devices) => sending.open(devices));
const rounds = new LearningView(fleet.learning);
const table = new Table(fleet, changed, (device) => detail.open(device));

function connection(text, entered) {
  say(at("connection"), text);
  at("login").hidden = entered;
  at("fleet").hidden = !entered;
  if (!entered) fleet.learning.fleets.clear();
  at("leave").hidden = !entered;
  changed();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const [user, password] = [at("user").value, at("password").value];
  at("password").value = "";
  say(at("connection"), "Connecting…");
  link.open(user, password);
});
at("leave").addEventListener("click", () => {
  link.close();
  fleet.listening = null;
  fleet.devices.clear();
  connection("Not connected.", false);
});
at("search").addEventListener("input", () => {
  table.search = at("search").value.trim();
  changed();
});
at("command").addEventListener("click", () => {
  sending.open([...table.selected].map((id) => fleet.devices.get(id)).filter((device) => device !== undefined));
});

const place = new URL(url);
say(at("where"), `Broker: ${url}`);
at("clear").hidden = place.protocol === "wss:" || ["localhost", "127.0.0.1", "[::1]"].includes(place.hostname);
setInterval(() => {
  asking.tick(Date.now());
  show();
}, 1000);
show();
