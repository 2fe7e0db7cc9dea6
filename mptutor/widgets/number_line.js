// Where a number lies: on the whole of a format, logarithmically and to drag, and among its
// neighbours. A part of the bit explorer.

// -- the number, dragged --------------------------------------------------------------------------

// A signed logarithmic scale from -1 to 1, as wide as the format: past its largest number on either
// side, and in the middle down to numbers that round to zero.
function logScale(fmt) {
  const { emin, emax } = formatLimits(fmt);
  const low = emin - fmt.mantissa_bits - 3;
  const high = emax + 3;
  const zero = 0.015;
  return {
    toPosition: (x) => {
      if (x === 0 || Number.isNaN(x)) return 0;
      const part = (Math.log2(Math.abs(x)) - low) / (high - low);
      return Math.sign(x) * (zero + (1 - zero) * Math.min(Math.max(part, 0), 1));
    },
    toNumber: (position) => {
      const part = (Math.abs(position) - zero) / (1 - zero);
      return part <= 0 ? 0 : Math.sign(position) * 2 ** (low + part * (high - low));
    },
  };
}

function numberSlider({ now, wantNumber }) {
  let drawn = null;
  const input = control("input", {
    type: "range",
    class: "mpt-slider",
    min: -1,
    max: 1,
    step: "any",
    "aria-label": "Number, on a logarithmic scale",
    oninput: () => {
      const number = logScale(now().selected.fmt).toNumber(Number(input.value));
      wantNumber(Number(number.toPrecision(4)));
    },
    onkeydown: (event) => {
      const number = numberAfterKey(event.key, now());
      if (number === undefined) return;
      event.preventDefault();
      if (!Number.isNaN(number)) wantNumber(number);
    },
  });
  const zones = shape("svg", { class: "mpt-zones", "aria-hidden": "true" });
  const legend = element("div", { class: "mpt-legend" });
  const node = element("div", {}, element("div", { class: "mpt-track" }, zones, input), legend);
  const update = ({ wanted, selected: { fmt } }) => {
    if (fmt !== drawn) {
      zones.replaceChildren(...drawZones(fmt));
      legend.replaceChildren(...zoneLegend(fmt));
      drawn = fmt;
    }
    input.value = logScale(fmt).toPosition(wanted);
    input.setAttribute("aria-valuetext", shortNumber(wanted));
  };
  return { node, update };
}

// Arrow keys step to the next number the format holds; undefined for keys that mean nothing here.
function numberAfterKey(key, { wanted, selected: { fmt } }) {
  const [below, above] = neighbours(wanted, fmt);
  const { max } = formatLimits(fmt);
  return {
    ArrowLeft: below,
    ArrowDown: below,
    ArrowRight: above,
    ArrowUp: above,
    PageUp: wanted * 2,
    PageDown: wanted / 2,
    Home: -max,
    End: max,
  }[key];
}

function zonesOf(fmt) {
  const { max, smallestNormal, smallestSubnormal } = formatLimits(fmt);
  return [
    { name: "flushed", label: "rounds to 0", from: 0, to: smallestSubnormal / 2 },
    { name: "subnormal", label: "subnormal", from: smallestSubnormal / 2, to: smallestNormal },
    { name: "normal", label: "normal", from: smallestNormal, to: max },
    { name: "infinite", label: fmt.overflow === "inf" ? "becomes ∞" : "too large", from: max, to: Infinity },
  ];
}

function drawZones(fmt) {
  const { toPosition } = logScale(fmt);
  const percent = (x) => 50 + 50 * toPosition(x);
  const { max, smallestNormal } = formatLimits(fmt);
  const strips = zonesOf(fmt).flatMap(({ name, from, to }) =>
    [[from, to], [-to, -from]].map(([left, right]) => {
      const x = percent(left);
      return shape("rect", { class: `mpt-zone-${name}`, x: `${x}%`, width: `${percent(right) - x}%`, y: 0, height: 12 });
    }),
  );
  const marks = [
    [-max, [tickNumber(-max, 4)]],
    [-smallestNormal, powerText(-smallestNormal)],
    [0, ["0"]],
    [smallestNormal, powerText(smallestNormal)],
    [max, [tickNumber(max, 4)]],
  ];
  const labels = marks.flatMap(([x, label]) => [
    shape("line", { x1: `${percent(x)}%`, x2: `${percent(x)}%`, y1: 0, y2: 16 }),
    shape("text", { x: `${percent(x)}%`, y: 29, "text-anchor": anchorAt(percent(x)) }, ...label),
  ]);
  return [...strips, ...labels];
}

