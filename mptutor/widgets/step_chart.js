// The step debugger's drawing: where the gradients lie after each call, over the zones of FP16.

const TAPE = { height: 300, left: 46, right: 8, top: 24, bottom: 84 };

// The axis, as powers of two, and the zones of FP16 on it.
const AXIS = { low: -34, high: 22, ticks: [-30, -20, -10, 0, 10, 20] };
const ZONES = [
  ["infinite", 16, AXIS.high, "overflows"],
  ["subnormal", -24, -14, "subnormal"],
  ["flushed", AXIS.low, -25, "becomes 0"],
];

function gradientChart(look) {
  let view = null;
  const svg = shape("svg", { class: "mpt-tape", height: TAPE.height, role: "img" });
  const node = element("div", {}, svg);
  const paint = () => {
    const width = node.clientWidth;
    if (!view || !width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${TAPE.height}`);
    svg.setAttribute(
      "aria-label",
      `Size of the gradients after each call, on a log scale. ${sentence(view)}`,
    );
    svg.replaceChildren(...drawTape(view, width));
  };
  const stopUnder = (event) => {
    const { left } = node.getBoundingClientRect();
    const { slot } = tapePixels(view, node.clientWidth);
    return between(Math.floor((event.clientX - left - TAPE.left) / slot), 0, view.stops.length - 1);
  };
  onDrag(svg, (event) => {
    event.preventDefault();
    look(stopUnder(event));
  });
  const observer = new ResizeObserver(paint);
  observer.observe(node);
  const update = (next) => {
    view = next;
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

function tapePixels({ stops }, width) {
  const slot = (width - TAPE.left - TAPE.right) / Math.max(stops.length, 2);
  const bottom = TAPE.height - TAPE.bottom;
  const part = (log) => (between(log, AXIS.low, AXIS.high) - AXIS.low) / (AXIS.high - AXIS.low);
  return {
    slot,
    bottom,
    right: width - TAPE.right,
    x: (i) => TAPE.left + (i + 0.5) * slot,
    yOf: (log) => bottom - part(log) * (bottom - TAPE.top),
  };
}

function drawTape(view, width) {
  const pixels = tapePixels(view, width);
  return [
    ...drawTapeZones(pixels),
    ...drawPowers(pixels),
    ...drawPresent(view, pixels),
    ...drawSteps(view, pixels),
    ...view.stops.flatMap((stop, i) => drawGradients(stop, pixels.x(i), i === view.stop, pixels)),
    ...view.stops.map((stop, i) => drawCallName(stop, pixels.x(i), i === view.stop, pixels)),
  ];
}

function drawTapeZones({ yOf, right }) {
  return ZONES.flatMap(([zone, from, to, label]) => [
    shape("rect", {
      class: `mpt-zone mpt-zone-${zone}`,
      x: TAPE.left,
      width: right - TAPE.left,
      y: yOf(to),
      height: yOf(from) - yOf(to),
    }),
    shape("text", { class: "mpt-zone-label", x: TAPE.left + 4, y: yOf(to) + 12 }, label),
  ]);
}

function drawPowers({ yOf, right }) {
  return AXIS.ticks.flatMap((n) => [
    shape("line", { class: "mpt-gridline", x1: TAPE.left, x2: right, y1: yOf(n), y2: yOf(n) }),
    shape(
      "text",
      { class: "mpt-tick-label", x: TAPE.left - 6, y: yOf(n) + 4, "text-anchor": "end" },
      "2",
      shape("tspan", { dy: -4, "font-size": 9 }, signed(n)),
    ),
  ]);
}

function drawPresent({ stop }, { x, slot, bottom }) {
  const at = { x: x(stop) - slot / 2, width: slot, y: TAPE.top, height: bottom - TAPE.top + 4 };
  return [shape("rect", { class: "mpt-present", ...at })];
}

// A line between the two steps, and what each is called.
function drawSteps({ stops }, { x, slot, bottom }) {
  const starts = [0, stops.findIndex(({ step }) => step === 1)].filter((i) => i >= 0);
  return starts.flatMap((i, step) => [
    shape(
      "text",
      { class: "mpt-tick-label mpt-strong", x: x(i) - slot / 2 + 4, y: 15 },
      `step ${step + 1}`,
    ),
    ...(i
      ? [
          shape("line", {
            class: "mpt-border",
            x1: x(i) - slot / 2,
            x2: x(i) - slot / 2,
            y1: 4,
            y2: bottom,
          }),
        ]
      : []),
  ]);
}

// A bar from the tenth percentile to the largest, with a line at the median.
function drawGradients({ gradients }, x, isPresent, { slot, yOf, bottom }) {
  if (!gradients) return [];
  const half = between(slot / 2 - 3, 2, 9);
  const strong = isPresent ? " mpt-strong-bar" : "";
  const { low, median, largest, zero, nonfinite } = gradients;
  const mark = (text, y) => [
    shape("text", { class: "mpt-tape-mark", x, y, "text-anchor": "middle" }, text),
  ];
  const lost = zero === 1 ? mark("0", bottom - 3) : [];
  const broken = nonfinite ? mark("✕", TAPE.top + 12) : [];
  if (!low) return [...lost, ...broken];
  const top = yOf(Number.isFinite(largest) ? Math.log2(largest) : AXIS.high);
  const height = Math.max(yOf(Math.log2(low)) - top, 2);
  const middle = yOf(Math.log2(median));
  return [
    shape("rect", {
      class: `mpt-grads${strong}`,
      x: x - half,
      width: 2 * half,
      y: top,
      height,
      rx: 2,
    }),
    shape("line", { class: "mpt-median", x1: x - half, x2: x + half, y1: middle, y2: middle }),
    ...broken,
  ];
}

const SHORT_NAMES = { ran: null, raised: null, checked: "check", stepped: "step", skipped: "skip" };

function drawCallName({ call, event }, x, isPresent, { bottom }) {
  const name = SHORT_NAMES[event] ?? call.name;
  const text = event === "raised" ? `✕ ${name}` : name;
  return shape(
    "text",
    {
      class: `mpt-call-name${isPresent ? " mpt-strong" : ""}`,
      transform: `translate(${(x + 4).toFixed(1)} ${bottom + 10}) rotate(-90)`,
      "text-anchor": "end",
    },
    text,
  );
}

function chartHeading() {
  const text = "Size of the gradients after each call, and the zones of FP16";
  return element("div", { class: "mpt-heading" }, text);
}

function tapeLegend() {
  return element(
    "div",
    { class: "mpt-legend" },
    element(
      "span",
      { class: "mpt-key" },
      element("i", { class: "mpt-grads-key" }),
      "gradients, from the tenth percentile to the largest; line: median",
    ),
    element("span", { class: "mpt-key" }, "✕ inf or NaN among them"),
    element("span", { class: "mpt-key" }, "0 all are zero"),
  );
}
