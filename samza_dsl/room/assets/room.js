// The control room in the browser: asks its own server what goes on, once a second, and shows it. Everything that
// anybody has named is put in as text, so that no name can be markup.
"use strict";

const LOOK_MS = 1000, SLOW_MS = 5000, DOWN_MS = 4000, HOUR_MS = 3600000;
const known = { run: "", runs: [], session: { actions: false, proof: "" }, picture: "", samples: [], after: -1, deaths: {} };
const byId = id => document.getElementById(id);

/* Making elements ------------------------------------------------------------------------------------------------ */

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
  return made;
}

const painted = new Map();
// Elements stay as they are while what they show does: a selection, or an open part, is not lost each second.
function paint(id, shown, build) {
  const key = JSON.stringify(shown);
  if (painted.get(id) === key) return;
  painted.set(id, key);
  const open = new Set([...byId(id).querySelectorAll("details[open][data-key]")].map(one => one.dataset.key));
  byId(id).replaceChildren(...[build()].flat());
  for (const one of byId(id).querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = true;
}

function table(heads, rows, fold = true) {
  const isNumber = head => head.startsWith("#");
  const cell = (value, at) => {
    const head = heads[at], kind = isNumber(head) ? "number" : at === 0 ? "id" : null;
    return el("td", { class: kind, "data-head": head.replace("#", "") }, ...[value].flat());
  };
  return el("table", { class: fold ? "fold" : null },
    el("thead", {}, el("tr", {}, ...heads.map(head => el("th", { class: isNumber(head) ? "number" : null }, head.replace("#", ""))))),
    el("tbody", {}, ...rows.map(({ cells, ...more }) => el("tr", more, ...cells.map(cell)))));
}

/* Numbers in words ----------------------------------------------------------------------------------------------- */

const whole = number => Math.round(number).toLocaleString("en");
function rate(perSecond) {
  let unit = 0;
  while (perSecond >= 1000 && unit < 3) { perSecond /= 1000; unit += 1; }
  return unit || (perSecond > 0 && perSecond < 10) ? perSecond.toFixed(1) + ["", "k", "M", "G"][unit] : perSecond.toFixed(0);
}
function size(bytes) {
  let unit = 0;
  while (bytes >= 1024 && unit < 4) { bytes /= 1024; unit += 1; }
  return `${unit ? bytes.toFixed(1) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}
function lasting(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < HOUR_MS) return `${Math.floor(ms / 60000)} min ${Math.floor(ms / 1000) % 60} s`;
  if (ms < 48 * HOUR_MS) return `${Math.floor(ms / HOUR_MS)} h ${Math.floor(ms / 60000) % 60} min`;
  return `${whole(ms / HOUR_MS / 24)} days`;
}
const cssWidth = share => `${Math.min(share, 1) * 100}%`;
const percent = share => `${Math.round(share * 100)} %`;
const clock = ms => new Date(ms).toISOString().slice(0, 19).replace("T", " ");
const counted = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;

const MOODS = { runs: "good", "is stopping": "warn", "begins anew": "warn", "is silent": "bad", "was killed": "bad", "has failed": "bad" };
const mood = state => MOODS[state] || "";
const lives = state => ["runs", "is stopping", "is silent"].includes(state);

/* Asking the server ---------------------------------------------------------------------------------------------- */

class Refused extends Error {}

async function ask(path, said = {}) {
  const query = new URLSearchParams(said).toString();
  const answer = await fetch(`api/${path}${query && "?" + query}`, { credentials: "same-origin", cache: "no-store" });
  if (answer.status === 409 || answer.status === 503) throw new Refused((await answer.json()).error);
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.headers.get("content-type").startsWith("image/") ? answer.text() : answer.json();
}

async function act(what, said) {
  const answer = await fetch("api/act", {
    method: "POST", credentials: "same-origin",
    headers: { "Content-Type": "application/json", "X-Samza-Dsl": known.session.proof },
    body: JSON.stringify({ run: known.run, what, ...said }),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Refused(told.error);
  return told.done;
}

async function tellDone(asking, where = byId("said")) {
  let words, bad = false;
  try { words = await asking; } catch (error) { words = error.message; bad = true; }
  if (where) { where.textContent = words; where.hidden = false; where.className = bad ? "said bad" : "said"; }
  return !bad;
}

/* The parts of the page ------------------------------------------------------------------------------------------ */

function showRuns() {
  paint("runs", [known.run, known.runs.map(run => [run.id, run.state])], () => known.runs.map(run =>
    el("a", { href: "#" + encodeURIComponent(run.id), "aria-current": run.id === known.run ? "true" : null,
      title: `${run.app} ${run.state}, in ${run.place}` },
    el("span", { class: "dot " + mood(run.state) }), known.runs.filter(one => one.app === run.app).length > 1
      ? `${run.app} · ${run.place}` : run.app)));
}

function sureButton(label, sure, does) {
  const button = el("button", { type: "button" }, label);
  let timer = 0;
  button.addEventListener("click", () => {
    clearTimeout(timer);
    if (button.className === "sure") { button.className = ""; button.textContent = label; does(); return; }
    button.className = "sure"; button.textContent = sure;
    timer = setTimeout(() => { button.className = ""; button.textContent = label; }, 4000);
  });
  return button;
}

function actions(run) {
  if (!known.session.actions || mood(run.state) !== "good") return null;
  const factor = el("input", { type: "number", min: 1, placeholder: "1, 2, 4 …", "aria-label": "Split each task into" });
  const crew = el("input", { type: "number", min: 1, "aria-label": "Containers" });
  const scale = () => {
    const size = {};
    if (factor.value) size.factor = Number(factor.value);
    if (crew.value) size.containers = Number(crew.value);
    tellDone(act("scale", size));
  };
  return el("div", { class: "actions" },
    el("button", { type: "button", "data-do": "commit", onclick: () => tellDone(act("commit")) }, "Commit now"),
    el("details", {}, el("summary", {}, "Scale"), el("span", { class: "actions" },
      el("label", {}, "split by "), factor, el("label", {}, "containers "), crew, sureButton("Scale", "Really scale?", scale))),
    sureButton("Stop", "Really stop?", () => tellDone(act("stop"))));
}

function showHead(told) {
  const run = told.run, now = told.look;
  paint("head", [told.id, told.state, run, known.session.actions], () => [
    el("h2", {}, told.app), el("span", { class: "mark " + mood(told.state), id: "state" }, told.state),
    el("p", { id: "facts" }), el("div", { class: "said", id: "said", hidden: true }), actions(told)].filter(Boolean));
  const facts = [];
  if (now) {
    facts.push(`up ${lasting(now.elapsed_ms)}`, counted(now.commits, "commit"));
    if (now.since_commit_ms !== null) facts.push(`last ${lasting(now.since_commit_ms)} ago`);
    facts.push(`${whole(now.in_flight)} in flight`);
    if (now.deaths) facts.push(`${counted(now.deaths, "container")} died, ${whole(now.restarts)} started in their place`);
    facts.push(...now.stages);
  }
  if (run) facts.push(`process ${run.process} on ${run.host}`, run.where);
  if (mood(told.state) === "" || told.state === "was killed") facts.push(`as of ${clock(told.at_ms)} UTC`);
  byId("facts").textContent = facts.join(" · ");
  document.title = `${told.app} ${told.state}`;
}

function showAlerts(told, failure) {
  const alerts = told.look ? told.look.alerts : [];
  const bad = [];
  if (told.state === "was killed") bad.push({ words: "The run has ended without a word: its process was killed, or its machine went down. What was not committed is processed again when it is started." });
  if (told.state === "is silent") bad.push({ words: `The run has said nothing for ${lasting(told.age_ms)}: a function of it blocks, or its process is stopped.` });
  if (failure) bad.push({ words: failure.text, lines: failure.lines });
  paint("alerts", [bad.map(one => one.words), failure, alerts], () => [
    ...bad.map(one => el("p", { class: "bad" }, one.words, one.lines && one.lines.length ? el("pre", {}, one.lines.join("\n")) : "")),
    ...alerts.map(words => el("p", {}, words))]);
}

const TILES = [
  ["Read", "in", now => [rate(now.received_per_s), "/s"]],
  ["Written", "out", now => [rate(now.written_per_s), "/s"]],
  ["Lag", "lag", now => [whole(now.lag), "records"]],
  ["Event time is behind", "behind_ms", now => [lasting(now.behind_ms), ""]],
  ["Commits, 99 % within", "commit_p99_ms", now => [lasting(now.commit_p99_ms), ""]],
  ["State", "bytes", now => [size(now.stores.reduce((sum, one) => sum + one.bytes, 0)), ""]],
];

function spark(field) {
  const last = known.samples.length ? known.samples[known.samples.length - 1].at_ms : 0;
  const points = known.samples.filter(one => one.at_ms > last - HOUR_MS && one[field] !== null && one[field] !== undefined);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 30"); svg.setAttribute("preserveAspectRatio", "none");
  if (points.length < 2) return svg;
  const first = points[0].at_ms, span = Math.max(last - first, 1), top = Math.max(...points.map(one => one[field]), 1e-9);
  const at = one => `${((one.at_ms - first) / span * 100).toFixed(2)} ${(28 - one[field] / top * 25).toFixed(2)}`;
  const line = points.map(at).join("L");
  for (const [kind, shape] of [["area", `M0 30L${line}L100 30Z`], ["", `M${line}`]]) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", shape); if (kind) path.setAttribute("class", kind);
    svg.append(path);
  }
  return svg;
}

function showTiles(now) {
  const shown = TILES.map(([title, field, of]) => [title, field, ...of(now)]);
  paint("tiles", [shown, known.after], () => shown.map(([title, field, number, unit]) => {
    const since = known.samples.length ? `Since ${clock(known.samples[0].at_ms)} UTC, an hour at most` : "";
    return el("div", { class: "tile", title: since }, el("h3", {}, title), el("strong", {}, number, unit && el("small", {}, unit)), spark(field));
  }));
}

function showSlow(told) {
  const now = told.look, keepsUp = now.lag <= Math.max(2 * now.received_per_s, 10);
  byId("slow").className = keepsUp ? "calm" : "";
  byId("pace").textContent = !lives(told.state) ? "In its last seconds."
    : keepsUp ? "It keeps up with its inputs." : `${whole(now.lag)} records wait to be read.`;
  paint("slow", now.causes, () => now.causes.length
    ? now.causes.slice(0, 8).map(one => {
      const item = el("li", { class: one.share >= 0.7 ? "much" : null, "data-operator": one.operator },
        el("i"), el("span", {}, one.words), el("b", {}, percent(Math.min(one.share, 1))));
      item.firstChild.style.width = cssWidth(one.share);
      return item;
    })
    : [el("li", { class: "none" }, "Nowhere: it waits for records.")]);
}

/* The picture */

let scale = 1, isFit = true;
function zoom(to) {
  const svg = byId("picture").querySelector("svg");
  if (!svg) return;
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  scale = Math.min(3, Math.max(0.2, to));
  svg.setAttribute("width", width * scale); svg.setAttribute("height", height * scale);
}
function fit() {
  const svg = byId("picture").querySelector("svg");
  if (!svg) return;
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const room = byId("picture").clientWidth;
  // On a phone it is scrolled rather than made too small to be read.
  zoom(Math.max(Math.min(1, room / width, 620 / height), room < 640 ? 0.6 : 0.45));
}

async function showPicture(told) {
  if (!told.run || !told.look) return;
  if (known.picture !== told.id + told.run.picture) {
    const text = await ask("picture", { run: told.id });
    const parsed = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    byId("picture").replaceChildren(document.importNode(parsed, true));
    known.picture = told.id + told.run.picture;
    isFit = true; fit();
  }
  const picture = byId("picture");
  for (const group of picture.querySelectorAll(".rate")) {
    const words = told.look.edges[group.dataset.id], text = group.querySelector("text"), pill = group.querySelector("rect");
    if (words === undefined || text.textContent === words) continue;
    const width = 12 + 6.6 * words.length;
    text.textContent = words; text.setAttribute("x", 0);
    pill.setAttribute("width", width); pill.setAttribute("x", -width / 2);
    group.classList.toggle("still", words === "0/s");
  }
  const operators = Object.fromEntries(told.look.operators.map(one => [one.id, one]));
  for (const card of picture.querySelectorAll(".card")) heat(card, operators[card.dataset.id]);
}

function heat(card, operator) {
  if (!operator) return;
  const share = operator.busy, much = share >= 0.5, face = card.querySelector(".face");
  const width = face.width.baseVal.value, height = face.height.baseVal.value;
  let [bar, words] = [card.querySelector(".heat"), card.querySelector(".share")];
  if (!bar) {
    bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    words = document.createElementNS("http://www.w3.org/2000/svg", "text");
    bar.setAttribute("y", height - 5); bar.setAttribute("x", 12); bar.setAttribute("height", 3); bar.setAttribute("rx", 1.5);
    words.setAttribute("x", width - 34); words.setAttribute("y", 21);
    card.append(bar, words);
  }
  bar.setAttribute("width", share >= 0.01 ? Math.max((width - 24) * share, 3) : 0);
  bar.setAttribute("class", much ? "heat much" : "heat"); words.setAttribute("class", much ? "share much" : "share");
  words.textContent = share >= 0.01 ? percent(share) : operator.waiting >= 0.1 ? `${operator.waiting.toFixed(1)} under way` : "";
  card.classList.toggle("much", much);
}

/* Tables */

function showOperators(now) {
  const meter = share => {
    const made = el("span", { class: "meter" + (share >= 0.5 ? " much" : "") }, el("i"));
    made.firstChild.style.width = cssWidth(share);
    return [made, percent(share)];
  };
  paint("operators", now.operators, () => table(
    ["operator", "#in /s", "#out /s", "#in", "#out", "busy", "#calls", "#p50", "#p99", "watermark (UTC)", "what went wrong"],
    now.operators.map(one => ({
      "data-operator": one.id,
      cells: [
        [one.id, el("small", {}, [one.kind, one.site].filter(Boolean).join(" · "))],
        rate(one.received_per_s), rate(one.emitted_per_s), whole(one.received), whole(one.emitted),
        one.busy >= 0.005 ? meter(one.busy) : "", one.p50_ms === null ? "" : `${one.waiting.toFixed(1)} at a time`,
        one.p50_ms === null ? "" : lasting(one.p50_ms), one.p99_ms === null ? "" : lasting(one.p99_ms),
        one.watermark === "not started" ? "" : one.watermark,
        Object.keys(one.troubles).length ? el("span", { class: "bad-words" },
          Object.entries(one.troubles).map(([words, number]) => `${whole(number)} ${words}`).join(", ")) : "",
      ],
    }))));
}

function showInputs(now) {
  const streams = new Map();
  for (const one of now.inputs) streams.set(one.stream, [...(streams.get(one.stream) || []), one]);
  const sum = parts => parts.reduce((all, one) => all + one.lag, 0);
  paint("inputs", now.inputs.map(({ behind_ms, ...rest }) => rest), () => streams.size ? [...streams].map(([stream, parts]) => {
    const ordered = [...parts].sort((one, other) => one.partition - other.partition);
    const wrong = ordered.some(one => one.words.some(words => words.startsWith("in no")));
    return el("details", { class: "partitions", "data-key": stream },
      el("summary", {}, el("b", {}, stream, el("span", { class: "dim" }, ` · ${counted(parts.length, "partition")}`)),
        el("span", { class: wrong ? "bad-words" : null }, sum(parts) ? `${whole(sum(parts))} to read` : ordered.every(one => one.words.includes("ended")) ? "ended" : "all read")),
      table(["partition", "#task", "#next", "#lag", "watermark (UTC)", ""], ordered.map(one => ({
        cells: [String(one.partition), String(one.task), whole(one.offset), whole(one.lag), one.watermark, one.words.join(", ")],
      }))));
  }) : el("p", { class: "dim" }, "No container tells of any."));
}

function showContainers(told) {
  const now = told.look, ends = !lives(told.state), at = Date.now();
  const shown = now.containers.map(one => {
    const name = `${told.id} ${told.run ? told.run.began_ms : 0} ${one.name}`, before = known.deaths[name];
    // A new one may be there before anybody has seen that the one before it was gone.
    if (before && one.deaths > before.deaths) known.deaths[name] = { deaths: one.deaths, at };
    else if (!before) known.deaths[name] = { deaths: one.deaths, at: 0 };
    const fresh = at - known.deaths[name].at < DOWN_MS;
    if (ends) return { ...one, tasks: [], words: [], kind: "gone", fresh: false };
    const kind = fresh || (!one.well && one.deaths) ? "bad" : one.well ? "" : "warn";
    return { ...one, kind, fresh };
  });
  paint("containers", [told.state, shown], () => shown.map(one => el("div", { class: "box " + one.kind, "data-container": one.name },
    el("h3", {}, `Container ${one.name}`, el("span", { class: "dim" }, one.busy >= 0.005 ? `${percent(one.busy)} busy` : "")),
    el("div", { class: "tasks" }, ...one.tasks.slice(0, 64).map(task => el("b", { title: `task ${task}` }, String(task))),
      one.tasks.length > 64 ? el("span", { class: "dim" }, `… ${one.tasks.length} tasks`) : ""),
    one.words.length || one.fresh ? el("p", { class: "words" }, [one.fresh ? `it ${one.died}` : "", ...one.words].filter(Boolean).join("; ")) : null,
    el("p", {}, [counted(one.commits, "commit"), one.commit_p99_ms === null ? "" : `99 % within ${lasting(one.commit_p99_ms)}`].filter(Boolean).join(", ")),
    one.deaths ? el("p", {}, `died ${counted(one.deaths, "time")}, the last one ${one.died}`) : null)));
}

function showStores(now) {
  paint("stores", now.stores, () => now.stores.length ? table(["store", "#tasks", "#entries", "#size"], now.stores.map(one => ({
    cells: [one.store, whole(one.tasks), whole(one.entries), size(one.bytes)],
  }))) : el("p", { class: "dim" }, "No state is committed."));
}

function showEvents(events) {
  const newest = [...events].reverse().slice(0, 200);
  paint("events", newest, () => newest.length ? newest.map(one => el("div", { class: "event " + one.what.replace(" ", "-") },
    el("time", { title: "UTC" }, clock(one.at_ms)), el("p", {}, one.text),
    one.lines.length ? el("pre", {}, one.lines.join("\n")) : null)) : el("p", { class: "dim" }, "Nothing yet."));
}

function letterForm(one, inputs) {
  const form = el("form", {}), area = el("textarea", { spellcheck: "false", readonly: !one.is_whole || one.form === "none", "aria-label": "The value" });
  area.value = one.value;
  const to = el("select", { "aria-label": "To" }, ...(one.to ? [] : [el("option", { value: "" }, "choose an input")]),
    ...inputs.map(name => el("option", { value: name, selected: name === one.to }, name)));
  const said = el("div", { class: "said", hidden: true });
  const hint = !one.is_whole ? "Too long to be mended here; it can be sent again as it is."
    : one.form === "hex" ? `Bytes that are no text, in hex: they read ${one.read}` : one.form === "none" ? "It has no value: a deletion." : "";
  const button = el("button", { class: "main", type: "submit", disabled: Boolean(one.sent) }, "Send again");
  form.append(...(hint ? [el("p", { class: "dim" }, hint)] : []), area);
  if (known.session.actions) form.append(el("div", { class: "row" }, el("label", { class: "dim" }, "to"), to, button), said);
  else form.append(el("p", { class: "dim" }, "This page is only read: with --ui-allow-actions a letter can be mended and sent again."));
  form.addEventListener("submit", async event => {
    event.preventDefault();
    button.disabled = true;
    const mended = area.value !== one.value ? { value: area.value, form: one.form } : {};
    const place = { stream: one.stream, partition: one.partition, offset: one.offset, to: to.value };
    const done = await tellDone(act("redrive", { ...place, ...mended }), said);
    if (done) { await showLetters(true); await lookSlowly(); } else button.disabled = false;
  });
  return form;
}

async function showLetters(evenOpen = false) {
  // Somebody who mends a value is not disturbed.
  if (!evenOpen && byId("letters").contains(document.activeElement)) return;
  let found;
  try { found = await ask("letters", { run: known.run }); } catch (error) {
    // Letters that can't be read are told of, and keep nothing else of the page from being shown.
    byId("letters-panel").hidden = error instanceof Refused;
    byId("letters-note").textContent = error instanceof Refused ? "" : `They can't be read: ${error.message}`;
    return;
  }
  byId("letters-panel").hidden = !found.streams.length;
  const left = found.letters.filter(one => !one.sent).length;
  byId("letters-count").textContent = left ? (left >= 100 ? "100 or more" : String(left)) : "";
  byId("letters-note").textContent = found.elsewhere.length ? `Not here: ${found.elsewhere.join(", ")}, not written yet or bound to another place.` : "";
  paint("letters", [found, known.session.actions], () => found.letters.length ? found.letters.map(one => el("details",
    { class: "letter" + (one.sent ? " sent" : ""), "data-key": `${one.stream}/${one.partition}/${one.offset}`, "data-letter": `${one.stream}/${one.partition}/${one.offset}` },
    el("summary", {}, el("span", { class: "error" }, one.error || "late"), one.sent ? el("span", { class: "tag" }, `sent again at ${one.sent.slice(11, 19)}`) : el("span", { class: "dim" }, one.at),
      el("span", { class: "from" }, [one.operator && `operator ${one.operator}`, one.origin && `from ${one.origin}`, `in ${one.stream}`, one.key !== "-" && `key ${one.key}`, one.read.slice(0, 120)].filter(Boolean).join(" · "))),
    letterForm(one, found.inputs))) : el("p", { class: "dim" }, "None: every record was taken."));
}

