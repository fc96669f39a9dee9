"use strict";
// One device in detail, and the question before a command goes out.

const EVENTS_SHOWN = 20;

function pairs(values) {
  return Object.entries(values).flatMap(([name, value]) => [element("dt", name), element("dd", figure(value))]);
}

function eventLine(told) {
  const line = element("li");
  const time = moment(told.ts);
  const late = told.historical === true ? " (sent late)" : "";
  line.append(element("b", figure(told.event)), ` ${time === null ? "" : clock(time)}${late} `, element("span", words.fields(told), "dim"));
  return line;
}

class Detail {
  constructor(fleet, command) {
    this.fleet = fleet;
    this.device = null;
    at("detail-close").addEventListener("click", () => at("detail").close());
    at("detail").addEventListener("close", () => (this.device = null));
    at("detail-command").addEventListener("click", () => command([this.device]));
  }

  open(device) {
    this.device = device;
    this.shown = "";
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
    const facts = this.#facts(device);
    const told = JSON.stringify([facts, device.events, device.verdict]);
    if (told === this.shown) return; // what someone reads or marks stays as it is
    this.shown = told;
    at("detail-facts").replaceChildren(...pairs(facts));
    at("detail-verdict").replaceChildren(...this.#verdict(device));
    at("detail-events").replaceChildren(...device.events.slice(0, EVENTS_SHOWN).map(eventLine));
    if (device.events.length === 0) at("detail-events").append(element("li", "None since this page is open.", "dim"));
  }

  #facts(device) {
    const { model, training, drift, buffer } = device.states;
    const metrics = part(device.metrics);
    const outbox = part(buffer.outbox);
    const since = moment(model.since);
    const last = part(training.last);
    return {
      edged: device.status?.version ?? null,
      model: model.version === undefined ? null : `${figure(model.version)}${model.pinned === true ? " (pinned)" : ""}${since === null ? "" : `, since ${clock(since)}`}`,
      "made from": model.parent === undefined ? null : `${figure(model.source)}${model.parent === null ? "" : `, parent ${figure(model.parent)}`}`,
      "figures at the gate": this.#line(part(model.metrics)),
      "live quality": words.quality(device),
      drift: device.drift === null ? `none (${figure(drift.signals ?? 0)} signals since its start)` : this.#line(device.drift),
      training: words.training(device),
      "last run": last.run === undefined ? null : `${figure(last.run)}: ${figure(last.outcome)}${moment(last.ended) === null ? "" : `, ${clock(moment(last.ended))}`}`,
      "since its start": training.runs === undefined ? null : `${figure(training.promotions)} promoted, ${figure(training.rejections)} rejected, ${figure(training.rollbacks)} rolled back`,
      samples: part(metrics.ingest).samples ?? null,
      "samples kept": buffer.rows ?? null,
      "waiting for the broker": outbox.pending === undefined ? null : `${figure(outbox.pending)}, ${figure(outbox.dropped)} dropped`,
      temperature: isNumber(part(metrics.host).temperature_c) ? `${figure(metrics.host.temperature_c)} °C` : null,
      problems: device.problems.join("; ") || "none known",
    };
  }

  #line(values) {
    const plain = Object.entries(values).filter(([, value]) => !isObject(value) && !Array.isArray(value));
    return plain.map(([name, value]) => `${name} ${figure(value)}`).join(", ") || null;
  }

  #verdict(device) {
    const told = device.verdict;
    if (told === null) return [element("p", "None since this page is open.", "dim")];
    const reasons = list(told.reasons).concat(told.reason === undefined ? [] : [told.reason]);
    const items = element("ul");
    items.append(...reasons.map((reason) => element("li", figure(reason))));
    const facts = element("dl");
    facts.append(...pairs(part(told.numbers)));
    return [element("p", `${figure(told.event)}, ${clock(moment(told.ts) ?? Date.now())}`), items, facts];
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
    say(at("send-away"), `Not known to be there: ${this.#names(away)}.`);
    at("send-signed").hidden = signed.length === 0;
    say(at("send-signed"), `Will refuse it without a signature: ${this.#names(signed)}. Use edged ctl DEVICE ${command} --sign KEY.`);
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