// Labels near an end turn inwards.
function anchorAt(percent) {
  if (percent < 4) return "start";
  return percent > 96 ? "end" : "middle";
}

// A power of two, as one unless it is short in decimals.
function powerText(x) {
  const decimal = shortNumber(x);
  if (decimal.length <= 5) return [decimal];
  return [x < 0 ? "-2" : "2", shape("tspan", { dy: -4, "font-size": 9 }, signed(binade(x)))];
}

function zoneLegend(fmt) {
  const keys = zonesOf(fmt).map(({ name, label }) =>
    element("span", { class: "mpt-key" }, element("i", { class: `mpt-zone-${name}` }), label),
  );
  return [element("span", { class: "mpt-legend-title" }, `What ${title(fmt)} can hold, on a logarithmic scale`), ...keys];
}

// -- the number line ------------------------------------------------------------------------------

const LINE = { height: 106, axis: 44, pad: 46, letter: 6.7 };

function numberLine() {
  let view = null;
  const svg = shape("svg", { class: "mpt-line", height: LINE.height, role: "img" });
  const caption = element("p", { class: "mpt-caption" });
  const node = element("div", {}, svg, caption);
  const paint = () => {
    const width = node.clientWidth;
    if (!view || !width) return;
    const line = lineAround(view);
    svg.setAttribute("viewBox", `0 0 ${width} ${LINE.height}`);
    svg.setAttribute("aria-label", lineLabel(view, line));
    svg.replaceChildren(...(line ? drawLine(line, view, width) : []));
    svg.style.visibility = line ? "visible" : "hidden";
    caption.textContent = line
      ? `Every number in the shaded band is stored as ${shortNumber(view.selected.value)}.`
      : "NaN has no place on the number line.";
  };
  new ResizeObserver(paint).observe(node);
  const update = (next) => {
    view = next;
    paint();
  };
  return { node, update };
}

// The numbers of the format around the stored one, and the band of reals that round to it. Where the
// format ends, `edge` is one step further out.
function lineAround({ selected: { fmt, value } }) {
  if (Number.isNaN(value)) return null;
  const { max } = formatLimits(fmt);
  const centre = Math.min(Math.max(value, -max), max);
  const step = ulpOf(max, fmt);
  const points = [centre];
  for (let i = 0; i < 3; i++) {
    const [below] = neighbours(points[0], fmt);
    const [, above] = neighbours(points.at(-1), fmt);
    if (Number.isFinite(below)) points.unshift(below);
    if (Number.isFinite(above)) points.push(above);
  }
  const edges = [];
  if (points[0] === -max) edges.push(-max - step);
  if (points.at(-1) === max) edges.push(max + step);
  const from = Math.min(points[0], ...edges);
  const to = Math.max(points.at(-1), ...edges);
  return { points, edges, from, to, band: bandOf(value, fmt, from, to) };
}

// From halfway to the neighbour below to halfway to the one above.
function bandOf(value, fmt, from, to) {
  const { max } = formatLimits(fmt);
  const tie = max + ulpOf(max, fmt) / 2;
  if (!Number.isFinite(value)) return value > 0 ? [tie, Infinity] : [-Infinity, -tie];
  const [below, above] = neighbours(value, fmt);
  const saturates = fmt.overflow === "saturate";
  const low = Number.isFinite(below) ? (below + value) / 2 : saturates ? -Infinity : -tie;
  const high = Number.isFinite(above) ? (above + value) / 2 : saturates ? Infinity : tie;
  return [low, high];
}

