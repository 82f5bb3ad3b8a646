"use strict";
// The page of a report: all pictures and tables follow from one state. The data (see _data.py) and
// Plotly are in the same file.
const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const state = { purgatory: "", kind: "", run: -1, from: 0, to: data.window.count, timeout: null };
const whole = () => state.from === 0 && state.to === data.window.count;

// -- what people read

const wholeNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 0 }),
  threeDigits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const count = (value) => (value == null ? "" : wholeNumber.format(Math.round(value)));
const digits = (value) => threeDigits.format(Number(value.toPrecision(3)));
const share = (value) => (value == null ? "" : `${digits(value * 100)} %`);
function seconds(value) {
  if (value == null) return "";
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${digits(value * 1e6)} µs`;
  return value < 1 ? `${digits(value * 1e3)} ms` : `${digits(value)} s`;
}
const instant = (ms) =>
  ms == null ? "" : new Date(ms).toISOString().replace("T", " ").replace(/\.000Z$|Z$/, "");
const at = (place) => data.window.start + place * data.window.width;
const text = (value) => {
  const span = document.createElement("span");
  span.textContent = value;
  return span.innerHTML;
};

// -- the choices

const isGroup = (group) =>
  (!state.purgatory || data.groups[group][0] === state.purgatory) &&
  (!state.kind || data.groups[group][1] === state.kind);
const isRun = (run) => state.run < 0 || run === state.run;
const isAll = () => !state.kind && state.run < 0;
const isKey = (key) => !state.purgatory || key.purgatory === state.purgatory;

/** The rows of a table of columns that are chosen, each as its place. */
function* chosen(columns) {
  for (let row = 0; row < (columns.group || []).length; row++)
    if (isGroup(columns.group[row]) && isRun(columns.run[row])) yield row;
}

/** Whether any of the spans from a place on is in the chosen time. */
function inTime(place, spans = 1) {
  return (place + spans > state.from && place < state.to) || whole();
}

/** How operations ended: for each group, in the chosen time. */
function endsOfGroups() {
  const sums = new Map(),
    t = data.timeline;
  for (const row of chosen(t)) {
    if (!inTime(t.place[row])) continue;
    const sum = sums.get(t.group[row]) || {
      started: 0,
      completed: 0,
      expired: 0,
      cancelled: 0,
      missed: 0,
    };
    for (const name in sum) sum[name] += t[name][row];
    sums.set(t.group[row], sum);
  }
  return sums;
}

/** Whether operations that began in joined spans, number `place`, began in the chosen time. */
const began = (place, width) =>
  whole() || (place * width < state.to && (place + 1) * width > state.from);

/** The chosen time, as far as waits follow it. */
function span(columns) {
  const { width } = columns;
  return [
    Math.floor(state.from / width) * width,
    Math.min(Math.ceil(state.to / width) * width, data.window.count),
  ];
}

/** Counts by step (see _data.py), of the chosen operations that began in the chosen time. */
function steps(columns, names, isMine = () => true) {
  const sums = new Map();
  for (const row of chosen(columns)) {
    if (!isMine(columns.group[row]) || !began(columns.place[row], columns.width)) continue;
    const cells = columns.cells[row];
    for (let cell = 0; cell < cells.length; cell += names.length + 1) {
      const sum = sums.get(cells[cell]) || Object.fromEntries(names.map((name) => [name, 0]));
      names.forEach((name, number) => (sum[name] += cells[cell + 1 + number]));
      sums.set(cells[cell], sum);
    }
  }
  return sums;
}

const waitSteps = (isMine) => steps(data.waits, ["completed", "others", "open"], isMine);

/** Where a step begins, in seconds. */
function edgeOf(step) {
  const count = data.edges.length;
  return Number(`${data.edges[((step % count) + count) % count]}e${Math.floor(step / count) - 1}`);
}

/** Whether a group completed only by tries at deadlines, which show nothing about a timeout. */
const onlyMissed = ({ completed, missed_triggers }) =>
  completed > 0 && completed <= missed_triggers;

/** The curve of a group: exact for the whole time, otherwise by steps. */
function curve(group) {
  if (onlyMissed(data.timeouts[group])) return null;
  const found = data.curves.filter((each) => each.group === group);
  if (!found.length) return null;
  if (!whole()) return curveInTime(group);
  return (
    found.find((each) => each.run === state.run) ||
    (found.length === 1 || state.run < 0 ? found.find((each) => each.run < 0) : null)
  );
}

const curves = new Map();

function curveInTime(group) {
  const name = [group, state.run, state.from, state.to].join();
  if (curves.size > 200) curves.clear();
  if (!curves.has(name)) curves.set(name, kaplanMeier(waitSteps((each) => each === group)));
  return curves.get(name);
}

/** As rows.sql does; the rate falls at the ends of steps. */
function kaplanMeier(sums) {
  if (!sums.size) return null;
  const points = { timeout_s: [], at_risk: [], expiry_rate: [], standard_error: [] };
  let atRisk = [...sums.values()].reduce(
      (all, sum) => all + sum.completed + sum.others + sum.open,
      0,
    ),
    rate = 1,
    variance = 0;
  for (const [step, sum] of [...sums].sort((a, b) => a[0] - b[0])) {
    const left = atRisk - sum.completed;
    rate *= left / atRisk;
    if (left) variance += sum.completed / (atRisk * left);
    points.timeout_s.push(edgeOf(step + 1));
    points.at_risk.push(atRisk);
    points.expiry_rate.push(rate);
    points.standard_error.push(left ? rate * Math.sqrt(variance) : null);
    atRisk -= sum.completed + sum.others + sum.open;
  }
  return points;
}

/** The least timeout with at most this share of expiries; null if the data does not show it. */
function timeoutFor(points, share) {
  const place = points ? points.expiry_rate.findIndex((rate) => rate <= share + 1e-12) : -1;
  return place < 0 ? null : points.timeout_s[place];
}

/** The share of expiries at a timeout, and its 95 % interval. Beyond the longest wait it is 0 if no
 * operation of the group has expired or is still open, and otherwise null: not answerable. */
function expiryRate(group, points, timeout) {
  if (!points || !points.timeout_s.length) return null;
  let low = 0,
    high = points.timeout_s.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    points.timeout_s[middle] <= timeout ? (low = middle + 1) : (high = middle);
  }
  if (low === points.timeout_s.length && timeout > points.timeout_s[low - 1]) {
    const { expired, without_end } = data.timeouts[group];
    const isZero = points.expiry_rate[low - 1] === 0 || (expired === 0 && without_end === 0);
    return isZero ? [0, 0, 0] : null;
  }
  if (low === 0) return [1, 1, 1];
  return interval(points.expiry_rate[low - 1], points.standard_error[low - 1]);
}

/** By the transform log(-log), which stays between 0 and 1. */
function interval(rate, error) {
  if (!error || rate <= 0 || rate >= 1) return [rate, rate, rate];
  const width = (1.96 * error) / (rate * Math.abs(Math.log(rate)));
  return [rate, rate ** Math.exp(width), rate ** Math.exp(-width)];
}

// -- tables

function table(place, columns, rows) {
  const box = document.querySelector(`#${place} .table`);
  if (!rows.length) {
    box.innerHTML = "<p>Nothing in this choice.</p>";
    return;
  }
  const sorted = box.dataset.by
    ? [...rows].sort(
        (a, b) =>
          compare(columns[box.dataset.by].value(a), columns[box.dataset.by].value(b)) *
          (box.dataset.down === "yes" ? -1 : 1),
      )
    : rows;
  const head = columns.map(
    (column, number) =>
      `<th tabindex="0" data-number="${number}" class="${column.text ? "text" : ""}">${column.name}</th>`,
  );
  const body = sorted.map(
    (row) =>
      "<tr>" +
      columns
        .map((column) => {
          const value = column.value(row);
          return `<td class="${column.text || ""}" data-name="${column.name}">${text((column.show || ((each) => (each == null ? "" : each)))(value))}</td>`;
        })
        .join("") +
      "</tr>",
  );
  box.innerHTML = `<table><thead><tr>${head.join("")}</tr></thead><tbody>${body.join("")}</tbody></table>`;
  for (const cell of box.querySelectorAll("th"))
    cell.onclick = cell.onkeydown = (event) => {
      if (event.key && event.key !== "Enter") return;
      box.dataset.down =
        box.dataset.by === cell.dataset.number && box.dataset.down === "yes" ? "no" : "yes";
      box.dataset.by = cell.dataset.number;
      table(place, columns, rows);
    };
}

