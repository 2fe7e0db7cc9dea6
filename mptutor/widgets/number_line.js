// Where a number lies among its neighbours. A part of the bit explorer.

const LINE = { height: 106, axis: 44, pad: 46, letter: 6.7 };

function numberLine() {
  let view = null;
  let width = 0;
  const svg = shape("svg", { class: "mpt-line", height: LINE.height, role: "img" });
  const caption = element("p", { class: "mpt-caption" });
  const node = element("div", {}, svg, caption);
  const paint = () => {
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
  // Asking the node for its width while drawing would make the browser lay out the page twice.
  const watch = new ResizeObserver(([{ contentRect }]) => {
    width = contentRect.width;
    paint();
  });
  watch.observe(node);
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
  const centre = between(value, -max, max);
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
  return { points, edges, from, to, band: bandOf(value, fmt) };
}

// From halfway to the neighbour below to halfway to the one above.
function bandOf(value, fmt) {
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
  const stored = Number.isFinite(selected.value)
    ? selected.value
    : edges.find((e) => Math.sign(e) === Math.sign(selected.value));
  const [low, high] = band.map(inside);
  const zone = { zero: "flushed", inf: "infinite" }[selected.kind] ?? selected.kind;
  return [
    shape("rect", {
      class: `mpt-zone-${zone} mpt-band`,
      x: low,
      width: high - low,
      y: axis - 14,
      height: 28,
    }),
    shape("line", { class: "mpt-axis", x1: 0, x2: width, y1: axis, y2: axis }),
    ...points.map((point) =>
      shape("line", { class: "mpt-tick", x1: x(point), x2: x(point), y1: axis - 8, y2: axis + 8 }),
    ),
    ...edges.map((edge) =>
      shape("line", { class: "mpt-edge", x1: x(edge), x2: x(edge), y1: axis - 14, y2: axis + 14 }),
    ),
    ...drawLabels(points, edges, stored, x, selected.fmt, width),
    ...drawUlp(stored, selected, x),
    shape("circle", { class: "mpt-stored", cx: x(stored), cy: axis, r: 5.5 }),
    ...drawWanted(text, wanted, inside(wanted), width),
  ];
}

// The stored number's label first, then outwards, as long as there is room.
function drawLabels(points, edges, stored, x, fmt, width) {
  const beyond = (edge) =>
    fmt.overflow === "inf" ? shortNumber(edge * Infinity) : "nothing beyond";
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
    return shape(
      "text",
      { class: className, x: place, y: LINE.axis + 28, "text-anchor": "middle" },
      label,
    );
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
    shape(
      "text",
      { class: "mpt-tick-label", x: (left + right) / 2, y: y + 14, "text-anchor": "middle" },
      "1 ulp",
    ),
  ];
}

function drawWanted(text, wanted, place, width) {
  const y = LINE.axis - 16;
  const label = `wanted ${Number.isFinite(wanted) ? text : shortNumber(wanted)}`;
  const half = (label.length * LINE.letter) / 2 + 2;
  const labelPlace = between(place, half, width - half);
  return [
    shape("path", {
      class: "mpt-wanted",
      d: `M${place} ${LINE.axis - 3}L${place - 5} ${y}H${place + 5}Z`,
    }),
    shape(
      "text",
      { class: "mpt-tick-label mpt-strong", x: labelPlace, y: y - 8, "text-anchor": "middle" },
      label,
    ),
  ];
}
