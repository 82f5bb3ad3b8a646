// Choices of the user change the state, and then the page.

const reach = () => {
  const ends = data.curves.map((each) => each.timeout_s).filter((each) => each.length);
  const low = Math.min(...ends.map((each) => each[0])),
    timeouts = data.timeouts.map((each) => each.timeout_max_s),
    high = Math.max(...ends.map((each) => each[each.length - 1]), ...timeouts);
  return ends.length ? [Math.max(low, high / 1e6, 1e-6), Math.max(high, 2e-6)] : [1e-3, 1];
};
const [shortest, longest] = reach();

function setTimeoutTried(value) {
  state.timeout = Number(Math.min(Math.max(value, shortest), longest).toPrecision(3));
  by("timeout").value = (1000 * Math.log(state.timeout / shortest)) / Math.log(longest / shortest);
}

function timeoutMoved() {
  answer();
  tables();
  for (const id of ["waits", "survival"]) if (by(id).on) Plotly.relayout(id, { shapes: marks() });
}

function choices() {
  const fill = (id, names, values = names) =>
    by(id).replaceChildren(
      new Option("all", ""),
      ...names.map((name, place) => new Option(name, values[place])),
    );
  const mine = data.groups.filter((each) => !state.purgatory || each[0] === state.purgatory);
  fill("purgatory", [...new Set(data.groups.map((each) => each[0]))]);
  fill("kind", [...new Set(mine.map((each) => each[1]))]);
  fill("run", data.runs, [...data.runs.keys()]);
  by("runs").hidden = !data.runs.length;
  by("purgatory").value = state.purgatory;
  by("kind").value = state.kind;
  by("run").value = state.run < 0 ? "" : state.run;
}

function show() {
  by("whole").hidden = whole();
  by("range").textContent = `${instant(at(state.from))} to ${instant(at(state.to))} UTC`;
  answer();
  tables();
  pictures();
}

function choose(change) {
  Object.assign(state, change);
  if (state.kind && !data.groups.some((_, group) => isGroup(group))) state.kind = "";
  choices();
  show();
}

function zoomed(event) {
  if (event["xaxis.autorange"] || event["xaxis.range[0]"] === undefined) {
    if (event["xaxis.autorange"]) choose({ from: 0, to: data.window.count });
    return;
  }
  const place = (name) => {
    const [day, moment = "00:00"] = String(event[name]).split(/[ T]/);
    return (new Date(`${day}T${moment.slice(0, 12)}Z`) - data.window.start) / data.window.width;
  };
  const from = Math.max(0, Math.floor(place("xaxis.range[0]"))),
    to = Math.min(data.window.count, Math.ceil(place("xaxis.range[1]")));
  if (to > from && (from !== state.from || to !== state.to)) choose({ from, to });
}

function start() {
  const root = document.documentElement.style;
  by("theme").onclick = () => {
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    root.colorScheme = root.colorScheme ? "" : isDark ? "light" : "dark";
  };
  by("purgatory").onchange = (event) => choose({ purgatory: event.target.value });
  by("kind").onchange = (event) => choose({ kind: event.target.value });
  by("run").onchange = (event) =>
    choose({ run: event.target.value === "" ? -1 : Number(event.target.value) });
  by("whole").onclick = () => choose({ from: 0, to: data.window.count });
  by("timeout").oninput = (event) => {
    setTimeoutTried(shortest * (longest / shortest) ** (event.target.value / 1000));
    timeoutMoved();
  };
  for (const link of document.querySelectorAll(".findings a"))
    link.addEventListener("click", () =>
      choose({ purgatory: link.dataset.purgatory, kind: link.dataset.kind, run: -1 }),
    );
  // The shortest timeout of the group with the most expiries, or one in the middle.
  const typical = [...data.timeouts]
    .sort((a, b) => b.expiry_rate - a.expiry_rate)
    .map((row) => row.timeout_min_s)
    .find((value) => value > 0);
  for (const [id, rows] of [
    ["late", data.lateness.cells],
    ["keys", data.keys],
    ["missed", data.missed],
    ["minutes", data.minutes.filter((row) => row.expired)],
  ])
    by(id).hidden = !rows?.length;
  setTimeoutTried(typical || Math.sqrt(shortest * longest));
  choices();
  show();
  // On paper the pictures have its width.
  const size = (widths) => {
    for (const each of document.querySelectorAll(".js-plotly-plot"))
      Plotly.relayout(each, widths(each.id));
  };
  addEventListener("beforeprint", () =>
    size((id) => ({ width: id === "waits" || id === "survival" ? 345 : 700 })),
  );
  addEventListener("afterprint", () => size(() => ({ width: null, autosize: true })));
}

// Plotly is compressed, which makes the page two thirds smaller. Unpacking it is faster than loading
// the difference.
async function unpacked() {
  const packed = await fetch(`data:application/gzip;base64,${by("plotly").textContent}`);
  const script = await new Response(
    packed.body.pipeThrough(new DecompressionStream("gzip")),
  ).blob();
  const element = document.createElement("script");
  element.src = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  await new Promise((done, failed) => {
    element.onload = done;
    element.onerror = failed;
    document.head.append(element);
  });
}

// Text and tables are there while it is unpacked.
const unpacking = unpacked();
start();
unpacking.then(() => {
  pictures();
  document.documentElement.dataset.ready = "yes";
});