function compare(a, b) {
  if (a == null || b == null) return (a == null) - (b == null);
  return a < b ? -1 : a > b ? 1 : 0;
}

/** The name of a column that does not follow the chosen time. */
const ofAll = (name) => (whole() ? name : `${name}, whole time`);
const column = (name, value, show, kind) => ({ name, value, show, text: kind });
const word = (name, value, kind = "text") => column(name, value, null, kind);

const orNot = (show) => (value) => (value == null ? "not answerable" : show(value));
const answered = (rate, exact) => (row) =>
  whole() && state.run < 0 ? row[exact] : timeoutFor(row.curve, rate);

function tables() {
  const ends = endsOfGroups();
  const kinds = [...ends].map(([group, sum]) => ({
    ...data.timeouts[group],
    ...sum,
    group,
    curve: curve(group),
  }));
  table(
    "timeouts",
    [
      word("purgatory", (row) => row.purgatory),
      word("kind", (row) => row.kind),
      column("started", (row) => row.started, count),
      column("completed", (row) => row.completed, count),
      column("expired", (row) => row.expired, count),
      column("cancelled", (row) => row.cancelled, count),
      column(
        "expired, %",
        (row) => row.expired / (row.completed + row.expired + row.cancelled || NaN),
        (value) => (value >= 0 ? share(value) : ""),
      ),
      column("missed", (row) => row.missed, count),
      ...(data.are_apart
        ? [word(ofAll("timeouts"), (row) => row.timeouts, "text long")]
        : [
            column(ofAll("shortest timeout"), (row) => row.timeout_min_s, seconds),
            column(ofAll("longest timeout"), (row) => row.timeout_max_s, seconds),
          ]),
      column("timeout for 1 %", answered(0.01, "timeout_1_percent"), orNot(seconds)),
      column("timeout for 0.1 %", answered(0.001, "timeout_01_percent"), orNot(seconds)),
      column(
        `would expire with ${seconds(state.timeout)}`,
        (row) => (expiryRate(row.group, row.curve, state.timeout) || [null])[0],
        orNot(share),
      ),
    ],
    kinds,
  );
  table(
    "keys",
    [
      word("purgatory", (row) => row.purgatory),
      word("key", (row) => row.key),
      column(ofAll("operations"), (row) => row.operations, count),
      column("tried", (row) => row.inTime.tried, count),
      column("completed", (row) => row.inTime.completed, count),
      column("in vain", (row) => Math.max(row.inTime.tried - row.inTime.completed, 0), count),
      column(
        "in vain, %",
        (row) => (row.inTime.tried ? Math.max(1 - row.inTime.completed / row.inTime.tried, 0) : null),
        share,
      ),
      column(ofAll("missed triggers"), (row) => row.missed_triggers, count),
    ],
    data.keys
      .filter(isKey)
      .map((key) => ({
        ...key,
        inTime: key.times.place ? within(key.times, ["tried", "completed"], key.spans) : key,
      }))
      .filter((row) => whole() || row.inTime.tried),
  );
  table(
    "missed",
    [
      word("purgatory", (row) => row.purgatory),
      word("key", (row) => row.key),
      column("missed", (row) => row.inTime, count),
      column(ofAll("operations"), (row) => row.operations, count),
      column("first", (row) => row.first, instant),
      column("last", (row) => row.last, instant),
    ],
    data.missed
      .filter(isKey)
      .map((key) => {
        const places = (key.times.place || []).filter((place) => inTime(place));
        return {
          ...key,
          inTime: within(key.times, ["missed"]).missed,
          first: places.length ? at(Math.max(places[0], 0)) : null,
          last: places.length ? at(Math.max(places[places.length - 1], 0)) : null,
        };
      })
      .filter((row) => row.inTime),
  );
  table(
    "minutes",
    [
      column("minute, UTC", (row) => row.minute, instant, "text"),
      word("purgatory", (row) => row.purgatory),
      word("kind", (row) => row.kind),
      column("started", (row) => row.started, count),
      column("completed", (row) => row.completed, count),
      column("expired", (row) => row.expired, count),
      column("expired, %", (row) => row.expiry_rate, share),
      column("wait, median", (row) => row.wait_p50, seconds),
      column("99 %", (row) => row.wait_p99, seconds),
      column("longest", (row) => row.wait_max, seconds),
    ],
    data.minutes.filter(
      (row) =>
        row.expired &&
        (!state.purgatory || row.purgatory === state.purgatory) &&
        (!state.kind || row.kind === state.kind) &&
        (whole() || (row.minute + 60000 > at(state.from) && row.minute < at(state.to))),
    ),
  );
  table(
    "read",
    [
      word("folder", (row) => row.folder),
      word("what", (row) => row.what),
      column("count", (row) => row.count, count),
      word("reason", (row) => row.reason, "text long"),
    ],
    data.read,
  );
  tiles(ends);
}