const fromTo = (before, now) => before === now ? String(now) : `${before} → ${now}`;

async function showJob() {
  let found;
  try { found = await ask("job", { run: known.run }); } catch (error) {
    if (!(error instanceof Refused)) throw error;
    paint("job", error.message, () => el("p", { class: "dim" }, error.message));
    return;
  }
  const options = Object.entries(found.options).filter(([, value]) => value !== null);
  paint("job", found, () => [
    el("p", { class: "dim" }, `Generation ${found.generation} · job model ${found.model} · ${counted(found.tasks, "task")}` +
      (found.containers.length ? ` · ${found.containers.map(one => `${one.name} on ${one.host}`).join(", ")}` : "")),
    el("details", { class: "partitions", "data-key": "checkpoints" }, el("summary", {}, el("b", {}, "Checkpoints"), el("span", {}, counted(found.positions.length, "position"))),
      table(["task", "stream", "#partition", "#next offset", "watermark (UTC)"], found.positions.map(one => ({
        cells: [one.task, one.stream, String(one.partition), whole(one.offset), one.watermark],
      })))),
    el("details", { class: "partitions", "data-key": "sizes" }, el("summary", {}, el("b", {}, "Changes of size"), el("span", {}, counted(found.scalings.length, "change"))),
      table(["when (UTC)", "#tasks split by", "#containers", "why", "#took"], found.scalings.map(one => ({
        cells: [one.at, fromTo(one.before, one.now), one.containers ? fromTo(...one.containers) : "", one.why, lasting(one.took_ms)],
      })))),
    el("details", { class: "partitions", "data-key": "options" }, el("summary", {}, el("b", {}, "Options"), el("span", {}, counted(options.length, "option"))),
      table(["option", "value"], options.map(([name, value]) => ({ cells: [name, String(value)] })), false)),
  ]);
}

