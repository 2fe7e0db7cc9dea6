// Many updates in a row: the weight's way in each form of keeping it.

const PATHS = { height: 250, left: 76, right: 146, top: 12, bottom: 28 };
const WAY_LABELS = { nearest: "nearest", stochastic: "random", master: "master" };

function pathChart(choices, choose) {
  let view = null;
  const svg = shape("svg", { class: "mpt-paths", height: PATHS.height, role: "img" });
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: 0,
    max: choices.steps,
    step: 1,
    "aria-label": "Updates applied",
    oninput: () => choose({ n: Number(input.value) }),
  });
  const said = element("p", { class: "mpt-caption" });
  const chart = element("div", {}, svg);
  const node = element(
    "div",
    { class: "mpt-closeup" },
    element("div", { class: "mpt-heading" }, `${count(choices.steps)} updates in a row`),
    chart,
    element("div", { class: "mpt-rail mpt-path-track" }, input),
    said,
  );
  const paint = () => {
    const width = chart.clientWidth;
    if (!view || !width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${PATHS.height}`);
    svg.setAttribute("aria-label", `The weight against the number of updates. ${standing(view)}`);
    svg.replaceChildren(...drawPaths(view, choices, width));
  };
  const stepAt = (event) => {
    const { left } = chart.getBoundingClientRect();
    const part =
      (event.clientX - left - PATHS.left) / (chart.clientWidth - PATHS.left - PATHS.right);
    return Math.round(between(part, 0, 1) * choices.steps);
  };
  onDrag(svg, (event) => choose({ n: stepAt(event) }));
  const observer = new ResizeObserver(paint);
  observer.observe(chart);
  const update = (next) => {
    view = next;
    input.value = view.n;
    input.setAttribute("aria-valuetext", `${count(view.n)} updates`);
    said.textContent = standing(view);
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

function drawPaths(view, choices, width) {
  const { fmt, way, n, start, update, paths, weights } = view;
  const exactEnd = start + choices.steps * update;
  const drawn = choices.ways.flatMap((name) =>
    paths[name]
      .slice(0, name === way ? undefined : 1)
      .map((path) => ({ name, weights: path.weights })),
  );
  let [low, high] = [Math.min(start, exactEnd), Math.max(start, exactEnd)];
  for (const { weights } of drawn)
    for (const w of weights) [low, high] = [Math.min(low, w), Math.max(high, w)];
  const [right, bottom] = [width - PATHS.right, PATHS.height - PATHS.bottom];
  const x = (step) => PATHS.left + (step / choices.steps) * (right - PATHS.left);
  const y = (weight) => bottom - ((weight - low) / (high - low)) * (bottom - PATHS.top);
  const line = ({ name, weights }) => {
    const strength = name === way ? "mpt-chosen" : "mpt-other";
    const many = name === way && way === "stochastic" ? " mpt-one-of-many" : "";
    const steps = weights.map((w, i) =>
      i && w === weights[i - 1] ? "" : `${i ? "V" : `M${x(0).toFixed(1)} `}${y(w).toFixed(1)}`,
    );
    const d =
      steps.map((move, i) => (move && i ? `H${x(i).toFixed(1)}${move}` : move)).join("") +
      `H${x(choices.steps).toFixed(1)}`;
    return shape("path", { class: `mpt-way mpt-way-${name} ${strength}${many}`, d });
  };
  const chosenLast = [...drawn].sort((a, b) => (a.name === way) - (b.name === way));
  return [
    ...drawFormatLines(fmt, low, high, y, right),
    ...niceTicks(low, high).flatMap((tick) => [
      shape("line", {
        class: "mpt-tick",
        x1: PATHS.left - 5,
        x2: PATHS.left,
        y1: y(tick),
        y2: y(tick),
      }),
      shape(
        "text",
        { class: "mpt-tick-label", x: PATHS.left - 8, y: y(tick) + 4, "text-anchor": "end" },
        shortNumber(tick, 8),
      ),
    ]),
    ...[0, 0.25, 0.5, 0.75, 1].map((part) =>
      shape(
        "text",
        {
          class: "mpt-tick-label",
          x: x(part * choices.steps),
          y: bottom + 18,
          "text-anchor": "middle",
        },
        count(part * choices.steps),
      ),
    ),
    shape("text", { class: "mpt-tick-label", x: right + 24, y: bottom + 18 }, "updates"),
    shape("line", {
      class: "mpt-exact",
      x1: x(0),
      y1: y(start),
      x2: x(choices.steps),
      y2: y(exactEnd),
    }),
    ...chosenLast.map(line),
    ...drawPathEnds(view, choices, exactEnd, y, right, digitsFor(low, high)),
    shape("line", { class: "mpt-position", x1: x(n), x2: x(n), y1: PATHS.top, y2: bottom }),
    ...weights.map((w) =>
      shape("circle", { class: `mpt-way-now mpt-way-${way}`, cx: x(n), cy: y(w), r: 5 }),
    ),
  ];
}

// Every number of the format as a line, while they are few enough to be told apart.
function drawFormatLines(fmt, low, high, y, right) {
  const points = [land(low, fmt).below];
  while (points.at(-1) < high && points.length <= 24)
    points.push(neighbours(points.at(-1), fmt)[1]);
  if (points.at(-1) < high) return [];
  return points
    .filter((point) => point >= low && point <= high)
    .map((point) =>
      shape("line", {
        class: "mpt-gridline",
        x1: PATHS.left,
        x2: right,
        y1: y(point),
        y2: y(point),
      }),
    );
}

function niceTicks(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return ticks;
}

// Digits that tell numbers apart which lie between these.
function digitsFor(low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  return between(Math.ceil(Math.log10(size / (high - low))) + 2, 4, 8);
}

// Names and last weights at the right, pushed apart where they would overlap.
function drawPathEnds({ way, paths }, choices, exactEnd, y, right, digits) {
  const ends = choices.ways.map((name) => {
    const runs = name === way ? paths[name] : paths[name].slice(0, 1);
    const end = runs.reduce((total, { weights }) => total + weights.at(-1), 0) / runs.length;
    return {
      name,
      end,
      text: `${WAY_LABELS[name]} ${runs.length > 1 ? "∅ " : ""}${shortNumber(end, digits)}`,
    };
  });
  const placed = [
    ...ends,
    { name: "", end: exactEnd, text: `exact ${shortNumber(exactEnd, digits)}` },
  ]
    .map((end) => ({ ...end, at: y(end.end) + 4 }))
    .sort((a, b) => b.at - a.at);
  placed.forEach((label, i) => {
    if (i) label.at = Math.min(label.at, placed[i - 1].at - 14);
  });
  const lift = Math.min(...placed.map(({ at }) => at)) - PATHS.top - 6;
  if (lift < 0) {
    placed.reverse().forEach((label, i, all) => {
      label.at = Math.max(label.at, i ? all[i - 1].at + 14 : PATHS.top + 6);
    });
  }
  return placed.map(({ name, text, at }) =>
    shape(
      "text",
      { class: `mpt-tick-label mpt-end${name === way ? " mpt-strong" : ""}`, x: right + 8, y: at },
      name ? shape("tspan", { class: `mpt-way-key mpt-way-${name}` }, "■ ") : "╌ ",
      text,
    ),
  );
}
