// One event stream for all tabs of a browser: it opens six connections to a host at most, so a stream for each tab would
// leave none for the seventh. The tab that holds the lock has the stream and passes on what comes; a tab that nobody
// sees gives it up, and when no tab is seen there is no stream.

const NAMES = ["events", "metrics", "predictions", "state/model", "state/training", "state/drift", "state/buffer",
  "state/config"];
const COMMANDS = ["evaluate", "train"]; // answered twice: the second time here

/** Calls `heard(name, values)` for each event, and `line(state)` with live, lost or rest when that changes. */
export function listen(path, heard, line) {
  const shared = new BroadcastChannel(`edged-events${location.pathname}`);
  let source = null; // the stream, where this tab has it
  let release = null; // gives the lock back
  let waiting = null; // for the lock
  let state = "";

  function become(now) {
    if (now !== state) line(state = now);
  }

  function open() {
    source = new EventSource(path);
    source.onopen = () => tell("live");
    source.onerror = () => {
      tell("lost");
      if (source?.readyState === EventSource.CLOSED) setTimeout(again, 3000); // refused: it does not try by itself
    };
    for (const name of [...NAMES, ...COMMANDS.map((one) => `response/${one}`)])
      source.addEventListener(name, (event) => {
        const values = JSON.parse(event.data);
        shared.postMessage({ name, values });
        heard(name, values);
      });
  }

  function tell(now) {
    shared.postMessage({ state: now });
    become(now);
  }

  function again() {
    if (source === null) return;
    source.close();
    open();
  }

  function begin() {
    if (waiting || release) return;
    if (!navigator.locks) { // an old browser: a stream for each tab that is seen
      release = () => {};
      return open();
    }
    const giving = waiting = new AbortController();
    navigator.locks.request(`edged-events${location.pathname}`, { signal: giving.signal }, () => {
      waiting = null;
      open();
      return new Promise((resolve) => { release = resolve; });
    }).catch(() => {}); // given up while it waited
    shared.postMessage({ hello: true }); // who has the stream says how it is
  }

  function rest() {
    waiting?.abort();
    source?.close();
    release?.();
    waiting = source = release = null;
    become("rest");
  }

  shared.onmessage = ({ data }) => {
    if (data.hello) { if (source) shared.postMessage({ state }); }
    else if (document.hidden) return;
    else if (data.state) become(data.state);
    else heard(data.name, data.values);
  };

  const seen = () => document.hidden ? rest() : begin();
  document.addEventListener("visibilitychange", seen);
  addEventListener("pagehide", rest);
  addEventListener("pageshow", (event) => { if (event.persisted) seen(); });
  seen();
}
