"use strict";

// Shows the operator's server-sent events. They are read with fetch, because an EventSource can't send a token in a
// header. All foreign text is inserted as text, never as HTML.

const TOKEN = "consul-semaphore-token";
const TOKEN_HEADER = "X-Consul-Semaphore-Token";

// The server sends something every ten seconds. After this long without any data, the connection is dead.
const SILENCE = 35_000;

// The pauses between tries, in milliseconds.
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;

// How much of the past a usage chart shows, in seconds.
const SPAN = 900;

// The shortest time that a usage chart spans, in seconds.
const SHORTEST_SPAN = 30;

// Up to this many slots are drawn one by one.
const DRAWN = 32;

// A screen reader reads no more than one message in this time, in milliseconds.
const BETWEEN_MESSAGES = 5_000;

// A message waits this long, in milliseconds, because what follows often changes it.
const SETTLE = 1_000;

const $ = (id) => document.getElementById(id);

// ---- Elements

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// ---- Time, on the server's clock

let ahead = 0;
const now = () => Date.now() / 1000 + ahead;

function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [days, hours, minutes] = [86_400, 3_600, 60].map((unit) => Math.floor(whole / unit));
  if (days > 0) return `${days} d ${hours % 24} h`;
  if (hours > 0) return `${hours} h ${minutes % 60} min`;
  if (minutes > 0) return `${minutes} min ${whole % 60} s`;
  return `${whole} s`;
}

function age(since) {
  if (since === undefined) return document.createTextNode("unknown");
  const time = element("time", { datetime: new Date(since * 1000).toISOString() });
  time.title = new Date(since * 1000).toLocaleString();
  time.dataset.since = since;
  time.textContent = duration(now() - since);
  return time;
}

// A time to come, in words that count down.
function countdown(words, at) {
  const line = element("small", {}, `${words} `);
  const time = element("time", { datetime: new Date(at * 1000).toISOString() });
  time.title = new Date(at * 1000).toLocaleString();
  time.dataset.until = at;
  time.textContent = left(at);
  line.append(time);
  return line;
}

const left = (at) => (at > now() ? `in ${duration(at - now())}` : "soon");

// ---- Cards

// By "namespace/name".
const cards = new Map();

// In the order of the page: problems first, then by name.
const order = [];

// The cards in view: only their times are updated.
const inView = new Set();
const viewing = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) inView.add(entry.target);
    else inView.delete(entry.target);
  }
});

function show({ is, trend }) {
  const id = `${is.namespace}/${is.name}`;
  const card = cards.get(id) ?? { id, root: element("article", { class: "card" }), sessions: null };
  const problem = is.problem !== undefined;
  // That of a new card is neither.
  const moves = card.problem !== problem;
  Object.assign(card, { is, trend, problem, told: true });
  if (moves) place(card);
  draw(card);
  sift(card);
}

const isBefore = (one, other) => (one.problem === other.problem ? one.id < other.id : one.problem);

const problems = () => order.filter((card) => card.problem).length;

function place(card) {
  if (cards.has(card.id)) order.splice(order.indexOf(card), 1);
  let [at, end] = [0, order.length];
  while (at < end) {
    const middle = (at + end) >> 1;
    if (isBefore(order[middle], card)) at = middle + 1;
    else end = middle;
  }
  $("semaphores").insertBefore(card.root, order[at]?.root ?? null);
  order.splice(at, 0, card);
  cards.set(card.id, card);
  viewing.observe(card.root);
}

function forget(id) {
  const card = cards.get(id);
  if (!card) return;
  viewing.unobserve(card.root);
  inView.delete(card.root);
  card.root.remove();
  cards.delete(id);
  order.splice(order.indexOf(card), 1);
}