/* The clock of the page ------------------------------------------------------------------------------------------ */

function clear() {
  for (const id of ["head", "alerts", "tiles", "slow", "picture", "operators", "inputs", "containers", "stores", "events", "letters", "job"]) {
    painted.delete(id); byId(id).replaceChildren();
  }
  Object.assign(known, { picture: "", samples: [], after: -1, failure: null });
}

async function choose() {
  const asked = decodeURIComponent(location.hash.slice(1));
  const living = known.runs.find(run => mood(run.state)) || known.runs[0];
  const found = known.runs.find(run => run.id === asked) || living;
  if (!found) {
    paint("head", "none", () => el("p", {}, "No application has been run here yet. The page shows the first one as soon as it begins."));
    return false;
  }
  if (known.run !== found.id) { known.run = found.id; clear(); await lookSlowly(); }
  return true;
}

async function lookSlowly() {
  const news = await ask("history", { run: known.run, after: known.after });
  for (const [number, sample] of news) { known.samples.push(sample); known.after = number; }
  known.samples = known.samples.slice(-1000);
  const events = await ask("events", { run: known.run });
  showEvents(events);
  const last = [...events].reverse().find(one => one.what === "began" || one.what === "failed");
  known.failure = last && last.what === "failed" ? last : null;
  await showLetters();
  await showJob();
}

