// The scaler simulator's drawing: the scale on its way below the edge where FP16 overflows.

const SCALES = { height: 320, left: 52, right: 18, top: 14, bottom: 30 };

// Rows of the axis below the smallest power of two, for a scale of 0.
const ZERO_GAP = 24;

function scaleChart(choices, choose) {
  let view = null;
  const svg = shape("svg", { class: "mpt-scales", height: SCALES.height, role: "img" });
  const node = element("div", {}, svg);
  const paint = () => {
    const width = node.clientWidth;
    if (!view || !width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${SCALES.height}`);
    svg.setAttribute(
      "aria-label",
      `Loss scale against training step, on a log scale. ${summary(view)}`,
    );
    svg.replaceChildren(...drawScales(view, width));
  };
  const stepAt = (event) => {
    const { left } = node.getBoundingClientRect();
    const part =
      (event.clientX - left - SCALES.left) / (node.clientWidth - SCALES.left - SCALES.right);
    return Math.round(between(part, 0, 1) * (choices.gradients.length - 1));
  };
  onDrag(svg, (event) => {
    event.preventDefault();
    choose({ step: stepAt(event) });
  });
  const observer = new ResizeObserver(paint);
  observer.observe(node);
  const update = (next) => {
    view = next;
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

// The edges, as log2 of the scale: from where a step overflows, and up to where nothing is left of it.
function edgesOf({ steps, choices, spikes }) {
  const spiked = new Set(spikes);
  return steps.map((_, i) => {
    const gradient = choices.gradients[i] * (spiked.has(i) ? choices.spike : 1);
    return {
      overflow: Math.log2(choices.overflow_threshold / gradient),
      flushed: Math.log2(choices.underflow_threshold / gradient),
    };
  });
}

// From steps and scales to pixels.
function scalesToPixels({ steps, finalScale }, edges, width) {
  const logs = [...steps.map(({ scale }) => scale), finalScale]
    .filter((scale) => scale > 0)
    .map(Math.log2);
  const ends = [...logs, ...edges.map(({ overflow }) => overflow)];
  const [low, high] = [Math.min(...ends) - 2, Math.max(...ends) + 2];
  const touchesZero = steps.some(({ scale }) => scale === 0);
  const [right, floor] = [width - SCALES.right, SCALES.height - SCALES.bottom];
  const bottom = touchesZero ? floor - ZERO_GAP : floor;
  const yOf = (log) =>
    bottom - ((between(log, low, high) - low) / (high - low)) * (bottom - SCALES.top);
  return {
    low,
    high,
    right,
    bottom,
    floor,
    touchesZero,
    yOf,
    x: (step) => SCALES.left + (step / (steps.length - 1)) * (right - SCALES.left),
    y: (scale) => (scale > 0 ? yOf(Math.log2(scale)) : floor - 6),
  };
}

function drawScales(view, width) {
  const edges = edgesOf(view);
  const pixels = scalesToPixels(view, edges, width);
  return [
    ...drawZones(view, edges, pixels),
    ...drawScaleAxes(view, pixels),
    ...drawRuin(view, pixels),
    shape("path", { class: "mpt-scale", d: stairs(view, pixels) }),
    ...view.steps.flatMap((step, i) => drawStepMark(step, pixels.x(i), pixels.y(step.scale))),
    ...drawLooked(view, pixels),
  ];
}

function drawZones({ steps, nans }, edges, { x, yOf, low, high, bottom }) {
  const half = (x(1) - x(0)) / 2;
  const outline = (pick, to) => {
    const points = edges.map(
      (edge, i) =>
        `${(x(i) - half).toFixed(1)} ${yOf(edge[pick]).toFixed(1)}H${(x(i) + half).toFixed(1)}`,
    );
    return `M${x(0) - half} ${to}L${points.join("L")}V${to}Z`;
  };
  const zones = [
    shape("path", { class: "mpt-zone-infinite mpt-zone", d: outline("overflow", yOf(high)) }),
  ];
  if (edges.some(({ flushed }) => flushed > low))
    zones.push(
      shape("path", { class: "mpt-zone-flushed mpt-zone", d: outline("flushed", bottom) }),
    );
  const broken = nans.filter((i) => i >= 0 && i < steps.length);
  return [
    ...zones,
    ...broken.map((i) =>
      shape("rect", {
        class: "mpt-zone-infinite mpt-zone",
        x: x(i) - half,
        width: 2 * half,
        y: yOf(high),
        height: bottom - yOf(high),
      }),
    ),
  ];
}

function drawScaleAxes({ steps }, { x, yOf, low, high, right, floor, touchesZero }) {
  const every = [1, 2, 4, 8, 16, 32, 64].find((n) => (high - low) / n <= 8);
  const powers = [];
  for (let n = Math.ceil(low / every) * every; n <= high; n += every) powers.push(n);
  const counts = [0, 0.25, 0.5, 0.75].map((part) => Math.round(part * steps.length));
  return [
    ...powers.flatMap((n) => [
      shape("line", { class: "mpt-gridline", x1: SCALES.left, x2: right, y1: yOf(n), y2: yOf(n) }),
      shape(
        "text",
        { class: "mpt-tick-label", x: SCALES.left - 8, y: yOf(n) + 4, "text-anchor": "end" },
        "2",
        shape("tspan", { dy: -4, "font-size": 9 }, signed(n)),
      ),
    ]),
    ...(touchesZero
      ? [
          shape(
            "text",
            {
              class: "mpt-tick-label mpt-strong",
              x: SCALES.left - 8,
              y: floor - 2,
              "text-anchor": "end",
            },
            "0",
          ),
        ]
      : []),
    ...counts.map((n) =>
      shape(
        "text",
        { class: "mpt-tick-label", x: x(n), y: floor + 18, "text-anchor": "middle" },
        n,
      ),
    ),
    shape(
      "text",
      { class: "mpt-tick-label", x: right, y: floor + 18, "text-anchor": "end" },
      `${steps.length} steps`,
    ),
  ];
}

// From the step that wrote NaN on there is nothing left to train.
function drawRuin({ ruinedAt }, { x, right, floor }) {
  if (ruinedAt === null) return [];
  const from = x(ruinedAt);
  const room = right - from > 120;
  return [
    shape("rect", {
      class: "mpt-ruin",
      x: from,
      width: Math.max(right - from, 2),
      y: SCALES.top,
      height: floor - SCALES.top,
    }),
    shape(
      "text",
      {
        class: "mpt-tick-label mpt-strong",
        x: room ? from + 6 : from - 6,
        y: SCALES.top + 16,
        "text-anchor": room ? "start" : "end",
      },
      "weights are NaN",
    ),
  ];
}

function stairs({ steps, finalScale }, { x, y, right }) {
  const moves = steps.map(({ scale }, i) => {
    if (i && scale === steps[i - 1].scale) return "";
    return i
      ? `H${x(i).toFixed(1)}V${y(scale).toFixed(1)}`
      : `M${x(0).toFixed(1)} ${y(scale).toFixed(1)}`;
  });
  return `${moves.join("")}H${right}${finalScale === steps.at(-1).scale ? "" : `V${y(finalScale).toFixed(1)}`}`;
}

function drawStepMark({ kind }, x, y) {
  if (kind === "skipped")
    return [shape("path", { class: "mpt-skip", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` })];
  if (kind === "ruined")
    return [shape("path", { class: "mpt-ruin-mark", d: `M${x} ${y - 8}l7 14h-14Z` })];
  return [];
}

function drawLooked({ steps, step }, { x, y, floor }) {
  return [
    shape("line", { class: "mpt-position", x1: x(step), x2: x(step), y1: SCALES.top, y2: floor }),
    shape("circle", { class: "mpt-looked", cx: x(step), cy: y(steps[step].scale), r: 5.5 }),
  ];
}

function scaleLegend() {
  const zone = (name, label) =>
    element("span", { class: "mpt-key" }, element("i", { class: `mpt-zone-${name}` }), label);
  return element(
    "div",
    { class: "mpt-legend" },
    element("span", { class: "mpt-key" }, element("i", { class: "mpt-scale-key" }), "the scale"),
    zone("infinite", "here the step overflows FP16"),
    zone("flushed", "here all gradients become 0"),
    element("span", { class: "mpt-key" }, "✕ step skipped"),
  );
}
