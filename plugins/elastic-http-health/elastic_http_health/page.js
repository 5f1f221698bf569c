// Shows what /status tells and follows /changes. Whatever comes from the job becomes text and nothing else: elements are
// made by name, words are set as textContent, and the page's policy refuses markup from strings.
"use strict";

const WAIT = 2; // seconds that a request waits for a change; what workers use is told as often
const PATIENCE = 10000; // milliseconds for an answer beyond that
const RETRY = [500, 1000, 2000, 4000]; // milliseconds between attempts when nobody answers
const FEW_ROUNDS = 8, FEW_MEMBERS = 50;
const TREND = 60; // seconds
const FLOOR = 20; // percent of a core that a curve has as its height at least

const PHASES = {
  joining: ["Joining", "busy", "i-wait"], starting: ["Starting workers", "busy", "i-wait"],
  running: ["Running", "ok", "i-run"], stopping: ["Stopping workers", "busy", "i-stop"],
  draining: ["Draining", "busy", "i-stop"], finishing: ["Finishing", "info", "i-ok"], finished: ["Finished", "", "i-stop"],
};
const STATES = {
  running: ["running", "ok", "i-run"], succeeded: ["succeeded", "info", "i-ok"],
  failed: ["failed", "bad", "i-bad"], stopped: ["stopped", "", "i-stop"],
};
const CAUSES = {
  "": ["running", "ok", "i-run"], failure: ["failure", "bad", "i-bad"], hang: ["hang", "bad", "i-wait"],
  "node lost": ["node lost", "bad", "i-nodes"], membership: ["membership", "info", "i-nodes"], succeeded: ["succeeded", "ok", "i-ok"],
  failed: ["failed", "bad", "i-bad"], stopped: ["stopped", "", "i-stop"],
};
const LEVELS = {
  pending: ["not yet known", "", "i-wait"], ok: ["ok", "ok", "i-ok"], skipped: ["skipped", "", "i-stop"],
  warning: ["warning", "busy", "i-wait"], failure: ["failure", "bad", "i-bad"],
};
const PARTS = ["detect", "stop", "rendezvous", "start"];

const get = (id) => document.getElementById(id);
const state = { token: new URLSearchParams(location.hash.slice(1).replaceAll("+", "%2B")).get("token") || "", status: null, skew: 0, heard: 0, failed: 0, allRounds: false, allMembers: false };
const trends = new Map(); // worker's process id -> [{at, cpu, seconds}]

function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null));
  return element;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

const look = (table, key) => (Object.hasOwn(table, key) ? table[key] : [String(key), "", "i-wait"]);

