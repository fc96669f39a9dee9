"use strict";
// What is known of each device, from its topics alone. Nothing here touches the page.

const KEPT_EVENTS = 50;
const KEPT_REQUESTS = 20; // labels that people are asked for, the newest
const MOST_DEVICES = 5000;
const MOST_BYTES = 262144;
const CLOCK_SET = Date.UTC(2024, 0) / 1000; // a device's time before this is no time
const REPORTED_EVERY = 10; // seconds, where a device has not told its own
const SILENT_AFTER = 3; // reports that did not come
const LAST_WORDS = 5000; // milliseconds in which messages may still come after an orderly farewell
const VERDICTS = ["model_promoted", "candidate_rejected", "model_rolled_back"];
const ENOUGH_LABELS = 100; // for live quality to be compared
const READS = ["capabilities", "config.get", "labels.suspects", "ping", "status"]; // need no signature
const OWN_TOPICS = ["status", "state", "metrics", "predictions", "events", "request", "response", "progress", "weights"];
const DECODER = new TextDecoder();

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const part = (value) => (isObject(value) ? value : {});
const list = (value) => (Array.isArray(value) ? value : []);
const moment = (ts) => (isNumber(ts) && ts > CLOCK_SET && ts < 1e11 ? 1000 * ts : null);
const newer = (a, b) => (a.boot ?? 0) > (b.boot ?? 0) || ((a.boot ?? 0) === (b.boot ?? 0) && (a.seq ?? 0) > (b.seq ?? 0));

function parsed(payload) {
  if (payload.length > MOST_BYTES) return null;
  try {
    const told = JSON.parse(DECODER.decode(payload));
    return isObject(told) ? told : null;
  } catch {
    return null;
  }
}

// A device, or with `of` one of the streams of that device, whose connection is its own.
class Device {
  constructor(id, of = null) {
    this.id = id;
    this.of = of;
    this.line = null; // of a stream: what the device says of it
    this.streams = null; // of a device with several: by name, what it says of each
    this.status = null; // the retained one, and the will
    this.gone = null; // when an "offline" came in while we listened
    this.heard = null; // when it last said something while we listened
    this.states = { model: {}, training: {}, drift: {}, buffer: {}, config: {} };
    this.metrics = null;
    this.events = [];
    this.requests = new Map(); // label requests by the id of their sample, oldest first
    this.verdict = null;
    this.driftAt = null;
    this.running = null;
  }

  // Its own word on when it was there at last, by its own clock: the newest time in what the broker keeps.
  get told() {
    const { model, training } = this.states;
    const times = [this.life.status?.ts, model.since, part(training.last).ended, this.metrics?.ts].map(moment);
    const known = times.filter((time) => time !== null);
    return known.length ? Math.max(...known) : null;
  }

  // Whose connection it has.
  get life() {
    return this.of ?? this;
  }

  // Milliseconds without a word after which it counts as silent.
  get patience() {
    const every = part(this.states.config.report).every;
    return 1000 * Math.max(15, SILENT_AFTER * (isNumber(every) ? every : REPORTED_EVERY) + 5);
  }

  take(name, told, live, now) {
    const offline = name === "status" && told.state === "offline";
    if (live && !offline) this.heard = now;
    if (name === "status") this.#status(told, live && offline ? now : null);
    else if (name.startsWith("state/")) this.#state(name.slice(6), told, live, now);
    else if (name === "metrics") this.#metrics(told);
    else if (name === "events") this.#event(told, now);
  }

