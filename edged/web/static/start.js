// How the device is doing: its status, then what it says of itself, as it says it.

const at = (id) => document.getElementById(id);

function show(status) {
  at("state").textContent = status.problem ?? `serving model ${status.model.version}`;
  const facts = {
    Samples: status.samples,
    Labels: status.labels,
    Quarantined: status.quarantined,
    Runs: status.training.runs,
    "Waiting for the broker": status.outbox.pending,
  };
  at("facts").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")];
    term.textContent = name;
    text.textContent = value;
    return [term, text];
  }));
}

async function refresh() {
  const answer = await fetch("/api/status");
  at("login").hidden = answer.status !== 401;
  if (answer.ok) show(await answer.json());
  else at("state").textContent = (await answer.json()).error;
  return answer.ok;
}

function note(message) {
  const said = JSON.parse(message.data);
  const line = document.createElement("li");
  line.textContent = `${new Date(1000 * said.ts).toLocaleTimeString()} ${said.event}`;
  at("events").prepend(line);
  while (at("events").children.length > 50) at("events").lastChild.remove();
}

// Browsers open six connections to a host at most: a page that nobody sees gives its own back.
let source = null;
function listen() {
  source?.close();
  source = null;
  if (document.hidden) return;
  source = new EventSource("/api/events?topics=events,state,metrics");
  source.addEventListener("events", note);
  for (const name of ["metrics", "state/model", "state/training"]) source.addEventListener(name, refresh);
}

async function begin() {
  if (await refresh()) listen();
}

at("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/api/login", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ token: at("token").value }),
  });
  at("token").value = "";
  if (answer.ok) await begin();
  else at("state").textContent = (await answer.json()).error;
});
document.addEventListener("visibilitychange", begin);
await begin();
