// Draws each picture from the one state. Text, lines and grounds have their colours from page.css.

const ink = {
  completed: "#27a882",
  expired: "#e39a35",
  cancelled: "#8b94a3",
  missed: "#e0506a",
  pending: "#4a86e0",
  faint: "#8a9099",
};
const inks = [ink.pending, ink.expired, ink.completed, ink.missed, "#a06cd5", "#4fb3c4"];
const config = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const clear = { paper_bgcolor: "transparent", plot_bgcolor: "transparent" };

function draw(id, traces, more) {
  const layout = {
    ...clear,
    font: { size: 12, family: "system-ui, sans-serif" },
    margin: { l: 55, r: 12, t: 34, b: 40 },
    height: 300,
    hovermode: "x unified",
    legend: { orientation: "h", yanchor: "bottom", y: 1.02, x: 0, font: { size: 11 } },
    ...more,
    xaxis: { automargin: true, ...more.xaxis },
    yaxis: { automargin: true, rangemode: "tozero", ...more.yaxis },
  };
  // Plotly takes names for markup, so that one with <a href> would be a link in the legend.
  const escaped = traces.map((trace) => ({ ...trace, name: text(trace.name ?? "") }));
  Plotly.react(id, escaped, layout, config);
}
const time = (place) => new Date(at(place)).toISOString().slice(0, 23);
const timeAxis = () => ({ type: "date", range: [time(state.from), time(state.to)] });
const spans = () => Array.from({ length: data.window.count }, (_, place) => time(place + 0.5));
const nothing = { xaxis: { visible: false }, yaxis: { visible: false }, height: 120 };
const empty = (id, why) =>
  draw(id, [], { ...nothing, annotations: [{ text: why, showarrow: false }] });

function ends() {
  const names = ["completed", "expired", "cancelled"],
    t = data.timeline;
  const sums = Object.fromEntries(
    names.map((name) => [name, new Array(data.window.count).fill(0)]),
  );
  for (const row of chosen(t))
    if (t.place[row] >= 0 && t.place[row] < data.window.count)
      for (const name of names) sums[name][t.place[row]] += t[name][row];
  draw(
    "ends",
    names.map((name) => ({
      type: "bar",
      marker: { color: ink[name], line: { width: 0 } },
      name,
      x: spans(),
      y: sums[name],
      hovertemplate: "%{y:,}",
    })),
    {
      barmode: "stack",
      bargap: 0,
      xaxis: timeAxis(),
      yaxis: { title: { text: `ended in ${seconds(data.window.width / 1000)}` }, fixedrange: true },
    },
  );
}

function pending() {
  const lines = new Map();
  for (const point of pendingLine()) {
    if (!lines.has(point.name))
      lines.set(
        point.name,
        new Array(data.window.count).fill(null).map(() => ({ most: 0, mean: isAll() ? 0 : null })),
      );
    if (point.place >= 0 && point.place < data.window.count)
      lines.get(point.name)[point.place] = point;
  }
  const traces = [...lines]
    .slice(0, 8)
    .flatMap(([name, points], number) =>
      ["most", "mean"].map((what) => ({
        name: isAll() ? `${name}: ${what}` : "at the end of each span",
        x: spans(),
        y: points.map((point) => point[what]),
        mode: "lines",
        line: {
          color: inks[number % inks.length],
          width: what === "most" ? 1.8 : 1,
          dash: what === "most" ? "solid" : "dot",
          shape: "hvh",
        },
        hovertemplate: what === "most" ? "%{y:,}" : "%{y:,.3~r}",
      })),
    )
    .filter((trace) => trace.y.some((value) => value != null));
  draw("pending", traces, {
    height: 230,
    xaxis: timeAxis(),
    yaxis: { title: { text: "pending" }, fixedrange: true },
  });
}

const durations = (title) => ({
  type: "log",
  title: { text: title },
  dtick: 1,
  ticksuffix: "s",
  exponentformat: "SI",
  hoverformat: ".3~s",
});