  #status(told, gone) {
    // The will has no time: that of the birth before it says more than nothing.
    this.status = { ...told, ts: told.ts ?? this.status?.ts };
    this.gone = gone;
    if (told.state === "offline") this.running = null;
  }

  #state(name, told, live, now) {
    if (name === "streams") this.streams = part(told.streams);
    if (!Object.hasOwn(this.states, name)) return;
    const more = name === "drift" && isNumber(told.signals) && told.signals > (this.states.drift.signals ?? 0);
    if (more && live) this.driftAt = now;
    this.states[name] = told;
  }

  #metrics(told) {
    const late = told.historical === true;
    if (late && this.metrics !== null && !newer(told, this.metrics)) return;
    this.metrics = told;
    if (!late) this.running = part(told.training).running ?? null;
  }

  #event(told, now) {
    if (told.event === "label_requested") return this.#request(told); // so many would bury the rest
    const again = ({ boot, seq }) => isNumber(seq) && boot === told.boot && seq === told.seq;
    if (this.events.some(again)) return; // as QoS 1 may
    this.events.push(told);
    this.events.sort((a, b) => (newer(a, b) ? -1 : 1));
    this.events.length = Math.min(this.events.length, KEPT_EVENTS);
    this.verdict = this.events.find((event) => VERDICTS.includes(event.event)) ?? null;
    if (told.historical === true) return;
    if (told.event === "drift_detected") this.driftAt = now;
    if (told.event === "training_started") this.running = {};
    if (told.event === "training_finished") this.running = null;
  }

  #request(told) {
    if (typeof told.id !== "string") return;
    this.requests.delete(told.id);
    this.requests.set(told.id, told);
    for (const id of this.requests.keys()) {
      if (this.requests.size <= KEPT_REQUESTS) break;
      this.requests.delete(id);
    }
  }

  // Names of classes; empty where labels are values or the names are not known.
  get classes() {
    const told = part(this.states.config.stream).classes;
    if (isNumber(told)) return Array.from({ length: Math.min(told, 100) }, (_, n) => String(n));
    return list(told).map(String).slice(0, 100);
  }

  // Keys of samples that were heard of, for suggestions.
  get keys() {
    return [...new Set([...this.requests.values(), ...this.events].map(({ key }) => key).filter((key) => typeof key === "string"))];
  }

  // Where other machines find its own page; null if they cannot.
  get page() {
    const told = this.states.config.page;
    return typeof told === "string" && told.startsWith("https://") ? told : null;
  }

  // Where it stands: `state`, `since` in milliseconds (null: not known), `exact` (else: no earlier than that).
  standing(listening, now) {
    if (listening === null) return { state: "unknown", since: null, exact: false };
    // The broker may be wrong: what goes on talking is there.
    const { status, gone } = this.life;
    const last = this.heard;
    const talks = last !== null && last > (gone ?? 0) + LAST_WORDS;
    if (status?.state === "offline" && !talks) {
      if (gone !== null) return { state: "offline", since: gone, exact: true };
      return { state: "offline", since: this.told, exact: false };
    }
    if (this.line?.state === "failed") return { state: "failed", since: null, exact: false };
    if (last !== null && now - last <= this.patience) return { state: "online", since: last, exact: true };
    if (now - Math.max(listening, last ?? 0) <= this.patience) return { state: "waiting", since: this.told, exact: false };
    return { state: "silent", since: last ?? this.told, exact: last !== null };
  }

  get quality() {
    const found = Object.entries(part(this.metrics?.live)).find(([name, value]) => name !== "labelled" && isNumber(value));
    return found === undefined ? null : { name: found[0], value: found[1] };
  }

  // The newest signal, unless a model has begun to serve since it came.
  get drift() {
    const last = part(this.states.drift.last);
    if (typeof last.level !== "string" || last.level === "none") return null;
    const since = moment(this.states.model.since);
    return this.driftAt !== null && since !== null && since > this.driftAt ? null : last;
  }

  // What keeps it from its work, one line each.
  get problems() {
    const { buffer, training } = this.states;
    const { problem, host, recovery, ingest } = this.metrics ?? {};
    const found = [];
    if (typeof this.line?.problem === "string") found.push(this.line.problem);
    for (const [name, line] of Object.entries(this.streams ?? {})) {
      if (typeof part(line).problem === "string") found.push(`${name}: ${line.problem}`);
    }
    if (typeof buffer.problem === "string") found.push(buffer.problem);
    if (typeof problem === "string" && problem !== buffer.problem) found.push(problem);
    if (isObject(training.paused)) found.push(`training paused: ${training.paused.reason}`);
    else if (part(training.last).outcome === "failed") found.push("the last training run failed");
    const stuck = part(ingest).stuck;
    if (isNumber(stuck) && stuck > 0) found.push(`${stuck} feature${stuck === 1 ? "" : "s"} stuck`);
    if (this.#repeatingWins) found.push("repeating the last known value is better than the model");
    if (part(recovery).damaged_models > 0) found.push("damaged models on disk");
    if (part(host).throttled === true) found.push("CPU throttled");
    if (part(host).under_voltage === true) found.push("undervoltage");
    if (part(host).on_battery === true) found.push("on battery");
    return found.map((line) => String(line).slice(0, 200));
  }

  get #repeatingWins() {
    const { accuracy, error, repeated, labelled } = part(this.metrics?.live);
    if (!isNumber(repeated) || !(labelled >= ENOUGH_LABELS)) return false;
    return isNumber(accuracy) ? repeated > accuracy : isNumber(error) && repeated < error;
  }

  signs(command) {
    const { keys, require_signed: required } = part(this.states.config.commands);
    if (list(keys).length === 0) return false;
    return required === "all" || (required === "changes" ? !READS.includes(command) : list(required).includes(command));
  }
}