function badge(table, key) {
  const [words, kind, name] = look(table, key);
  return make("span", `badge ${kind}`, icon(name), words);
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "unknown";
  const s = Math.max(0, seconds);
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

function bytes(count) {
  if (count === null) return "–";
  if (count < 2 ** 30) return `${Math.round(count / 2 ** 20)} MiB`;
  return `${(count / 2 ** 30).toFixed(count < 100 * 2 ** 30 ? 1 : 0)} GiB`;
}

function clock(seconds) {
  const at = new Date(seconds * 1000), today = new Date();
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  return at.toDateString() === today.toDateString() ? time : `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

const now = () => Date.now() / 1000 - state.skew; // by the agent's clock

// --- what is shown -------------------------------------------------------------------------------------------------

function showAll(status) {
  const [phase, kind, name] = look(PHASES, status.phase);
  get("run").textContent = status.run_id || "job without a name";
  const rank = status.group_rank < 0 ? "not in a round yet" : `group rank ${status.group_rank}`;
  get("who").textContent = `Node ${status.node} · role ${status.role} · ${rank}`;
  get("phase").className = `badge big ${kind}${status.phase === "running" ? " live" : ""}`;
  get("phase").replaceChildren(icon(name), phase);
  get("reason").textContent = status.reason + (status.stop ? saving(status.stop) : "");
  document.title = `${phase} · ${status.run_id || "elastic"}`;
  showTiles(status);
  showRounds(status);
  showFailure(status.last_failure);
  showMembers(status);
}

function saving(stop) {
  const ranks = (list) => list.join(", ") || "none";
  return ` · step ${stop.step}: ranks saved: ${ranks(stop.saved)}; not yet: ${ranks(stop.unsaved)} (until ${clock(stop.deadline)})`;
}

function showTime(status) {
  showTiles(status);
  showAge(status);
}

function tile(term, value, below, colour = "") {
  return make("div", "", make("dt", "", term), make("dd", colour, value, make("small", "", below)));
}

function showTiles(status) {
  const last = status.rounds.at(-1);
  const causes = Object.entries(status.restarts).map(([cause, count]) => `${count} ${cause}`).join(", ");
  const total = Object.values(status.restarts).reduce((sum, count) => sum + count, 0);
  get("tiles").replaceChildren(
    tile("Round", status.round ? String(status.round) : "–", last ? `formed ${clock(last.formed_at)}` : "none formed yet"),
    tile("Nodes", status.members.length ? status.members.length.toLocaleString("en") : "–", last ? `${plural(last.world_size, "worker")} in all` : "waiting for other nodes"),
    tile("Restart budget", `${status.restart_count} of ${status.max_restarts}`, "used by failures"),
    tile("Restarts here", String(total), causes || "none so far"),
    tile("Agent", status.alive.ok ? "alive" : "not alive", status.alive.ok ? "responds to /livez" : status.alive.reason, status.alive.ok ? "green" : "red"),
    tile(`${look(PHASES, status.phase)[0]} for`, duration(now() - status.phase_since), `since ${clock(status.phase_since)}`),
  );
}

function showRounds(status) {
  const taken = new Map(status.recoveries.map((recovery) => [recovery.round, recovery]));
  const newest = status.rounds.slice().reverse();
  const shown = state.allRounds ? newest : newest.slice(0, FEW_ROUNDS);
  get("rounds").replaceChildren(...shown.map((round) => roundItem(round, taken.get(round.number), status)));
  get("no-rounds").hidden = newest.length > 0;
  more("more-rounds", newest.length - shown.length, "earlier round");
}

function roundItem(round, recovery, status) {
  const over = round.ended_at !== null;
  const finishing = !over && status.phase === "finishing";
  const cause = over && !round.cause ? ["ending", "busy", "i-stop"] : finishing ? ["finishing", "info", "i-ok"] : look(CAUSES, round.cause);
  const dot = make("span", `dot ${cause[1]}`, icon(cause[2]));
  const ran = make("span", over ? "" : "running", `${over ? "ran" : "running for"} ${duration((over ? round.ended_at : now()) - round.formed_at)}`);
  const where = `${plural(round.world_size, "worker")} on ${plural(round.nodes, "node")}`;
  const item = make("li", "", dot,
    make("div", "title", make("h3", "", `Round ${round.number}`), make("span", `badge plain ${cause[1]}`, cause[0])),
    round.ended_because ? make("p", "why", `Ended: ${round.ended_because}`) : null,
    make("p", "meta", `${where} · formed ${clock(round.formed_at)} · `, ran),
    round.formed_because ? make("p", "meta", `Formed: ${round.formed_because}`) : null);
  item.dataset.round = round.number;
  item.dataset.cause = round.cause;
  if (recovery) item.append(recoveryBox(recovery));
  return item;
}

function showAge(status) {
  const running = document.querySelector("#rounds .running");
  if (running) running.textContent = `running for ${duration(now() - status.rounds.at(-1).formed_at)}`;
}

function recoveryBox(recovery) {
  const bar = make("div", "bar"), parts = make("ul", "parts");
  bar.setAttribute("aria-hidden", "true");
  for (const part of PARTS) {
    const piece = make("i", part);
    piece.style.setProperty("--part", String(Math.max(0, recovery[part])));
    bar.append(piece);
    parts.append(make("li", part, `${part} ${duration(recovery[part])}`));
  }
  return make("div", "recovery", make("p", "", `Recovered in ${duration(recovery.total)}`), bar, parts);
}

function showFailure(failure) {
  const box = get("failure");
  box.hidden = !failure;
  if (!failure || box.dataset.of === `${failure.pid} ${failure.timestamp}`) return;
  box.dataset.of = `${failure.pid} ${failure.timestamp}`;
  box.querySelector(".headline").textContent = `Rank ${failure.global_rank}: ${failure.reason || `exit code ${failure.exitcode}`}`;
  const facts = [`round ${failure.round}`, failure.node && `node ${failure.node}`, `local rank ${failure.local_rank}`, `process ${failure.pid}`, failure.timestamp > 0 && clock(failure.timestamp)];
  if (failure.caused_by !== null) facts.push(`caused by rank ${failure.caused_by}`);
  box.querySelector(".facts").textContent = facts.filter(Boolean).join(" · ");
  const tail = failure.stderr_tail.join("\n");
  const texts = [["Stack", failure.stack], ["Message", failure.message.trim() === tail.trim() ? "" : failure.message], ["Last lines of its stderr", tail]];
  box.querySelector(".texts").replaceChildren(...texts.filter(([, words]) => words.trim()).flatMap(([title, words]) => {
    const pre = make("pre", "", words);
    pre.tabIndex = 0;
    pre.setAttribute("aria-label", title);
    return [make("h3", "", title), pre];
  }));
}

function showMembers(status) {
  const wanted = get("find").value.trim().toLowerCase();
  const found = status.members.filter((member) => !wanted || [member.node, member.host, member.address].some((name) => name.toLowerCase().includes(wanted)));
  const shown = state.allMembers ? found : found.slice(0, FEW_MEMBERS);
  get("members").caption.textContent = status.members.length ? `${plural(found.length, "node")}${wanted ? ` of ${status.members.length}` : ""}, by group rank.` : "No round has formed yet.";
  get("members").tBodies[0].replaceChildren(...shown.map((member) => {
    const own = member.group_rank === status.group_rank;
    const node = make("td", "", member.node, own ? make("span", "badge", "this node") : null);
    return make("tr", own ? "own" : "", make("th", "number", String(member.group_rank)), node, make("td", "", member.host), make("td", "", member.address), make("td", "", member.role), make("td", "number", String(member.local_world_size)));
  }));
  get("members").tHead.hidden = !shown.length;
  get("find-row").hidden = status.members.length <= 10;
  more("more-members", found.length - shown.length, "more node");
}

function more(id, count, word) {
  get(id).hidden = count <= 0;
  get(id).textContent = `Show ${plural(count, word)}`;
}

// --- workers, each time something is heard --------------------------------------------------------------------------

function showWorkers(workers, at) {
  const pids = new Set(workers.map((worker) => worker.pid));
  for (const pid of trends.keys()) if (!pids.has(pid)) trends.delete(pid);
  const body = get("workers").tBodies[0];
  while (body.rows.length > workers.length) body.deleteRow(-1);
  workers.forEach((worker, index) => {
    const row = body.rows[index] || body.appendChild(workerRow());
    fillWorker(row, worker, use(worker, at));
  });
  get("workers").hidden = !workers.length;
  get("no-workers").hidden = workers.length > 0;
}

function showChecks(checks) {
  get("checks").hidden = !checks.length;
  get("checks").querySelector("tbody").replaceChildren(...checks.map((check) => {
    const name = make("th", "", check.name);
    name.scope = "row";
    name.title = check.summary;
    const found = make("td", "", check.message, check.remedy ? make("small", "", check.remedy) : null);
    const row = make("tr", "", name, make("td", "", badge(LEVELS, check.level)), found);
    row.dataset.check = check.name;
    return row;
  }));
}

function workerRow() {
  const rank = make("th");
  rank.scope = "row";
  return make("tr", "", rank, make("td", "state"), make("td", "cpu"), make("td", "trend"), make("td", "number"), make("td", "number pid"));
}

function fillWorker(row, worker, percent) {
  row.dataset.rank = worker.global_rank;
  row.dataset.pid = worker.pid;
  const [rank, shown, cpu, trend, memory, pid] = row.cells;
  rank.replaceChildren(String(worker.global_rank), worker.local_rank === worker.global_rank ? "" : make("small", "", `local ${worker.local_rank}`));
  if (shown.dataset.state !== worker.state) shown.replaceChildren(badge(STATES, worker.state));
  shown.dataset.state = worker.state;
  cpu.textContent = percent === null ? "–" : `${Math.round(percent)} %`;
  trend.replaceChildren(drawn(trends.get(worker.pid) || []));
  memory.textContent = worker.state === "running" ? bytes(worker.memory_bytes) : "–";
  pid.textContent = String(worker.pid);
}

function use(worker, at) {
  const seen = trends.get(worker.pid) || [];
  trends.set(worker.pid, seen);
  if (worker.cpu_seconds === null || worker.state !== "running") return null;
  const last = seen.at(-1);
  if (last && (worker.cpu_seconds === last.seconds && at - last.at < 1)) return last.percent;
  const percent = last && at > last.at ? Math.max(0, (100 * (worker.cpu_seconds - last.seconds)) / (at - last.at)) : null;
  seen.push({ at, percent, seconds: worker.cpu_seconds });
  while (seen.length && seen[0].at < at - TREND) seen.shift();
  return percent;
}

function drawn(seen) {
  const points = seen.filter((point) => point.percent !== null);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${TREND} 100`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  if (points.length < 2) return svg;
  const end = points.at(-1).at, top = Math.max(FLOOR, ...points.map((point) => point.percent)) * 1.1;
  const line = points.map((point) => `${(TREND - (end - point.at)).toFixed(2)} ${(100 - (100 * point.percent) / top).toFixed(1)}`).join("L");
  for (const [kind, d] of [["area", `M${(TREND - (end - points[0].at)).toFixed(2)} 100L${line}L${TREND} 100Z`], ["", `M${line}`]]) {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    if (kind) path.setAttribute("class", kind);
    path.setAttribute("d", d);
    svg.append(path);
  }
  return svg;
}

// --- asking -----------------------------------------------------------------------------------------------------------

class Refused extends Error {}

async function ask(path, wait = 0) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE + wait * 1000) });
  if (answer.status === 401) throw new Refused();
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

