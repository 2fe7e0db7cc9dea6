// One update on the numbers of a format: where it points, and where it lands.

const GRID = { height: 116, axis: LINE.axis, pad: 64, mostTicks: 40 };

function gridLine() {
  let view = null;
  const svg = shape("svg", { class: "mpt-grid", height: GRID.height, role: "img" });
  const heading = element("div", { class: "mpt-heading" });
  const node = element("div", { class: "mpt-closeup" }, heading, svg);
  const paint = () => {
    const width = svg.clientWidth || node.clientWidth;
    if (!view || !width) return;
    heading.textContent = `Update ${count(view.n + 1)} on the numbers of ${view.fmt.name.replaceAll("_", " ")}`;
    svg.setAttribute("viewBox", `0 0 ${width} ${GRID.height}`);
    svg.setAttribute("aria-label", `Number line. ${sentence(view)}`);
    svg.replaceChildren(...drawGrid(view, width));
  };
  const observer = new ResizeObserver(paint);
  observer.observe(node);
  const update = (next) => {
    view = next;
    paint();
  };
  return { node, update, leave: () => observer.disconnect() };
}

function drawGrid(view, width) {
  const { fmt, way, held, update, landing, weights } = view;
  const { axis, pad } = GRID;
  const weight = weights[0];
  const wanted = held + update;
  const points = gridPoints(weight, landing, fmt);
  const [from, to] = [points[0], points.at(-1)];
  const x = (number) => pad + ((number - from) / (to - from)) * (width - 2 * pad);
  const next = nextTowards(weight, update, fmt);
  const middle = (weight + next) / 2;
  return [
    shape("line", { class: "mpt-axis", x1: 0, x2: width, y1: axis, y2: axis }),
    ...points.map((point) =>
      shape("line", { class: "mpt-tick", x1: x(point), x2: x(point), y1: axis - 8, y2: axis + 8 }),
    ),
    ...(way !== "stochastic" &&
    next !== weight &&
    middle >= from &&
    middle <= to &&
    points.length < 12
      ? drawMiddle(x(middle))
      : []),
    ...drawLabels(points, [], weight, x, fmt, width),
    ...drawLandings(view, x),
    shape("circle", { class: "mpt-stored", cx: x(weight), cy: axis, r: 5.5 }),
    ...(way === "master" && held >= from && held <= to ? [drawDiamond(x(held), axis)] : []),
    ...drawSumMark(
      x(between(wanted, from, to)),
      width,
      way === "master" ? "master + update" : "weight + update",
    ),
    shape(
      "text",
      { class: "mpt-tick-label", x: 0, y: GRID.height - 6 },
      way === "master"
        ? "● weight   ◆ master copy   ▽ what it becomes"
        : "● weight   ▽ what it should become   → where it goes",
    ),
  ];
}

function nextTowards(weight, update, fmt) {
  const [below, above] = neighbours(weight, fmt);
  const next = update > 0 ? above : below;
  return Number.isFinite(next) ? next : weight;
}

// The numbers of the format from two below the lower of weight and landing to two above the higher; if
// those are too many, only the outer ones.
function gridPoints(weight, { below, above }, fmt) {
  const step = (x, way) => {
    const next = neighbours(x, fmt)[way];
    return Number.isFinite(next) ? next : x;
  };
  const twice = (x, way) => step(step(x, way), way);
  const [from, to] = [twice(Math.min(weight, below), 0), twice(Math.max(weight, above), 1)];
  const points = [from];
  while (points.at(-1) < to && points.length <= GRID.mostTicks) points.push(step(points.at(-1), 1));
  return points.at(-1) === to
    ? points
    : [...new Set([from, below, above, weight, to])].sort((a, b) => a - b);
}

function drawMiddle(place) {
  return [
    shape("line", {
      class: "mpt-edge",
      x1: place,
      x2: place,
      y1: GRID.axis - 14,
      y2: GRID.axis + 40,
    }),
    shape(
      "text",
      { class: "mpt-tick-label", x: place, y: GRID.axis + 52, "text-anchor": "middle" },
      "half way",
    ),
  ];
}

// From the exact sum to what it is rounded to; both ways if chance decides.
function drawLandings({ way, landing }, x) {
  const { wanted, below, above, nearest, fraction } = landing;
  const ways =
    way === "stochastic" && above > below
      ? [
          [below, 1 - fraction],
          [above, fraction],
        ]
      : [[nearest, 1]];
  return ways.flatMap(([end, chance]) => {
    const [from, to] = [x(wanted), x(end)];
    const y = GRID.axis - 12;
    const side = to < from ? 1 : -1;
    const chanceLabel =
      chance < 1
        ? [
            shape(
              "text",
              {
                class: "mpt-tick-label mpt-end",
                x: to,
                y: GRID.axis + 46,
                "text-anchor": "middle",
              },
              percentText(chance),
            ),
          ]
        : [];
    if (Math.abs(from - to) < 8) return chanceLabel;
    return [
      shape("path", {
        class: "mpt-arrow",
        d: `M${from} ${y}H${to + 2 * side}M${to + 8 * side} ${y - 4}L${to + 2 * side} ${y}L${to + 8 * side} ${y + 4}`,
      }),
      ...chanceLabel,
    ];
  });
}

function drawDiamond(place, y) {
  return shape("path", {
    class: "mpt-master-mark",
    d: `M${place} ${y - 7}L${place + 6} ${y}L${place} ${y + 7}L${place - 6} ${y}Z`,
  });
}

function drawSumMark(place, width, label) {
  const y = GRID.axis - 20;
  return [
    shape("path", {
      class: "mpt-wanted",
      d: `M${place} ${GRID.axis - 3}L${place - 5} ${y}H${place + 5}Z`,
    }),
    shape(
      "text",
      {
        class: "mpt-tick-label mpt-strong",
        x: between(place, 56, width - 56),
        y: y - 8,
        "text-anchor": "middle",
      },
      label,
    ),
  ];
}