function within(times, names, spans = 1) {
  const sums = Object.fromEntries(names.map((name) => [name, 0]));
  (times.place || []).forEach((place, row) => {
    if (inTime(place, spans)) for (const name of names) sums[name] += times[name][row];
  });
  return sums;
}

function tiles(ends) {
  const sum = { started: 0, completed: 0, expired: 0, cancelled: 0, missed: 0 };
  for (const each of ends.values()) for (const name in sum) sum[name] += each[name];
  const ended = sum.completed + sum.expired + sum.cancelled,
    pending = pendingLine().filter((point) => inTime(point.place));
  const shown = [
    ["started", count(sum.started)],
    ["completed", count(sum.completed)],
    ["cancelled", count(sum.cancelled)],
    [ended ? `expired, ${share(sum.expired / ended)}` : "expired", count(sum.expired)],
    ["missed triggers", count(sum.missed)],
    [
      isAll() ? "most pending" : "most pending, at ends of spans",
      count(pending.reduce((most, point) => Math.max(most, point.most), 0)),
    ],
  ];
  by("tiles").innerHTML = shown
    .map(([name, value]) => `<div><b>${value}</b><span>${name}</span></div>`)
    .join("");
}

/** Pending operations: exact if all kinds and runs are shown, otherwise the rest after each span. */
function pendingLine() {
  if (isAll())
    return Object.entries(data.pending)
      .filter(([name]) => !state.purgatory || name === state.purgatory)
      .flatMap(([name, columns]) =>
        columns.place.map((place, row) => ({
          name,
          place,
          most: columns.most[row],
          mean: columns.mean[row],
        })),
      );
  const changes = new Array(data.window.count + 2).fill(0),
    t = data.timeline;
  for (const row of chosen(t)) changes[t.place[row] + 1] += t.begun[row] - t.finished[row];
  let now = 0;
  return changes
    .map((change, place) => ({ name: "", place: place - 1, most: (now += change), mean: null }))
    .filter((point) => point.place >= 0 && point.place < data.window.count);
}