function heard(tick) {
  state.skew = Date.now() / 1000 - tick.now;
  state.heard = Date.now();
  state.failed = 0;
  get("banner").hidden = get("ask").hidden = true;
  get("all").hidden = false;
  get("all").classList.remove("gone");
  showWorkers(tick.workers, tick.now);
  showChecks(tick.checks);
  get("fresh").textContent = `Last update from the agent at ${clock(Date.now() / 1000)}.`;
}

function lost() {
  state.failed += 1;
  const ended = state.status && state.status.phase === "finished";
  const since = state.heard ? ` since ${clock(state.heard / 1000)}` : "";
  get("banner").textContent = ended ? `The agent has finished${since}.` : `No response from the agent${since}. Retrying.`;
  get("banner").hidden = false;
  get("all").classList.add("gone");
}

function askForToken() {
  get("refused").textContent = state.token ? "Wrong token." : "";
  get("all").hidden = true;
  get("ask").hidden = false;
  return new Promise((resolve) => {
    get("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      state.token = get("token").value.trim();
      resolve();
    }, { once: true });
  });
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const seen = () => document.hidden ? new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true })) : null;

async function follow() {
  const known = state.status;
  const tick = known && !state.failed ? await ask(`/changes?after=${known.change}&wait=${WAIT}`, WAIT) : await ask("/status");
  if (tick.version) state.status = tick;
  else Object.assign(state.status, { now: tick.now, alive: tick.alive, ready: tick.ready, workers: tick.workers });
  heard(tick);
  if (tick.version) return showAll(state.status);
  if (tick.change === state.status.change) return showTime(state.status);
  state.status = await ask("/status");
  heard(state.status);
  return showAll(state.status);
}

async function main() {
  for (;;) {
    await seen();
    try {
      await follow();
      await pause(100); // a page must not be what keeps the agent busy
    } catch (error) {
      if (error instanceof Refused) await askForToken();
      else {
        lost();
        await pause(RETRY[Math.min(state.failed, RETRY.length) - 1]);
      }
    }
  }
}

get("more-rounds").addEventListener("click", () => { state.allRounds = true; showRounds(state.status); });
get("more-members").addEventListener("click", () => { state.allMembers = true; showMembers(state.status); });
get("find").addEventListener("input", () => showMembers(state.status));
addEventListener("hashchange", () => location.reload());
main();
