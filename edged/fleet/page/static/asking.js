"use strict";
// Commands to devices, and what each of them answers.

const ANSWER_WITHIN = 30000; // milliseconds without a word; each message of a command that takes long begins them anew
const DELIVER_WITHIN = 60; // seconds for which the broker keeps a command for a device that is away
const KEPT_ANSWERS = 500;
const OPEN = ["sending", "sent", "accepted", "executing"];
const COMMANDS = {
  status: { does: "Asks how it is." },
  ping: { does: "Asks whether it answers." },
  train: { does: "Trains now, whatever the guards say. What comes of it goes through the gate." },
  cancel: { does: "Ends the training run under way. Its last checkpoint stays." },
  evaluate: { does: "Judges the model in service on the newest labelled samples." },
  checkpoint: { does: "Writes down the run under way." },
  pause: { does: "Holds a part of its work until it is told to resume, over restarts, too.", what: true },
  resume: { does: "Goes on with what a command has paused.", what: true },
  rollback: { does: "Serves an earlier model at once. The one it replaces counts as refused.", version: true },
  "drift.reset": { does: "Takes the present for normal: drift is looked for anew from here." },
};

class Asking {
  constructor(link, root, changed) {
    this.link = link;
    this.root = root;
    this.changed = changed;
    this.asked = new Map(); // by transaction, oldest first
  }

  send(device, command, fields, now) {
    const transaction = hex(12);
    const one = { transaction, device, command, state: "sending", text: "", at: now, last: now };
    this.asked.set(transaction, one);
    for (const [old, { state }] of this.asked) {
      if (this.asked.size <= KEPT_ANSWERS) break;
      if (!OPEN.includes(state)) this.asked.delete(old);
    }
    const topic = `${this.root}/${device}/request/${command}`;
    this.link.publish(topic, { transaction, ...fields }, DELIVER_WITHIN).then(
      () => this.#become(one, "sending", "sent", "the broker has it"),
      (problem) => this.#become(one, "sending", "not sent", String(problem.message)),
    );
    this.changed();
  }

  #become(one, from, state, text) {
    if (one.state !== from) return; // an answer was faster
    Object.assign(one, { state, text });
    this.changed();
  }

  // Take in an answer or a word on progress; what others have asked is none of ours.
  take(device, name, told, now) {
    const one = this.asked.get(told.transaction);
    if (one === undefined || one.device !== device.id) return;
    if (name !== `response/${one.command}` && name !== `progress/${one.transaction}`) return;
    const late = one.state === "no answer";
    one.last = now;
    one.state = ["accepted", "executing", "successful", "failed", "refused"].includes(told.state) ? told.state
      : told.status === "ok" ? "successful" : "failed";
    one.text = (late ? "late: " : "") + this.#text(name, told);
    this.changed();
  }

  #text(name, told) {
    if (name.startsWith("progress/")) {
      return isNumber(told.step) ? `step ${told.step} of ${figure(told.steps ?? "?")}` : "under way";
    }
    if (told.status !== "ok") return figure(told.error);
    const data = Object.entries(part(told.data)).filter(([, value]) => !isObject(value));
    return data.map(([key, value]) => `${key} ${figure(value)}`).join(", ").slice(0, 400);
  }

  tick(now) {
    for (const one of this.asked.values()) {
      if (!OPEN.includes(one.state) || now - one.last <= ANSWER_WITHIN) continue;
      const before = one.state === "sent" || one.state === "sending" ? "" : ` after "${one.state}"`;
      one.state = "no answer";
      one.text = `nothing for ${ANSWER_WITHIN / 1000} s${before}`;
      this.changed();
    }
  }

  // The connection is gone: whether the broker took what it has not confirmed, nobody here can say.
  lost() {
    for (const one of this.asked.values()) {
      if (one.state === "sending") Object.assign(one, { state: "not sent", text: "the connection was lost; it may have gone out" });
    }
    this.changed();
  }

  get count() {
    const open = [...this.asked.values()].filter(({ state }) => OPEN.includes(state)).length;
    const good = [...this.asked.values()].filter(({ state }) => state === "successful").length;
    return { open, good, bad: this.asked.size - open - good };
  }
}
