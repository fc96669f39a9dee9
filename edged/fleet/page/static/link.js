"use strict";
// The connection to the broker. Each attempt is a client of its own: nothing is queued from one to the next,
// so no command goes out later than its answer is waited for.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 30000;
const REFUSED = new Set([4, 5, 0x86, 0x87, 0x8a]); // wrong password, not allowed, banned
const OLD_BROKER = new Set([1, 0x84]); // speaks MQTT 3.1.1 only
// What happens from now on at once; then what the broker keeps, one kind after the other: its queue for a
// connection has an end.
const FILTERS = [
  ["status", "events", "metrics", "response/+", "progress/+"],
  ...["model", "training", "drift", "buffer", "config"].map((name) => [`state/${name}`]),
];

function brokerUrl(given) {
  if (given) return given;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  return `${scheme}://${location.host}/mqtt`;
}

function hex(bytes) {
  return Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (b) => b.toString(16).padStart(2, "0")).join("");
}

class Link {
  // `on` has up(), down(why), refused(why) and message(topic, payload, retained).
  constructor(url, root, on) {
    this.url = url;
    this.root = root;
    this.on = on;
    this.connected = false;
    this.version = 5;
    this.client = null;
    this.timer = null;
    this.pause = FIRST_PAUSE;
  }

  open(user, password) {
    this.close();
    this.who = { username: user || undefined, password: password || undefined };
    this.pause = FIRST_PAUSE;
    this.#try();
  }

  close() {
    clearTimeout(this.timer);
    const client = this.client;
    this.client = null;
    this.who = null;
    this.connected = false;
    client?.end(true);
  }

  #try() {
    let why = "broker unreachable";
    const client = mqtt.connect(this.url, {
      ...this.who,
      clientId: `edged-page-${hex(6)}`,
      protocolVersion: this.version,
      clean: true,
      keepalive: 20,
      connectTimeout: 8000,
      reconnectPeriod: 0,
      timerVariant: "native", // the other one wants a worker from a blob, which the policy forbids
    });
    this.client = client;
    const mine = () => this.client === client;
    client.on("message", (topic, payload, packet) => mine() && this.on.message(topic, payload, packet.retain));
    client.on("connect", () => mine() && this.#up(client));
    client.on("disconnect", (packet) => (why = `the broker disconnected (${packet.reasonCode})`));
    client.on("error", (problem) => {
      if (!mine()) return;
      if (OLD_BROKER.has(problem.code) && this.version === 5) this.version = 4;
      else if (REFUSED.has(problem.code)) this.#refused(`Connection rejected: ${problem.message}`);
      else why = problem.message || why;
    });
    client.on("close", () => mine() && this.#down(client, why));
  }

  async #up(client) {
    try {
      for (const filters of FILTERS) {
        const granted = await client.subscribeAsync(filters.map((filter) => `${this.root}/+/${filter}`), { qos: 1 });
        const bad = granted.find((each) => each.qos > 2);
        if (bad !== undefined) throw new Error(`no permission to subscribe to ${bad.topic}`);
        if (filters === FILTERS[0] && this.client === client) {
          this.connected = true;
          this.pause = FIRST_PAUSE;
          this.on.up();
        }
      }
      // Streams of devices, and rounds of fleets: who may not read them sees the devices all the same.
      const streams = ["+/state/streams", ...FILTERS.flat().map((filter) => `+/+/${filter}`)];
      await client.subscribeAsync(streams.map((filter) => `${this.root}/${filter}`), { qos: 1 }).catch(() => null);
      await client.subscribeAsync([`${this.root}/fl/+/status`], { qos: 1 }).catch(() => null);
    } catch (problem) {
      if (this.client === client && client.connected) this.#refused(String(problem.message));
    }
  }

  #refused(why) {
    this.close();
    this.on.refused(why);
  }

  #down(client, why) {
    this.client = null;
    client.end(true);
    this.connected = false;
    this.on.down(why, this.pause);
    this.timer = setTimeout(() => this.#try(), this.pause);
    this.pause = Math.min(2 * this.pause, LONGEST_PAUSE);
  }

  // Publish a command; the promise holds when the broker has it, and fails with its reason.
  async publish(topic, values, expires) {
    if (!this.connected) throw new Error("not connected");
    const properties = this.version === 5 ? { messageExpiryInterval: expires } : undefined;
    await this.client.publishAsync(topic, JSON.stringify(values), { qos: 1, properties });
  }
}
