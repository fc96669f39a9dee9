"use strict";
// The list of devices: which are shown, in which order, and what is said of each. Values are text, never HTML.

const SEVERITY = { failed: -1, offline: 0, silent: 1, waiting: 2, unknown: 3, online: 4 };
const ORDER = new Intl.Collator(undefined, { numeric: true }); // making one takes as long as many comparisons
const textOf = (value) => (value === NOTHING ? "" : value);
const number = (value) => (isNumber(value) ? value : null);

// `say` gives a cell's text, `by` what it is sorted by; `wide` columns are left out on a phone.
const COLUMNS = [
  { id: "device", head: "Device", say: ({ device }) => device.id, by: ({ device }) => device.id },
  { id: "state", head: "State", say: (row) => row.standing.state, by: (row) => SEVERITY[row.standing.state] },
  { id: "seen", head: "Last seen", wide: true, say: (row, now) => words.seen(row.standing, now),
    by: (row) => (row.standing.since === null ? null : -row.standing.since) },
  { id: "version", head: "edged", wide: true, say: ({ device }) => figure(device.life.status?.version),
    by: ({ device }) => textOf(figure(device.life.status?.version)) },
  { id: "model", head: "Model", wide: true, say: ({ device }) => words.model(device),
    by: ({ device }) => number(device.states.model.version) },
  { id: "quality", head: "Live quality", say: ({ device }) => words.quality(device),
    by: ({ device }) => number(device.quality?.value) },
  { id: "drift", head: "Drift", wide: true, say: ({ device }) => words.drift(device),
    by: ({ device }) => ({ drift: 0, warning: 1 })[device.drift?.level] ?? null },
  { id: "training", head: "Training", wide: true, say: ({ device }) => words.training(device),
    by: ({ device }) => words.training(device) },
  { id: "learned", head: "What was learned", wide: true, long: true, say: ({ device }) => words.learned(device),
    by: ({ device }) => moment(device.states.training.summary_ts) },
  { id: "health", head: "Health", say: ({ device }) => words.health(device),
    by: ({ device }) => (device.problems.length ? -device.problems.length : null) },
];

const CHIPS = [
  { id: "all", head: "All", fits: () => true },
  { id: "online", head: "Online", fits: (row) => row.standing.state === "online" },
  { id: "offline", head: "Offline", fits: (row) => row.standing.state === "offline" },
  { id: "silent", head: "Silent", fits: (row) => row.standing.state === "silent" },
  { id: "waiting", head: "Waiting", fits: (row) => ["waiting", "unknown"].includes(row.standing.state) },
  { id: "drifting", head: "Drifting", fits: (row) => row.device.drift !== null },
  { id: "unhealthy", head: "Unhealthy", fits: (row) => row.device.problems.length > 0 },
  { id: "training", head: "Training", fits: (row) => row.device.running !== null },
];

class Table {
  constructor(fleet, changed, opened) {
    this.fleet = fleet;
    this.changed = changed;
    this.rows = new Map();
    this.selected = new Set();
    this.chip = CHIPS[0];
    this.search = "";
    this.column = COLUMNS[0];
    this.down = false;
    this.opened = opened;
    this.#heads();
    this.#chips();
  }

  #heads() {
    const all = element("input");
    all.type = "checkbox";
    all.setAttribute("aria-label", "Select all devices shown");
    all.addEventListener("change", () => this.#selectShown(all.checked));
    this.all = all;
    const first = element("th");
    first.scope = "col";
    first.append(all);
    at("heads").append(first, ...COLUMNS.map((column) => this.#head(column)));
    at("order").append(...COLUMNS.map((column) => new Option(column.head, column.id)));
    at("order").addEventListener("change", () => this.sort(COLUMNS.find(({ id }) => id === at("order").value), false));
  }

  #head(column) {
    const cell = element("th", "", column.wide ? "wide" : "");
    const button = element("button", column.head);
    button.type = "button";
    button.addEventListener("click", () => this.sort(column, this.column === column && !this.down));
    cell.scope = "col";
    cell.dataset.column = column.id;
    cell.append(button);
    return cell;
  }

  #chips() {
    for (const chip of CHIPS) {
      chip.button = element("button");
      chip.button.type = "button";
      chip.button.append(`${chip.head} `, (chip.count = element("b", "0")));
      chip.button.addEventListener("click", () => {
        this.chip = chip;
        this.changed();
      });
      at("chips").append(chip.button);
    }
  }