class Fleet {
  constructor(root) {
    this.prefix = `${root}/`;
    this.devices = new Map();
    this.learning = new Learning(root);
    this.listening = null; // since when, milliseconds; null while there is no connection
  }

  // Take in one message: `{device, name, told}`, or null for what says nothing.
  take(topic, payload, retained, now) {
    if (!topic.startsWith(this.prefix)) return null;
    if (this.learning.take(topic, payload, now)) return { device: null, name: "", told: {} };
    const rest = topic.slice(this.prefix.length);
    const cut = rest.indexOf("/");
    const [id, name] = [rest.slice(0, cut), rest.slice(cut + 1)];
    if (cut < 1) return null;
    if (name === "status" && payload.length === 0) {
      this.#forget(id); // someone has cleared it: the device is no more
      return { device: null, name, told: {} };
    }
    const told = parsed(payload);
    if (told === null) return null;
    const owner = this.#device(id);
    if (owner === null) return null;
    const [stream, ...within] = name.split("/");
    if (within.length === 0 || id === "fl" || OWN_TOPICS.includes(stream)) {
      owner.take(name, told, !retained, now);
      if (name === "state/streams") this.#streams(owner);
      return { device: owner, name, told };
    }
    const device = this.#device(`${id}/${stream}`, owner);
    if (device === null) return null;
    device.take(within.join("/"), told, !retained, now);
    if (!retained) owner.heard = now;
    return { device, name: within.join("/"), told };
  }

  #device(id, of = null) {
    let device = this.devices.get(id);
    if (device === undefined) {
      if (this.devices.size >= MOST_DEVICES) return null;
      device = new Device(id, of);
      this.devices.set(id, device);
    }
    return device;
  }

  // A line for each stream that the device has, also for those that have said nothing.
  #streams(owner) {
    for (const [name, line] of Object.entries(owner.streams)) {
      const device = this.#device(`${owner.id}/${name}`, owner);
      if (device !== null) device.line = part(line);
    }
    for (const [id, { of }] of this.devices) {
      if (of === owner && !Object.hasOwn(owner.streams, id.slice(owner.id.length + 1))) this.devices.delete(id);
    }
  }

  #forget(id) {
    for (const [one, { of }] of this.devices) {
      if (one === id || of?.id === id) this.devices.delete(one);
    }
  }
}
