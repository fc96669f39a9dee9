// Labels to check: which are chosen survives what the device sends anew, and what was done can be taken back.

import { confirmed, localise, post, refresh, say } from "./page.js";

const section = document.getElementById("suspects");
const at = (id) => document.getElementById(id);
const chosen = new Set();
let last = null; // what can be taken back: { text, undo: [[command, fields], …] }

const boxes = () => [...section.querySelectorAll('input[name="suspect"]')];
const sure = (n) => (n === 1 ? "1 label" : `${n} labels`);

function show() {
  const there = boxes();
  for (const id of chosen) if (!there.some((box) => box.value === id)) chosen.delete(id);
  for (const box of there) box.checked = chosen.has(box.value);
  for (const id of ["suspects-right", "suspects-change"]) if (at(id)) at(id).disabled = chosen.size === 0;
  const all = at("suspects-all");
  if (all) {
    all.checked = there.length > 0 && chosen.size === there.length;
    all.indeterminate = chosen.size > 0 && !all.checked;
  }
  if (last && !at("suspects-undo")) {
    const line = document.createElement("p");
    line.innerHTML = '<span></span> <button type="button" id="suspects-undo">Undo</button>';
    line.firstChild.textContent = last.text;
    const controls = section.querySelector(".check");
    if (controls) controls.after(line);
    else section.querySelector(".inside").append(line);
  }
}

/** Sends commands one after the other; the answers' data, or null where one was refused. */
export async function carryOut(...commands) {
  const found = [];
  for (const [name, fields] of commands) {
    const answer = await post(`api/commands/${name}`, fields).then((one) => one.json()).catch(() => null);
    if (answer?.status !== "ok") {
      say(`${name}: ${answer?.error ?? "the device does not answer"}`);
      return null;
    }
    found.push(answer.data);
  }
  return found;
}

/** Changes labels to `label` each (`[{ id, label }]`), which then count as checked; the commands that undo it. */
export async function change(labels) {
  const ids = labels.map((one) => one.id);
  const done = await carryOut(["label", { labels }], ["labels.confirm", { ids }]);
  return done && [["label.undo", { number: done[0].number }], ["labels.confirm", { ids, right: false }]];
}

/** Confirms labels; the commands that undo it. */
export async function confirm(ids) {
  return (await carryOut(["labels.confirm", { ids }])) && [["labels.confirm", { ids, right: false }]];
}

async function act(text, undo) {
  if (undo === null) return;
  chosen.clear();
  last = { text, undo };
  at("suspects-undo")?.parentElement.remove();
  show();
  say(text);
  refresh(null, true);
}

async function click(button) {
  const picked = boxes().filter((box) => chosen.has(box.value));
  const name = sure(picked.length);
  if (button.id === "suspects-right") {
    if (await confirmed("The label is right", `Keep ${name} and not ask about them again?`))
      await act(`${name} confirmed.`, await confirm(picked.map((box) => box.value)));
  } else if (button.id === "suspects-change") {
    const other = at("suspects-class").value;
    const to = other || "what the model says";
    if (await confirmed("Change", `Change ${name} to ${to}?`))
      await act(`${name} changed to ${to}.`,
        await change(picked.map((box) => ({ id: box.value, label: other || box.dataset.answer }))));
  } else if (button.id === "suspects-undo" && last) {
    if ((await carryOut(...last.undo)) === null) return;
    last = null;
    button.parentElement.remove();
    say("Undone.");
    refresh(null, true);
  }
}

if (section) {
  section.addEventListener("change", ({ target }) => {
    if (target.id === "suspects-all") for (const box of boxes()) target.checked ? chosen.add(box.value) : chosen.delete(box.value);
    else if (target.name === "suspect") target.checked ? chosen.add(target.value) : chosen.delete(target.value);
    else return;
    show();
  });
  section.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button) click(button);
  });
  new MutationObserver(show).observe(section.querySelector(".inside"), { childList: true });
  localise(section);
  show();
}