  sort(column, down) {
    this.column = column;
    this.down = down;
    at("order").value = column.id;
    this.changed();
  }

  #selectShown(on) {
    for (const { device } of this.shown) on ? this.selected.add(device.id) : this.selected.delete(device.id);
    this.changed();
  }

  #fits(row, now) {
    if (!this.chip.fits(row)) return false;
    if (this.search === "") return true;
    const text = COLUMNS.map((column) => column.say(row, now)).join(" ").toLowerCase();
    return this.search.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  #compare(a, b) {
    const [x, y] = [a.key, b.key];
    const names = ORDER.compare(a.device.id, b.device.id);
    if (x === null || y === null) return x === y ? names : x === null ? 1 : -1; // what is not known comes last
    const order = typeof x === "string" ? ORDER.compare(x, String(y)) : x - y;
    return (this.down ? -order : order) || names;
  }

  // Bring the page up to date: only what differs is written, so focus and selection stay.
  show(now) {
    const { devices, listening } = this.fleet;
    for (const [id, row] of this.rows) {
      if (devices.get(id) === row.device) continue;
      row.line.remove();
      this.rows.delete(id);
      if (!devices.has(id)) this.selected.delete(id);
    }
    for (const [id, device] of devices) {
      if (!this.rows.has(id)) this.rows.set(id, this.#row(device));
      this.rows.get(id).standing = device.standing(listening, now);
    }
    const all = [...this.rows.values()];
    this.shown = all.filter((row) => this.#fits(row, now));
    for (const row of this.shown) row.key = this.column.by(row);
    this.shown.sort((a, b) => this.#compare(a, b));
    this.shown.forEach((row) => this.#fill(row, now));
    this.#place();
    this.#count(all);
  }

  #row(device) {
    const line = element("tr");
    const box = element("input");
    box.type = "checkbox";
    box.setAttribute("aria-label", `Select ${device.id}`);
    box.addEventListener("change", () => {
      box.checked ? this.selected.add(device.id) : this.selected.delete(device.id);
      this.changed();
    });
    const first = element("td");
    first.append(box);
    const name = element("button", device.id, "link");
    name.type = "button";
    name.addEventListener("click", () => this.opened(device));
    const head = element("th");
    head.scope = "row";
    head.append(name);
    const cells = COLUMNS.slice(1).map((column) => element("td", "", `${column.wide ? "wide" : ""} ${column.long ? "long" : ""}`.trim()));
    cells[0].className = "state";
    line.append(first, head, ...cells);
    return { device, line, box, cells, standing: null, key: null };
  }

  #fill(row, now) {
    COLUMNS.slice(1).forEach((column, n) => say(row.cells[n], column.say(row, now)));
    row.cells[0].title = words.standing(row.device, row.standing, now);
    const health = row.cells.at(-1);
    health.title = row.device.problems.join("\n");
    health.classList.toggle("bad", row.device.problems.length > 0);
    row.line.dataset.state = row.standing.state;
    row.box.checked = this.selected.has(row.device.id);
  }

  #place() {
    const wanted = this.shown.map(({ line }) => line);
    const there = at("rows").children;
    if (wanted.length === there.length && wanted.every((line, n) => line === there[n])) return;
    const focused = document.activeElement;
    at("rows").replaceChildren(...wanted);
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  #count(all) {
    for (const chip of CHIPS) {
      say(chip.count, String(all.filter((row) => chip.fits(row)).length));
      chip.button.setAttribute("aria-pressed", String(chip === this.chip));
    }
    for (const cell of at("heads").querySelectorAll("[data-column]")) {
      if (cell.dataset.column !== this.column.id) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
    }
    const chosen = this.shown.filter(({ device }) => this.selected.has(device.id)).length;
    this.all.checked = chosen > 0 && chosen === this.shown.length;
    this.all.indeterminate = chosen > 0 && chosen < this.shown.length;
    at("none").hidden = this.shown.length > 0;
    at("command").disabled = this.selected.size === 0;
    say(at("command"), this.selected.size === 0 ? "Send command" : `Send command to ${plural(this.selected.size, "device")}`);
  }
}
