// The sums on their way: every accumulator against the number of terms.

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
    svg.replaceChildren(
      ...drawAxes(scale, choices),
      ...drawSums(scale, shown),
      ...drawPosition(scale, shown.view),
    );
  };
  const termsAt = (event) => {
    const { left } = node.getBoundingClientRect();
    const scale = chartScale(shown.now, node.clientWidth);
    const part = (event.clientX - left - CHART.left) / (scale.right - CHART.left);
    return Math.round((Math.min(Math.max(part, 0), 1) * choices.n) / choices.every) * choices.every;
  };
  onDrag(svg, (event) => choose({ n: termsAt(event) }));
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
  return (
    `Running sums against the number of terms. After ${count(view.n)} of ${count(now.choices.n)} terms the ` +
    `${view.fmt.name} sum is ${sum}, exact is ${shortNumber(view.exact, 5)}.`
  );
}

function drawAxes({ x, y, right, bottom, exact }, choices) {
  const sums = [0, 0.25, 0.5, 0.75, 1].map((part) => part * exact);
  const terms = [0, 0.25, 0.5, 0.75, 1].map((part) => part * choices.n);
  return [
    ...sums.map((sum) =>
      shape("line", { class: "mpt-gridline", x1: CHART.left, x2: right, y1: y(sum), y2: y(sum) }),
    ),
    ...sums.map((sum) =>
      shape(
        "text",
        { class: "mpt-tick-label", x: CHART.left - 8, y: y(sum) + 4, "text-anchor": "end" },
        count(sum),
      ),
    ),
    ...terms.map((n) =>
      shape(
        "text",
        { class: "mpt-tick-label", x: x(n), y: bottom + 18, "text-anchor": "middle" },
        count(n),
      ),
    ),
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
  const points = kept.map(
    (sum, i) => `${x(i * every).toFixed(1)} ${y(Math.min(sum, highest)).toFixed(1)}`,
  );
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
    return shape(
      "text",
      { class: `mpt-tick-label mpt-end${bold}`, x: right + 8, y: at },
      key,
      `${fmt ? fmt.name : "exact"} ${text}`,
    );
  });
}

function drawPosition({ x, y, bottom, highest }, { n, totals, fmt }) {
  const inside = totals.filter((total) => total <= highest);
  return [
    shape("line", { class: "mpt-position", x1: x(n), x2: x(n), y1: CHART.top, y2: bottom }),
    ...inside.map((total) =>
      shape("circle", { class: `mpt-now mpt-${fmt.name}`, cx: x(n), cy: y(total), r: 5 }),
    ),
  ];
}