/** The sums of each step, from the one before the first to the one after the last. */
function allSteps(sums, names) {
  if (![...sums.values()].some((sum) => names.some((name) => sum[name]))) return null;
  const places = [...sums.keys()],
    first = Math.min(...places) - 1,
    last = Math.max(...places) + 1;
  const all = Array.from({ length: last - first + 1 }, (_, number) => first + number);
  return {
    x: all.map((step) => Math.sqrt(edgeOf(step) * edgeOf(step + 1))),
    ...Object.fromEntries(
      names.map((name) => [name, all.map((step) => (sums.get(step) || {})[name] || 0)]),
    ),
  };
}

function histogram(id, found, names, title) {
  if (!found)
    return empty(
      id,
      id === "lateness"
        ? "Nothing expired whose deadline is known."
        : "Nothing ended whose start is known.",
    );
  draw(
    id,
    Object.entries(names).map(([name, label]) => ({
      name: label,
      x: found.x,
      y: found[name],
      mode: "lines",
      fill: "tozeroy",
      line: {
        shape: "hvh",
        width: 1.4,
        color: ink[name] || ink.expired,
      },
      hovertemplate: "%{y:,}",
    })),
    {
      xaxis: durations(title),
      yaxis: { title: { text: "operations" } },
      height: id === "lateness" ? 220 : 300,
      shapes: id === "waits" ? marks() : [],
    },
  );
}

const theirs = () => [
  ...new Set(
    data.timeouts
      .filter((_, group) => isGroup(group))
      .flatMap((row) => [row.timeout_min_s, row.timeout_max_s])
      .filter((value) => value > 0),
  ),
];

/** The timeouts of operations, and the timeout that is tried. */
function marks() {
  const line = (x, dash, name, width) => ({
    type: "line",
    x0: x,
    x1: x,
    yref: "paper",
    y0: 0,
    y1: 1,
    line: { color: ink[name], dash, width },
  });
  return [
    ...theirs()
      .slice(0, 12)
      .map((value) => line(value, "dot", "faint", 1)),
    line(state.timeout, "solid", "missed", 1.5),
  ];
}

function survival() {
  const groups = data.groups
    .map((_, group) => group)
    .filter((group) => isGroup(group) && curve(group))
    .slice(0, 6);
  if (!groups.length) return empty("survival", "No operation with a known start.");
  const traces = groups.flatMap((group, number) => {
    const points = curve(group),
      bounds = points.expiry_rate.map((rate, row) => interval(rate, points.standard_error[row]));
    const line = {
      x: points.timeout_s,
      mode: "lines",
      line: { shape: "hv", width: 0, color: inks[number] },
      hoverinfo: "skip",
      showlegend: false,
    };
    const band =
      groups.length > 1
        ? []
        : [
            { ...line, y: bounds.map((each) => each[1]) },
            {
              ...line,
              y: bounds.map((each) => each[2]),
              fill: "tonexty",
              fillcolor: `${inks[number]}38`,
            },
          ];
    const name =
      state.purgatory || new Set(data.groups.map((each) => each[0])).size === 1
        ? data.groups[group][1]
        : data.groups[group].join(": ");
    return [
      ...band,
      {
        ...line,
        y: points.expiry_rate,
        name,
        showlegend: true,
        hoverinfo: "all",
        line: { ...line.line, width: 1.8 },
        hovertemplate: "%{y:.3~p}",
      },
    ];
  });
  draw("survival", traces, {
    xaxis: durations("timeout"),
    yaxis: { title: { text: "would expire" }, tickformat: ".3~p", range: [0, 1.02] },
    shapes: marks(),
  });
}