function draw(card) {
  const { is, id, root, problem } = card;
  const title = element("h2", { id: `semaphore ${id}`.replaceAll(" ", "-") }, element("span", { class: "quiet" }, `${is.namespace}/`), is.name);
  // A paused semaphore is not an error.
  const status = problem ? "False" : is.ready && is.ready.reason !== "Paused" ? is.ready.status : "Unknown";
  const badge = element("span", { class: "badge", "data-status": status });
  const ready = is.ready ? (is.ready.reason === "Reconciled" ? "Ready" : is.ready.reason) : "New";
  badge.textContent = problem ? `Problem: ${is.problem}` : ready;
  const parts = [element("header", {}, title, badge)];
  if (is.ready && is.ready.reason !== "Reconciled") parts.push(element("p", { class: "message" }, is.ready.message));
  // During an upgrade, another version of the operator may send them.
  for (const remark of is.remarks ?? []) parts.push(element("p", { class: "message" }, `${remark.reason}: ${remark.message}`));
  if (is.windowOpens !== undefined) {
    parts.push(element("p", { class: "quiet" }, countdown("Outside its windows; the next one opens", is.windowOpens)));
  }
  parts.push(figures(is), slots(is), trendOf(card), holdersOf(card), queueOf(is));
  root.setAttribute("aria-labelledby", title.id);
  root.classList.toggle("problem", problem);
  // What has not changed stays, and with it what somebody has selected or is listening to.
  parts.forEach((part, index) => {
    const before = root.children[index];
    if (!before) root.append(part);
    else if (!before.isEqualNode(part)) before.replaceWith(part);
  });
  while (root.children.length > parts.length) root.lastChild.remove();
}

function figures(is) {
  const line = element("p", { class: "figures" });
  const strong = (text) => element("strong", {}, String(text));
  if (is.keyed) {
    line.append(strong(is.held), ` held in ${is.keysInUse ?? 0} keys, ${is.limit} for each`);
  } else {
    line.append(strong(is.held), " of ", strong(is.limit), is.limit === 1 ? " slot held" : " slots held");
  }
  if (is.windowLimit !== undefined) line.append(`, ${is.windowLimit} in this window`);
  line.append(", ", strong(is.heldHere), " by this cluster; ", strong(is.waiting), " waiting");
  return line;
}

// A picture of what the figures say, so it is silent.
function slots(is) {
  const count = is.keyed ? is.held : Math.max(is.limit, is.held);
  if (count > DRAWN) return element("progress", { max: count, value: is.held, "aria-hidden": "true" });
  const row = element("div", { class: "slots", "aria-hidden": "true" });
  for (let slot = 0; slot < count; slot += 1) {
    const over = !is.keyed && slot >= is.limit;
    row.append(element("span", { class: over ? "over" : slot < is.held ? "held" : "free" }));
  }
  return row;
}

