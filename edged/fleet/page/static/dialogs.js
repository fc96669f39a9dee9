"use strict";
// One device in detail, and the question before a command goes out.

const EVENTS_SHOWN = 20;

function pairs(values) {
  return Object.entries(values).flatMap(([name, value]) => [element("dt", name), element("dd", figure(value))]);
}

function eventLine(told) {
  const line = element("li");
  const time = moment(told.ts);
  const late = told.historical === true ? " (delayed)" : "";
  line.append(element("b", figure(told.event)), ` ${time === null ? "" : clock(time)}${late} `, element("span", words.fields(told), "dim"));
  return line;
}

class Detail {
  constructor(fleet, teaching, command) {
    this.fleet = fleet;
    this.teaching = teaching;
    this.device = null;
    at("detail-close").addEventListener("click", () => at("detail").close());
    at("detail").addEventListener("close", () => (this.device = null));
    at("detail-command").addEventListener("click", () => command([this.device]));
  }

  open(device) {
    this.device = device;
    this.shown = "";
    this.teaching.open(device);
    this.show(Date.now());
    at("detail").showModal();
  }

  show(now) {
    const device = this.device;
    if (device === null) return;
    const standing = device.standing(this.fleet.listening, now);
    say(at("detail-name"), device.id);
    say(at("detail-state"), words.standing(device, standing, now));
    at("detail-state").dataset.state = standing.state;
    this.teaching.show();
    const facts = this.#facts(device);
    const told = JSON.stringify([facts, device.events, device.verdict]);
    if (told === this.shown) return; // what someone reads or marks stays as it is
    this.shown = told;
    at("detail-facts").replaceChildren(...pairs(facts));
    say(at("detail-learned"), words.learned(device) === NOTHING ? "Nothing yet." : words.learned(device));
    at("detail-page").hidden = device.page === null;
    if (device.page !== null) at("detail-page").href = device.page;
    at("detail-verdict").replaceChildren(...this.#verdict(device));
    at("detail-events").replaceChildren(...device.events.slice(0, EVENTS_SHOWN).map(eventLine));
    if (device.events.length === 0) at("detail-events").append(element("li", "None since you opened this page.", "dim"));
  }

  // A response has come, perhaps to what was taught here.
  answered() {
    if (this.device !== null) this.teaching.show();
  }

  #facts(device) {
    const { model, training, drift, buffer } = device.states;
    const metrics = part(device.metrics);
    const outbox = part(buffer.outbox);
    const since = moment(model.since);
    const last = part(training.last);
    return {
      edged: device.life.status?.version ?? null,
      model: model.version === undefined ? null : `${figure(model.version)}${model.pinned === true ? " (pinned)" : ""}${since === null ? "" : `, since ${clock(since)}`}`,
      source: model.parent === undefined ? null : `${figure(model.source)}${model.parent === null ? "" : `, parent ${figure(model.parent)}`}`,
      "gate metrics": this.#line(part(model.metrics)),
      "live quality": words.quality(device),
      drift: device.drift === null ? `none (${figure(drift.signals ?? 0)} signals since startup)` : this.#line(device.drift),
      training: words.training(device),
      "last run": last.run === undefined ? null : `${figure(last.run)}: ${figure(last.outcome)}${moment(last.ended) === null ? "" : `, ${clock(moment(last.ended))}`}`,
      "since startup": training.runs === undefined ? null : `${figure(training.promotions)} promoted, ${figure(training.rejections)} rejected, ${figure(training.rollbacks)} rolled back`,
      samples: part(metrics.ingest).samples ?? null,
      "stored samples": buffer.rows ?? null,
      outbox: outbox.pending === undefined ? null : `${figure(outbox.pending)}, ${figure(outbox.dropped)} dropped`,
      "takes no part in": this.fleet.learning.of(device.id),
      temperature: isNumber(part(metrics.host).temperature_c) ? `${figure(metrics.host.temperature_c)} °C` : null,
      problems: device.problems.join("; ") || "None",
    };
  }

  #line(values) {
    const plain = Object.entries(values).filter(([, value]) => !isObject(value) && !Array.isArray(value));
    return plain.map(([name, value]) => `${name} ${figure(value)}`).join(", ") || null;
  }

  #verdict(device) {
    const told = device.verdict;
    if (told === null) return [element("p", "None since you opened this page.", "dim")];
    const reasons = list(told.reasons).concat(told.reason === undefined ? [] : [told.reason]);
    const head = `${figure(told.event)}, ${clock(moment(told.ts) ?? Date.now())}: ${reasons.map(figure).join("; ")}`;
    const facts = element("dl");
    facts.append(...pairs(part(told.numbers)));
    const numbers = element("details");
    numbers.append(element("summary", "Numbers"), facts);
    return [element("p", head), ...(Object.keys(part(told.numbers)).length ? [numbers] : [])];
  }
}