let slowAt = 0, isLooking = false;
async function look() {
  if (isLooking || document.hidden) return;
  isLooking = true;
  try {
    known.runs = await ask("runs");
    if (await choose()) {
      showRuns();
      if (Date.now() - slowAt > SLOW_MS) { slowAt = Date.now(); await lookSlowly(); }
      const told = await ask("run", { run: known.run });
      showHead(told);
      showAlerts(told, known.failure);
      if (told.look) {
        showTiles(told.look); showSlow(told); showOperators(told.look); showInputs(told.look);
        showContainers(told); showStores(told.look);
        await showPicture(told);
      }
    }
    byId("link").textContent = "live"; byId("link").className = "";
  } catch (error) {
    byId("link").textContent = error instanceof TypeError ? "no answer: what is shown was so before" : error.message;
    byId("link").className = "bad";
  } finally { isLooking = false; }
}

document.querySelector(".zoom").addEventListener("click", ({ target }) => {
  if (target.dataset.by) { isFit = false; zoom(scale * target.dataset.by); } else if ("fit" in target.dataset) { isFit = true; fit(); }
});
byId("picture").addEventListener("click", ({ target }) => {
  const card = target.closest(".card");
  const row = card && [...document.querySelectorAll("#operators tr")].find(one => one.dataset.operator === card.dataset.id);
  if (!row) return;
  row.scrollIntoView({ block: "center", behavior: "smooth" });
  row.classList.add("lit"); setTimeout(() => row.classList.remove("lit"), 1500);
});
addEventListener("resize", () => isFit && fit());
addEventListener("hashchange", look);
document.addEventListener("visibilitychange", look);
(async () => {
  try { known.session = await ask("session"); } catch (error) { byId("link").textContent = error.message; byId("link").className = "bad"; }
  await look();
  setInterval(look, LOOK_MS);
})();