// How many slots were held recently, as steps from the first known sample until now.
function trendOf(card) {
  const [width, height] = [1000, 40];
  const end = now();
  const first = card.trend.findLastIndex(([at]) => at <= end - SPAN);
  const samples = card.trend.slice(Math.max(0, first));
  const span = Math.min(SPAN, Math.max(SHORTEST_SPAN, end - (samples.length > 0 ? samples[0][0] : end)));
  const most = Math.max(1, ...samples.map(([, held, limit]) => Math.max(held, limit ?? 0)));
  const x = (at) => Math.min(width, Math.max(0, width * (1 - (end - at) / span))).toFixed(1);
  const y = (count) => (height - 1 - (count / most) * (height - 3)).toFixed(1);
  const picture = shape("svg", { class: "trend", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" });
  const line = (value) => {
    let path = `M${x(samples[0][0])} ${y(value(samples[0]))}`;
    for (const sample of samples.slice(1)) path += `H${x(sample[0])}V${y(value(sample))}`;
    return `${path}H${width}`;
  };
  const range = (values) => {
    const [least, greatest] = [Math.min(...values), Math.max(...values)];
    return least === greatest ? `${least}` : `${least} to ${greatest}`;
  };
  let said = "";
  if (samples.length > 0) {
    const use = line(([, held]) => held);
    picture.append(shape("path", { class: "area", d: `${use}V${height}H${x(samples[0][0])}Z` }));
    said = `: ${range(samples.map(([, held]) => held))}`;
    if (samples.every(([, , limit]) => limit !== null)) {
      said += `, limit ${range(samples.map(([, , limit]) => limit))}`;
      picture.append(shape("path", { class: "limit", fill: "none", d: line(([, , limit]) => limit) }));
    }
    picture.append(shape("path", { class: "use", d: use }));
  }
  const time = span < 120 ? `${Math.round(span)} s` : `${Math.round(span / 60)} min`;
  said = `Slots held in the last ${time}${said}`;
  const title = shape("title", {});
  title.textContent = said;
  picture.prepend(title);
  return element("figure", {}, element("figcaption", { class: "fine", "aria-hidden": "true" }, said), picture);
}

const KINDS = { job: "Job", workload: "workload", process: "command", program: "other program", unknown: "holder unknown" };
const PLACES = { job: "cluster", workload: "cluster", process: "host", program: "Consul node" };

function table(caption, headings, rows) {
  const heads = headings.map(([text, kind]) => element("th", { scope: "col", class: kind }, text));
  return element("table", {}, element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

function small(...texts) {
  return element("small", {}, texts.filter(Boolean).join(" · "));
}

function holdersOf(card) {
  const { is } = card;
  const before = card.sessions;
  card.sessions = new Set(is.holders.map((holder) => holder.session));
  if (is.held === 0 && is.holders.length === 0) return element("p", { class: "quiet" }, "Nobody holds a slot.");
  const rows = is.holders.map((holder) => {
    const place = holder.place && PLACES[holder.kind] ? `${PLACES[holder.kind]} ${holder.place}` : "";
    const name = holder.name ?? holder.session;
    const cell = element("th", { scope: "row" }, element("div", {}, name),
      small(holder.workload ?? KINDS[holder.kind], place, holder.key && `key ${holder.key}`, holder.slotName && `slot ${holder.slotName}`, holder.neverExpires && "its session never expires"));
    if (holder.coolsUntil !== undefined) {
      cell.append(element("small", {}, `done, cools until ${new Date(holder.coolsUntil * 1000).toLocaleTimeString()}`));
    }
    if (holder.notStarted) cell.append(element("small", { class: "warning" }, `no running pod: ${holder.notStarted}`));
    if (holder.name) cell.append(small(`session ${holder.session}`));
    const row = element("tr", {}, cell, element("td", { class: "time" }, age(holder.since)));
    if (before && !before.has(holder.session)) row.className = "new";
    return row;
  });
  const more = is.held - is.holders.length;
  return table(more > 0 ? `Holders, oldest first, and ${more} more` : "Holders, oldest first", [["Holder", ""], ["Since", "time"]], rows);
}

function queueOf(is) {
  if (is.waiting === 0 && is.queue.length === 0) return element("p", { class: "quiet" }, "No Jobs of this cluster are waiting.");
  const rows = is.queue.map((waiting, index) => {
    const asks = waiting.asksFor ? `asks for ${waiting.asksFor}` : waiting.slots && `asks for ${waiting.slots} slots`;
    const cell = element("th", { scope: "row" }, element("div", {}, waiting.name), small(waiting.kind, waiting.key && `key ${waiting.key}`, asks, waiting.why));
    if (waiting.expected !== undefined) cell.append(countdown("expected to start", waiting.expected));
    return element("tr", {}, element("td", { class: "place" }, String(index + 1)), cell,
      element("td", { class: "time" }, age(waiting.since)));
  });
  const more = is.waiting - is.queue.length;
  return table(more > 0 ? `Queue in this cluster, next first, and ${more} more` : "Queue in this cluster, next first",
    [["#", "place"], ["Job", ""], ["Waits", "time"]], rows);
}

// ---- The filter

function sift(card) {
  const words = $("words").value.trim().toLowerCase().split(/\s+/);
  const idle = card.is.held === 0 && card.is.waiting === 0;
  card.root.hidden = ($("busy").checked && idle) || !words.every((word) => card.id.toLowerCase().includes(word));
}

function siftAll() {
  for (const card of cards.values()) sift(card);
  count();
}

// ---- The connection

let connection = null;
let again = 0;
let pause = FIRST_PAUSE;
let heard = 0;
// Why the server ended the events, if it gave a reason.
let refused = "";
let program = null;

function say(state, text) {
  document.body.dataset.state = state;
  $("state").dataset.state = state;
  if ($("state").textContent !== text) $("state").textContent = text;
  tell();
}

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = text === "";
  tell();
}

// ---- The title, and what a screen reader reads aloud

const TITLES = { connecting: "connecting", away: "not connected", login: "Log in", paused: "paused" };

function titled() {
  const { state, complete } = document.body.dataset;
  let said = problems() === 1 ? "1 problem" : `${problems() || "no"} problems`;
  if (!complete) said = TITLES.connecting;
  if (!$("notice").hidden) said = "may be old";
  return `${TITLES[state] ?? said} · Semaphores`;
}

let telling = 0;
let lastTold = -BETWEEN_MESSAGES;

// The state changes more often than anybody wants to hear it.
function tell() {
  document.title = titled();
  if (telling !== 0) return;
  telling = setTimeout(() => {
    telling = 0;
    lastTold = performance.now();
    const text = [$("state"), $("notice"), $("summary"), $("empty")]
      .map((part) => (part.hidden ? "" : part.textContent.split("\n")[0])).filter(Boolean).join("; ");
    if ($("told").textContent !== text) $("told").textContent = text;
  }, Math.max(SETTLE, lastTold + BETWEEN_MESSAGES - performance.now()));
}

// ---- Events

const hear = {
  begin(told) {
    ahead = told.now - Date.now() / 1000;
    for (const card of cards.values()) card.told = false;
    const build = `${told.version} (${told.commit})`;
    program ??= build;
    $("program").textContent = `consul-semaphore-operator ${told.version}${told.user ? `, shown to ${told.user}` : ""}`;
    $("logout").hidden = sessionStorage.getItem(TOKEN) === null;
    // The focus must not be lost with the form.
    if ($("login").contains(document.activeElement)) $("top").focus();
    $("login").hidden = true;
    $("filter").hidden = false;
    $("semaphores").hidden = false;
    say("live", program === build ? "live" : "live; the operator has changed: reload this page");
  },
  operator({ obstacles, remarks, trouble }) {
    $("operator").textContent = remarks.trim();
    const lines = [obstacles.trim() && `This replica of the operator is not ready; what is shown may be old.\n${obstacles.trim()}`, trouble];
    notice(lines.filter(Boolean).join("\n"));
  },
  change(told) {
    for (const semaphore of told.semaphores) show(semaphore);
    for (const id of told.gone) forget(id);
    count();
  },
  complete() {
    for (const card of [...cards.values()]) if (!card.told) forget(card.id);
    pause = FIRST_PAUSE;
    document.body.dataset.complete = "true";
    count();
  },
  refused(words) {
    refused = words;
  },
};

function count() {
  const shown = order.filter((card) => !card.root.hidden).length;
  const parts = [order.length === 1 ? "1 semaphore" : `${order.length} semaphores`];
  if (problems() > 0) parts.push(problems() === 1 ? "1 has a problem" : `${problems()} have problems`);
  if (shown < order.length) parts.push(`${shown} shown`);
  $("summary").textContent = order.length > 0 ? parts.join(", ") : "";
  $("empty").hidden = shown > 0;
  $("empty").textContent = order.length > 0 ? "No semaphore matches the filter." : "There is no ConsulSemaphore that you may list.";
  tell();
}

// Reads events as they arrive: lines "event: ..." and "data: ...", and an empty line after each event. Other lines only
// show that the connection is alive.
async function read(body, signal) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    // A part may arrive after the page has left this connection.
    if (done || signal.aborted) return;
    heard = Date.now();
    text += value;
    let end = text.indexOf("\n\n");
    for (; end >= 0; end = text.indexOf("\n\n")) {
      const lines = text.slice(0, end).split("\n");
      text = text.slice(end + 2);
      const of = (field) => lines.find((line) => line.startsWith(`${field}:`))?.slice(field.length + 1).trim();
      const kind = of("event");
      if (kind !== undefined && Object.hasOwn(hear, kind)) hear[kind](JSON.parse(of("data")));
    }
  }
}

async function connect() {
  clearTimeout(again);
  if (connection) connection.abort();
  const own = new AbortController();
  connection = own;
  heard = Date.now();
  const headers = { Accept: "text/event-stream" };
  const token = sessionStorage.getItem(TOKEN);
  if (token !== null) headers[TOKEN_HEADER] = token;
  let why = "";
  let next = 0;
  try {
    const answer = await fetch("events", { headers, signal: own.signal, cache: "no-store" });
    if (answer.ok) {
      // The server ends the stream now and then, and the page reconnects.
      refused = "";
      await read(answer.body, own.signal);
      why = refused;
      if (why === "") next = 50 + Math.random() * 100;
    } else {
      why = (await answer.text()).trim().slice(0, 500);
      if (answer.status === 401) {
        if (connection === own) askForToken(token === null ? "" : why);
        return;
      }
    }
  } catch (error) {
    if (!(error instanceof TypeError || error.name === "AbortError")) console.error(error);
  }
  // Another connection has replaced it, or the page left it.
  if (connection !== own) return;
  connection = null;
  if (document.hidden) return;
  if (next === 0) {
    next = pause * (0.5 + Math.random() / 2);
    pause = Math.min(LONGEST_PAUSE, pause * 2);
    lost(why);
  }
  again = setTimeout(connect, next);
}

let lostAt = null;

function lost(why) {
  if (document.body.dataset.state !== "away") lostAt = new Date().toLocaleTimeString();
  say("away", `not connected since ${lostAt}, trying again${why ? `: ${why}` : ""}`);
}

function leave() {
  clearTimeout(again);
  const own = connection;
  connection = null;
  if (own) own.abort();
}

// ---- The token

function askForToken(refusal) {
  leave();
  sessionStorage.removeItem(TOKEN);
  for (const id of [...cards.keys()]) forget(id);
  for (const id of ["filter", "semaphores", "empty", "logout"]) $(id).hidden = true;
  notice("");
  for (const id of ["operator", "program", "summary"]) $(id).textContent = "";
  delete document.body.dataset.complete;
  $("refusal").textContent = refusal;
  $("insecure").hidden = window.isSecureContext;
  $("login").hidden = false;
  say("login", "not logged in");
  $("token").focus();
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  // A header allows no other characters, and a token has none.
  if (!/^[\x21-\x7e]+$/.test(token)) {
    $("refusal").textContent = "this is not a token: a token has letters, digits and signs, and no spaces";
    return;
  }
  sessionStorage.setItem(TOKEN, token);
  pause = FIRST_PAUSE;
  say("connecting", "connecting");
  connect();
});

$("logout").addEventListener("click", () => askForToken(""));
$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", siftAll);

// ---- Timers

// A hidden page keeps no connection, because the server limits their number.
function resume() {
  if (!$("login").hidden && sessionStorage.getItem(TOKEN) === null) return;
  if (document.hidden) {
    leave();
    say("paused", "paused while this tab is hidden");
  } else {
    say("connecting", "connecting");
    connect();
  }
}

document.addEventListener("visibilitychange", resume);

setInterval(() => {
  // After a sleep the clock is far ahead, and it may have been set back.
  if (connection && Math.abs(Date.now() - heard) > SILENCE) {
    leave();
    lost("");
    again = setTimeout(connect, FIRST_PAUSE);
  }
  for (const root of inView) {
    for (const time of root.querySelectorAll("time")) {
      const { since, until } = time.dataset;
      const text = until === undefined ? duration(now() - Number(since)) : left(Number(until));
      if (time.textContent !== text) time.textContent = text;
    }
  }
}, 1_000);

setInterval(() => {
  for (const card of cards.values()) {
    if (inView.has(card.root)) card.root.querySelector("figure").replaceWith(trendOf(card));
  }
}, 10_000);

resume();