function lineLabel({ text, selected }, line) {
  if (!line) return "";
  const [below, above] = [selected.below, selected.above].map(neighbourText);
  return `Number line: ${text} is stored as ${shortNumber(selected.value)}, between ${below} and ${above}.`;
}

function drawLine({ points, edges, from, to, band }, { text, wanted, selected }, width) {
  const { axis, pad } = LINE;
  const x = (number) => pad + ((number - from) / (to - from)) * (width - 2 * pad);
  const inside = (number) => between(x(number), 0, width);
  const stored = Number.isFinite(selected.value) ? selected.value : edges.find((e) => Math.sign(e) === Math.sign(selected.value));
  const [low, high] = band.map(inside);
  const zone = { zero: "flushed", inf: "infinite" }[selected.kind] ?? selected.kind;
  return [
    shape("rect", { class: `mpt-zone-${zone} mpt-band`, x: low, width: high - low, y: axis - 14, height: 28 }),
    shape("line", { class: "mpt-axis", x1: 0, x2: width, y1: axis, y2: axis }),
    ...points.map((point) => shape("line", { class: "mpt-tick", x1: x(point), x2: x(point), y1: axis - 8, y2: axis + 8 })),
    ...edges.map((edge) => shape("line", { class: "mpt-edge", x1: x(edge), x2: x(edge), y1: axis - 14, y2: axis + 14 })),
    ...drawLabels(points, edges, stored, x, selected.fmt, width),
    ...drawUlp(stored, selected, x),
    shape("circle", { class: "mpt-stored", cx: x(stored), cy: axis, r: 5.5 }),
    ...drawWanted(text, wanted, inside(wanted), width),
  ];
}

// The stored number's label first, then outwards, as long as there is room.
function drawLabels(points, edges, stored, x, fmt, width) {
  const beyond = (edge) => (fmt.overflow === "inf" ? shortNumber(edge * Infinity) : "nothing beyond");
  const labels = [
    ...points.map((point) => [point, tickNumber(point, fmt.mantissa_bits)]),
    ...edges.map((edge) => [edge, beyond(edge)]),
  ].sort(([a], [b]) => Math.abs(a - stored) - Math.abs(b - stored));
  const taken = [];
  return labels.flatMap(([number, label]) => {
    const half = (label.length * LINE.letter) / 2 + 4;
    const place = between(x(number), half, width - half);
    if (taken.some(([from, to]) => place - half < to && place + half > from)) return [];
    taken.push([place - half, place + half]);
    const className = number === stored ? "mpt-tick-label mpt-strong" : "mpt-tick-label";
    return shape("text", { class: className, x: place, y: LINE.axis + 28, "text-anchor": "middle" }, label);
  });
}

// A bracket below one step away from zero, or towards it from the last number.
function drawUlp(stored, { value, above, below }, x) {
  const [outwards, inwards] = value < 0 ? [below, above] : [above, below];
  const end = Number.isFinite(outwards) ? outwards : inwards;
  if (!Number.isFinite(value)) return [];
  const [left, right] = [x(stored), x(end)].sort((a, b) => a - b);
  const y = LINE.axis + 40;
  return [
    shape("path", { class: "mpt-bracket", d: `M${left} ${y - 4}V${y}H${right}V${y - 4}` }),
    shape("text", { class: "mpt-tick-label", x: (left + right) / 2, y: y + 14, "text-anchor": "middle" }, "1 ulp"),
  ];
}

function between(x, low, high) {
  return Math.min(Math.max(x, low), high);
}

function drawWanted(text, wanted, place, width) {
  const y = LINE.axis - 16;
  const label = `wanted ${Number.isFinite(wanted) ? text : shortNumber(wanted)}`;
  const half = (label.length * LINE.letter) / 2 + 2;
  const labelPlace = between(place, half, width - half);
  return [
    shape("path", { class: "mpt-wanted", d: `M${place} ${LINE.axis - 3}L${place - 5} ${y}H${place + 5}Z` }),
    shape("text", { class: "mpt-tick-label mpt-strong", x: labelPlace, y: y - 8, "text-anchor": "middle" }, label),
  ];
}