// Labels for one device: of all samples of a key from now on, and of samples that it asks about.
class Teaching {
  constructor(asking) {
    this.asking = asking;
    this.device = null;
    this.sent = null; // the newest command
    at("hold-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#hold(event.submitter === at("hold-end") ? null : this.#value(at("hold-label").value));
    });
  }

  open(device) {
    this.device = device;
    this.sent = null;
    this.shown = this.asked = null;
    at("hold-key").value = "";
  }

  show() {
    const { device } = this;
    if (device === null) return;
    const { classes, keys } = device;
    const told = JSON.stringify([classes, keys]);
    if (told !== this.shown) {
      this.shown = told;
      at("hold-keys").replaceChildren(...keys.map((key) => new Option(key)));
      const entry = this.#entry("hold-label");
      if (at("hold-label").tagName !== entry.tagName || classes.length) at("hold-label").replaceWith(entry);
    }
    at("teach-signed").hidden = !device.signs("label");
    const one = this.sent;
    say(at("teach-answer"), one === null ? "" : one.state === "successful" ? one.done : `Label ${one.state}: ${one.text}`);
    if (one?.state === "successful" && one.sample) device.requests.delete(one.sample);
    this.#requests();
  }

  // A choice of classes, or a number; a text where neither is known.
  #entry(id) {
    const { classes, states } = this.device;
    const made = element(classes.length ? "select" : "input");
    made.id = id;
    if (classes.length) made.append(...classes.map((name) => new Option(name)));
    else made.required = true;
    if (!classes.length && ["regress", "forecast"].includes(part(states.config.stream).task)) made.inputMode = "decimal";
    return made;
  }

  #value(text) {
    return this.device.classes.length || text.trim() === "" || !Number.isFinite(Number(text)) ? text : Number(text);
  }

  #hold(label) {
    const fields = { hold: true };
    if (at("hold-key").value.trim()) fields.key = at("hold-key").value.trim();
    if (label !== null) fields.label = label;
    this.#send(fields, null, label === null ? "Ended." : `From now on: ${label}.`);
  }

  #send(fields, sample, done) {
    this.sent = Object.assign(this.asking.send(this.device.id, "label", fields, Date.now()), { sample, done });
    this.show();
  }

  #requests() {
    const { requests } = this.device;
    const asked = [...requests.keys()].join();
    if (asked === this.asked) return; // what someone types stays as it is
    this.asked = asked;
    at("teach-none").hidden = requests.size > 0;
    at("teach-requests").replaceChildren(...[...requests.values()].reverse().map((told) => this.#request(told)));
  }

  #request(told) {
    const line = element("li");
    const sure = isNumber(told.confidence) ? ` (${measure("accuracy", told.confidence)})` : "";
    const time = moment(told.sample_ts);
    const head = `${figure(told.key)}${time === null ? "" : `, ${clock(time)}`}: ${list(told.values).slice(0, 8).map(figure).join(", ")}. `;
    line.append(element("p", `${head}Predicted: ${figure(told.answer)}${sure}`), this.#answers(told));
    return line;
  }

  #answers(told) {
    const row = element("div", "", "buttons");
    const answer = (label) => this.#send({ id: told.id, label }, told.id, `Label stored: ${label}.`);
    for (const name of this.device.classes) {
      const button = element("button", name);
      button.type = "button";
      button.setAttribute("aria-label", `${name}, sample ${told.id}`);
      button.addEventListener("click", () => answer(name));
      row.append(button);
    }
    if (this.device.classes.length) return row;
    const form = element("form");
    const entry = this.#entry("");
    entry.setAttribute("aria-label", `Label for sample ${told.id}`);
    form.append(entry, " ", element("button", "Submit label"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      answer(this.#value(entry.value));
    });
    return form;
  }
}

class Sending {
  constructor(fleet, asking) {
    this.fleet = fleet;
    this.asking = asking;
    this.targets = [];
    at("send-command").append(...Object.keys(COMMANDS).map((name) => new Option(name, name)));
    for (const id of ["send-command", "send-what"]) at(id).addEventListener("change", () => this.#show());
    at("send-cancel").addEventListener("click", () => at("send").close());
    at("send-form").addEventListener("submit", () => this.#send());
  }

  open(devices) {
    this.targets = devices;
    at("send-version").value = "";
    this.#show();
    at("send").showModal();
  }

  #show() {
    const command = at("send-command").value;
    const { does, what, version } = COMMANDS[command];
    const many = plural(this.targets.length, "device");
    const listening = this.fleet.listening;
    const away = this.targets.filter((device) => device.standing(listening, Date.now()).state !== "online");
    const signed = this.targets.filter((device) => device.signs(command));
    say(at("send-does"), does);
    say(at("send-count"), many);
    say(at("send-go"), `Send ${command} to ${many}`);
    at("send-names").replaceChildren(...this.targets.map(({ id }) => element("li", id)));
    at("send-what-row").hidden = !what;
    at("send-version-row").hidden = !version || this.targets.length !== 1;
    at("send-away").hidden = away.length === 0;
    say(at("send-away"), `Not confirmed online: ${this.#names(away)}.`);
    at("send-signed").hidden = signed.length === 0;
    say(at("send-signed"), `Signature required: ${this.#names(signed)}. Use edged ctl DEVICE ${command} --sign KEY.`);
  }

  #names(devices) {
    const names = devices.slice(0, 5).map(({ id }) => id).join(", ");
    return devices.length > 5 ? `${names} and ${devices.length - 5} more` : names;
  }

  #send() {
    const command = at("send-command").value;
    const fields = {};
    if (COMMANDS[command].what) fields.what = at("send-what").value;
    if (!at("send-version-row").hidden && at("send-version").value) fields.version = Number(at("send-version").value);
    for (const device of this.targets) this.asking.send(device.id, command, fields, Date.now());
  }
}