function heat(id, keys, name, title) {
  const rows = keys
    .filter(
      (key) => isKey(key) && (key.times.place || []).some((place) => inTime(place, key.spans)),
    )
    .slice(0, 20)
    .reverse();
  by(id).hidden = !rows.length; // the table says so
  if (!rows.length) return;
  const label = (key) =>
    `${key.key.length > 28 ? key.key.slice(0, 27) + "…" : key.key}${state.purgatory ? "" : ` (${key.purgatory})`}`;
  // A cell is at least as long as the unit of counting: checks are counted by the second.
  const unit = Math.max(data.window.width, rows[0].spans > 1 ? 1000 : 0);
  const first = Math.floor(data.window.start / unit) * unit;
  const cell = (place) => Math.floor((at(place) - first) / unit + 1e-6);
  const count = cell(data.window.count - 1) + 1;
  const z = rows.map((key) => {
    const cells = new Array(count).fill(null);
    key.times.place.forEach((place, row) => {
      if (place >= 0 && place < data.window.count && key.times[name][row])
        cells[cell(place)] = (cells[cell(place)] || 0) + key.times[name][row];
    });
    return cells;
  });
  const middle = (number) =>
    (first + (number + 0.5) * unit - data.window.start) / data.window.width;
  const x = Array.from({ length: count }, (_, number) => time(middle(number)));
  draw(
    id,
    [
      {
        type: "heatmap",
        x,
        y: rows.map((_, row) => row),
        z,
        text: rows.map((key) => x.map(() => text(label(key)))),
        ygap: 1,
        colorscale: [
          [0, `${ink[name] || ink.pending}00`],
          [0.15, `${ink[name] || ink.pending}60`],
          [1, ink[name] || ink.pending],
        ],
        zmin: 0,
        colorbar: {
          thickness: 10,
          title: { text: `${title} in ${seconds(unit / 1000)}`, side: "right" },
        },
        hovertemplate: `%{text}<br>%{x}<br>%{z:,} ${title} in ${seconds(unit / 1000)}<extra></extra>`,
      },
    ],
    {
      height: 90 + 19 * rows.length,
      hovermode: "closest",
      showlegend: false,
      margin: { l: 10, r: 10, t: 10, b: 36 },
      xaxis: timeAxis(),
      yaxis: {
        tickvals: rows.map((_, row) => row),
        ticktext: rows.map((key) => text(label(key))),
        fixedrange: true,
        showgrid: false,
        rangemode: "normal",
      },
    },
  );
}

const drawn = {
  ends,
  pending,
  survival,
  waits: () =>
    histogram(
      "waits",
      allSteps(waitSteps(), ["completed", "others"]),
      { completed: "completed", others: "expired or cancelled" },
      "wait",
    ),
  lateness: () =>
    histogram(
      "lateness",
      allSteps(steps(data.lateness, ["expired"]), ["expired"]),
      { expired: "expired" },
      "after the deadline",
    ),
  heat: () => heat("heat", data.keys, "tried", "tried"),
  when: () => heat("when", data.missed, "missed", "missed"),
};

/** Draws the pictures, one in each frame, so that the first is there before the last is made. */
function pictures() {
  const ids = Object.keys(drawn).filter((id) => !by(id).closest("section").hidden);
  const next = () => {
    if (!window.Plotly || !ids.length) return;
    const id = ids.shift(),
      isFirst = !by(id).on;
    by(id).hidden = false;
    drawn[id]();
    if (isFirst && by(id).on) listen(id);
    waiting = requestAnimationFrame(() => setTimeout(next));
  };
  cancelAnimationFrame(waiting);
  next();
}
let waiting = 0;

function listen(id) {
  if (["waits", "survival"].includes(id))
    by(id).on("plotly_click", (event) => {
      setTimeoutTried(event.points[0].x);
      timeoutMoved();
    });
  else if (id !== "lateness") by(id).on("plotly_relayout", zoomed);
}

function answer() {
  const groups = data.groups
    .map((_, group) => group)
    .filter((group) => isGroup(group) && (curve(group) || onlyMissed(data.timeouts[group])));
  by("chosen").textContent = seconds(state.timeout);
  for (const [section, columns] of [
    ["timeouts", data.waits],
    ["late", data.lateness],
  ]) {
    const [from, to] = span(columns).map((place) => instant(at(place)));
    document.querySelector(`#${section} .covers`).textContent = whole()
      ? ""
      : `Of the operations that began from ${from} to ${to} UTC. Waits are rounded up, to 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8 or 10.`;
  }
  by("answer").innerHTML =
    groups
      .slice(0, 4)
      .map((group) => {
        const points = curve(group),
          rate = expiryRate(group, points, state.timeout),
          name = `<b>${text(data.groups[group][1])}</b>`;
        if (!points)
          return `${name}: not answerable, every one completed by the try at its deadline`;
        if (!rate)
          return `${name}: not answerable, no operation waited longer than ${seconds(points.timeout_s[points.timeout_s.length - 1])}`;
        return `${name}: ${share(rate[0])} would expire (95 %: ${share(rate[1])} to ${share(rate[2])})`;
      })
      .join("; ") + (groups.length > 4 ? "; the table has the others." : ".");
}
