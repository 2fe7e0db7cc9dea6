// The two drawings of the accumulation explorer: the sums on their way, and the next addition.

// -- the sums on their way ---------------------------------------------------------------------------

const CHART = { height: 270, left: 52, right: 116, top: 14, bottom: 30 };

function sumChart(choices, choose) {
  let shown = null;
  const svg = shape("svg", { class: "mpt-sums", height: CHART.height, role: "img" });
  const node = element("div", { class: "mpt-chart" }, svg);
  const paint = () => {
    const width = node.clientWidth;
    if (!shown || !width) return;
    const scale = chartScale(shown.now, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${CHART.height}`);
    svg.setAttribute("aria-label", chartLabel(shown));
    svg.replaceChildren(...drawAxes(scale, choices), ...drawSums(scale, shown), ...drawPosition(scale, shown.view));
  };
  const termsAt = (event) => {
    const { left } = node.getBoundingClientRect();
    const scale = chartScale(shown.now, node.clientWidth);
    const part = (event.clientX - left - CHART.left) / (scale.right - CHART.left);
    return Math.round((Math.min(Math.max(part, 0), 1) * choices.n) / choices.every) * choices.every;
  };
  svg.addEventListener("pointerdown", (event) => {
    svg.setPointerCapture(event.pointerId);
    choose({ n: termsAt(event) });
  });
  svg.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) choose({ n: termsAt(event) });
  });
  const observer = new ResizeObserver(paint);
  observer.observe(node);
  const update = (now, view) => {
    shown = { now, view };
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

// From terms and sums to pixels. The highest sum drawn leaves a quarter above the exact one.
function chartScale({ term, choices }, width) {
  const right = width - CHART.right;
  const bottom = CHART.height - CHART.bottom;
  const exact = Number(term) * choices.n;
  const highest = 1.25 * exact;
  return {
    right,
    bottom,
    exact,
    highest,
    x: (n) => CHART.left + (n / choices.n) * (right - CHART.left),
    y: (sum) => bottom - (sum / highest) * (bottom - CHART.top),
  };
}

function chartLabel({ now, view }) {
  const sum = view.next ? shortNumber(view.total, 6) : "infinite";
  return `Running sums against the number of terms. After ${count(view.n)} of ${count(now.choices.n)} terms the ` +
    `${view.fmt.name} sum is ${sum}, exact is ${shortNumber(view.exact, 5)}.`;
}

function drawAxes({ x, y, right, bottom, exact }, choices) {
  const sums = [0, 0.25, 0.5, 0.75, 1].map((part) => part * exact);
  const terms = [0, 0.25, 0.5, 0.75, 1].map((part) => part * choices.n);
  return [
    ...sums.map((sum) => shape("line", { class: "mpt-gridline", x1: CHART.left, x2: right, y1: y(sum), y2: y(sum) })),
    ...sums.map((sum) => shape("text", { class: "mpt-tick-label", x: CHART.left - 8, y: y(sum) + 4, "text-anchor": "end" }, count(sum))),
    ...terms.map((n) => shape("text", { class: "mpt-tick-label", x: x(n), y: bottom + 18, "text-anchor": "middle" }, count(n))),
    shape("text", { class: "mpt-tick-label", x: right + 30, y: bottom + 18 }, "terms"),
    shape("line", { class: "mpt-exact", x1: x(0), y1: y(0), x2: x(choices.n), y2: y(exact) }),
  ];
}

// All accumulators with the chosen rounding; the chosen one in front and strong.
function drawSums(scale, { now, view }) {
  const { formats, every } = now.choices;
  const chosenLast = [...formats].sort((a, b) => (a === view.fmt) - (b === view.fmt));
  const drawn = chosenLast.map((fmt) => {
    const { codes } = now.series[seriesKey(fmt.name, now.rounding, now.term)];
    return { fmt, runs: codes.map((run) => run.map((code) => decode(code, fmt).value)) };
  });
  const lines = drawn.flatMap(({ fmt, runs }) => {
    const strength = fmt === view.fmt ? "mpt-strong-line" : "mpt-faint-line";
    const single = runs.length === 1 ? "" : " mpt-one-of-many";
    const look = `mpt-sum mpt-${fmt.name} ${strength}${single}`;
    return runs.map((sums) => shape("path", { class: look, d: pathOf(sums, scale, every) }));
  });
  return [...lines, ...drawEnds(drawn, scale, view.fmt)];
}

// A path as far as the chart goes.
function pathOf(sums, { x, y, highest }, every) {
  const off = sums.findIndex((sum) => sum > highest);
  const kept = off < 0 ? sums : sums.slice(0, off + 1);
  const points = kept.map((sum, i) => `${x(i * every).toFixed(1)} ${y(Math.min(sum, highest)).toFixed(1)}`);
  return `M${points.join("L")}`;
}

// Names and last sums at the right (of several runs the mean), pushed apart where they would overlap;
// a sum that left the chart stands at its top with an arrow.
function drawEnds(drawn, { y, right, highest, exact }, chosen) {
  const ends = drawn.map(({ fmt, runs }) => {
    const sum = runs.reduce((total, sums) => total + sums.at(-1), 0) / runs.length;
    const text = `${runs.length > 1 ? "∅ " : ""}${sum > highest ? `↑ ${shortNumber(sum, 3)}` : shortNumber(sum, 4)}`;
    return { fmt, sum, text };
  });
  const placed = [...ends, { fmt: null, sum: exact, text: count(exact) }]
    .map((end) => ({ ...end, at: y(Math.min(end.sum, highest)) + 4 }))
    .sort((a, b) => b.at - a.at);
  placed.forEach((label, i) => {
    if (i) label.at = Math.min(label.at, placed[i - 1].at - 14);
  });
  return placed.map(({ fmt, text, at }) => {
    const key = fmt ? shape("tspan", { class: `mpt-dot mpt-${fmt.name}` }, "■ ") : "╌ ";
    const bold = fmt === chosen ? " mpt-strong" : "";
    return shape("text", { class: `mpt-tick-label mpt-end${bold}`, x: right + 8, y: at }, key, `${fmt ? fmt.name : "exact"} ${text}`);
  });
}

function drawPosition({ x, y, bottom, highest }, { n, totals, fmt }) {
  const inside = totals.filter((total) => total <= highest);
  return [
    shape("line", { class: "mpt-position", x1: x(n), x2: x(n), y1: CHART.top, y2: bottom }),
    ...inside.map((total) => shape("circle", { class: `mpt-now mpt-${fmt.name}`, cx: x(n), cy: y(total), r: 5 })),
  ];
}

// -- the next addition -------------------------------------------------------------------------------

const ADDITION = { height: 118, axis: 62, pad: 60 };

function additionLine() {
  let view = null;
  const heading = element("div", { class: "mpt-heading" }, "The next addition");
  const svg = shape("svg", { class: "mpt-addition", height: ADDITION.height, role: "img" });
  const node = element("div", { class: "mpt-closeup" }, heading, svg);
  const paint = () => {
    const width = svg.clientWidth || node.clientWidth;
    if (!view || !width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${ADDITION.height}`);
    svg.setAttribute("aria-label", additionLabel(view));
    svg.replaceChildren(...(view.next ? drawAddition(view, width) : drawOverflow(width)));
  };
  const observer = new ResizeObserver(paint);
  observer.observe(node);
  const update = (next) => {
    view = next;
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

function additionLabel({ total, next, fmt }) {
  if (!next) return "The sum is infinite and stays so.";
  const [below, wanted, above] = [next.below, next.wanted, next.above].map((x) => shortNumber(x, 8));
  return `Number line of ${fmt.name}: sum plus term is ${wanted}, between ${below} and ${above}; the sum is ${shortNumber(total, 8)}.`;
}

function drawOverflow(width) {
  return [shape("text", { class: "mpt-tick-label", x: width / 2, y: ADDITION.axis, "text-anchor": "middle" },
    "The sum is ∞. Whatever is added, it stays so.")];
}

// The numbers of the format on either side of sum + term, one more each way, and where it goes.
function drawAddition({ total, next, fmt }, width) {
  const { axis, pad } = ADDITION;
  const { below, above, wanted, ulp } = next;
  const from = below - ulp;
  const x = (number) => pad + ((number - from) / (above + ulp - from)) * (width - 2 * pad);
  const points = [...new Set([below - ulp, below, above, above + ulp])].filter((point) => point >= 0);
  return [
    shape("line", { class: "mpt-axis", x1: 0, x2: width, y1: axis, y2: axis }),
    ...points.flatMap((point) => drawPoint(point, x(point), fmt)),
    ...(above > below ? drawHalfWay(x((below + above) / 2)) : []),
    ...drawSum(total, from, x),
    ...drawArrows(next, x),
    ...drawPlace(x(wanted), width),
  ];
}

function drawPoint(point, place, fmt) {
  const { axis } = ADDITION;
  return [
    shape("line", { class: "mpt-tick", x1: place, x2: place, y1: axis - 8, y2: axis + 8 }),
    shape("text", { class: "mpt-tick-label", x: place, y: axis + 26, "text-anchor": "middle" }, tickNumber(point, fmt.mantissa_bits)),
  ];
}

function drawHalfWay(place) {
  const { axis } = ADDITION;
  return [
    shape("line", { class: "mpt-edge", x1: place, x2: place, y1: axis - 14, y2: axis + 14 }),
    shape("text", { class: "mpt-tick-label", x: place, y: axis + 26, "text-anchor": "middle" }, "half way"),
  ];
}

// The sum as it is now; an arrow at the left if it lies further back.
function drawSum(total, from, x) {
  const { axis, height } = ADDITION;
  const place = total >= from ? x(total) : 12;
  const label = total >= from ? "sum" : "← sum";
  return [
    ...(total >= from ? [shape("circle", { class: "mpt-stored", cx: place, cy: axis, r: 5.5 })] : []),
    shape("text", { class: "mpt-tick-label mpt-strong", x: place, y: height - 12, "text-anchor": total >= from ? "middle" : "start" }, label),
  ];
}

// From sum + term to what it is rounded to, both ways if chance decides.
function drawArrows({ wanted, below, above, chanceUp }, x) {
  if (below === above) return [];
  const ways = [[below, 1 - chanceUp], [above, chanceUp]].filter(([, chance]) => chance > 0);
  return ways.flatMap(([end, chance]) => {
    const y = ADDITION.axis - 12;
    const [from, to] = [x(wanted), x(end)];
    const side = to < from ? 1 : -1;
    const chanceLabel = chance < 1
      ? [shape("text", { class: "mpt-tick-label", x: to, y: y - 12, "text-anchor": "middle" }, percentText(chance))]
      : [];
    return [
      shape("path", { class: "mpt-arrow", d: `M${from} ${y}H${to + 2 * side}M${to + 8 * side} ${y - 4}L${to + 2 * side} ${y}L${to + 8 * side} ${y + 4}` }),
      ...chanceLabel,
    ];
  });
}

function drawPlace(place, width) {
  const y = ADDITION.axis - 20;
  return [
    shape("path", { class: "mpt-wanted", d: `M${place} ${ADDITION.axis - 3}L${place - 5} ${y}H${place + 5}Z` }),
    shape("text", { class: "mpt-tick-label mpt-strong", x: Math.min(Math.max(place, 40), width - 40), y: y - 24, "text-anchor": "middle" }, "sum + term"),
  ];
}
