"use strict";
// What coordinators publish of fleets that learn together: rounds, models, and why devices take no part.

const MOST_FLEETS = 100;
const NAMES_SHOWN = 20;
const PHASES = {
  waiting: "waiting",
  open: "collecting updates",
  trial: "devices try the model",
  approval: "waiting for approval",
  done: "between two rounds",
};

class Learning {
  constructor(root) {
    this.prefix = `${root}/fl/`;
    this.fleets = new Map(); // by name: what its coordinator said last
  }

  // Take in a status; true if it was one.
  take(topic, payload, now) {
    if (!topic.startsWith(this.prefix)) return false;
    const [id, kind] = topic.slice(this.prefix.length).split("/");
    if (kind !== "status") return true;
    const told = payload.length === 0 ? null : parsed(payload);
    if (told === null) this.fleets.delete(id);
    else if (this.fleets.has(id) || this.fleets.size < MOST_FLEETS) this.fleets.set(id, { told, heard: now });
    return true;
  }

  // Why a device takes part in rounds or not, a line for each fleet that knows it.
  of(device) {
    const lines = [];
    for (const [id, { told }] of this.fleets) {
      const reason = part(told.why_not)[device];
      if (typeof reason === "string") lines.push(`${id}: not ready: ${reason}`);
    }
    return lines.length ? lines.join("; ").slice(0, 300) : null;
  }
}

class LearningView {
  constructor(learning) {
    this.learning = learning;
    this.shown = "";
  }

  show(now) {
    const sorted = [...this.learning.fleets].sort(([a], [b]) => (a < b ? -1 : 1));
    const told = JSON.stringify([sorted.map(([id, one]) => [id, one.told, this.#silent(one, now)])]);
    if (told === this.shown) return;
    this.shown = told;
    at("learning").hidden = sorted.length === 0;
    at("learning-fleets").replaceChildren(...sorted.map(([id, one]) => this.#fleet(id, one.told, this.#silent(one, now))));
  }

  #silent({ told, heard }, now) {
    const every = isNumber(told.every) ? told.every : 60;
    const last = Math.min(moment(told.at) ?? heard, heard);
    return now - last > 3000 * every ? clock(last) : null;
  }

  #fleet(id, told, silent) {
    const block = element("article");
    block.dataset.fleet = id;
    block.append(element("h3", id));
    if (silent !== null) block.append(element("p", `No message from its coordinator since ${silent}.`, "warn"));
    block.append(element("p", this.#line(told)));
    const refused = Object.entries(part(told.refused)).map(([reason, count]) => `${figure(count)} ${reason}`);
    if (refused.length) block.append(element("p", `Refused in this round: ${refused.join(", ")}.`, "warn"));
    for (const line of this.#rollout(part(told.rollout))) block.append(element("p", line));
    const reasons = this.#reasons(part(told.why_not));
    if (reasons.length) {
      const items = element("ul");
      items.append(...reasons.map((line) => element("li", line)));
      block.append(element("h4", "Devices that take no part"), items);
    }
    const rounds = list(told.rounds).filter(isObject).reverse();
    if (rounds.length) block.append(this.#rounds(id, rounds));
    return block;
  }

  #line(told) {
    const phase = PHASES[told.phase] ?? figure(told.phase);
    const parts = [`Round ${figure(told.round)}: ${phase}`];
    if (told.phase === "open") parts.push(`${figure(told.updates)} of ${figure(told.wanted)} updates`);
    parts.push(`model version ${figure(told.version)} (${String(told.model).slice(0, 12)})`);
    parts.push(`${figure(told.ready)} of ${plural(isNumber(told.devices) ? told.devices : 0, "device")} ready`);
    if (told.paused === true) parts.push("paused");
    if (typeof told.waits_for === "string" && told.waits_for) parts.push(`waits for ${told.waits_for}`);
    return `${parts.join(" · ")}.`;
  }

  #rollout(told) {
    if (told.stage === undefined) return [];
    const named = told.named === null ? "all" : figure(told.named);
    const lines = [
      `Stage ${figure(told.stage)} of ${figure(told.stages)} (${figure(told.name)}): ${named} devices asked,` +
        ` ${figure(told.reports)} have reported, ${figure(told.taken)} have taken it.`,
    ];
    const worse = list(told.worse).map(String);
    if (worse.length) lines.push(`Worse for ${this.#names(worse)}.`);
    if (told.approval === true) lines.push("Waiting for approval: run edged fleet round approve, or abandon.");
    return lines;
  }

  #reasons(told) {
    const found = new Map();
    for (const [device, reason] of Object.entries(told)) {
      found.set(String(reason), [...(found.get(String(reason)) ?? []), device]);
    }
    return [...found].sort((a, b) => b[1].length - a[1].length).map(([reason, names]) => `${this.#names(names)}: ${reason}`);
  }

  #names(names) {
    const more = names.length - NAMES_SHOWN;
    return names.slice(0, NAMES_SHOWN).join(", ") + (more > 0 ? ` and ${more} more` : "");
  }

  #rounds(id, rounds) {
    const table = element("table");
    table.append(element("caption", `Rounds of ${id}`, "hidden"));
    const head = element("tr");
    for (const name of ["Round", "Ended", "Result", "Version", "Model", "Reason"]) {
      const cell = element("th", name);
      cell.scope = "col";
      head.append(cell);
    }
    const top = element("thead");
    top.append(head);
    const body = element("tbody");
    for (const one of rounds) {
      const line = element("tr");
      const ended = moment(one.ended);
      const against = list(one.dissenters).map(String);
      const by = one.approved_by ? `; approved by ${one.approved_by}` : "";
      const reason = figure(one.reason) + (against.length ? `; worse for ${this.#names(against)}` : "");
      const cells = [
        figure(one.round), ended === null ? NOTHING : clock(ended), one.accepted === true ? "accepted" : "rejected",
        figure(one.version), String(one.model).slice(0, 12),
        reason + by,
      ];
      line.append(...cells.map((text) => element("td", text)));
      body.append(line);
    }
    table.append(top, body);
    const scroll = element("div", "", "rounds");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Rounds of ${id}`);
    scroll.append(table);
    return scroll;
  }
}
