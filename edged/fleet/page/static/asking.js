"use strict";
// Commands to devices, and what each of them answers.

const ANSWER_WITHIN = 30000; // milliseconds without a message; each progress message starts them again
const DELIVER_WITHIN = 60; // seconds for which the broker keeps a command for a device that is away
const KEPT_ANSWERS = 500;
const OPEN = ["sending", "sent", "accepted", "executing"];
const COMMANDS = {
  status: { does: "Get the status." },
  ping: { does: "Check for a response." },
  train: { does: "Train now, ignoring guards." },
  cancel: { does: "Stop the run; keep its checkpoint." },
  evaluate: { does: "Evaluate the current model on recent labelled samples." },
  checkpoint: { does: "Save the run." },
  pause: { does: "Pause a component across restarts.", what: true },
  resume: { does: "Resume a paused component.", what: true },
  rollback: { does: "Serve an earlier model; reject the current one.", version: true },
  "drift.reset": { does: "Use current data as the drift baseline." },
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
      () => this.#become(one, "sending", "sent", "received by the broker"),
      (problem) => this.#become(one, "sending", "not sent", String(problem.message)),
    );
    this.changed();
    return one;
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
    const late = one.state === "no response";
    one.last = now;
    one.state = ["accepted", "executing", "successful", "failed", "refused"].includes(told.state) ? told.state
      : told.status === "ok" ? "successful" : "failed";
    one.text = (late ? "late: " : "") + this.#text(name, told);
    this.changed();
  }

  #text(name, told) {
    if (name.startsWith("progress/")) {
      return isNumber(told.step) ? `step ${told.step} of ${figure(told.steps ?? "?")}` : "running";
    }
    if (told.status !== "ok") return figure(told.error);
    const learned = part(part(told.data).verdict).summary;
    if (typeof learned === "string" && learned) return learned;
    const data = Object.entries(part(told.data)).filter(([, value]) => !isObject(value));
    return data.map(([key, value]) => `${key} ${figure(value)}`).join(", ").slice(0, 400);
  }

  tick(now) {
    for (const one of this.asked.values()) {
      if (!OPEN.includes(one.state) || now - one.last <= ANSWER_WITHIN) continue;
      const before = one.state === "sent" || one.state === "sending" ? "" : ` after "${one.state}"`;
      one.state = "no response";
      one.text = `no message for ${ANSWER_WITHIN / 1000} s${before}`;
      this.changed();
    }
  }

  // The connection is gone: whether the broker took what it has not confirmed, no one here can say.
  lost() {
    for (const one of this.asked.values()) {
      if (one.state === "sending") Object.assign(one, { state: "not sent", text: "connection lost; possibly sent" });
    }
    this.changed();
  }

  get count() {
    const open = [...this.asked.values()].filter(({ state }) => OPEN.includes(state)).length;
    const good = [...this.asked.values()].filter(({ state }) => state === "successful").length;
    return { open, good, bad: this.asked.size - open - good };
  }
}
