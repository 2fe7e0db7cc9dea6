// The next addition on the numbers of a format: the sum, the term, and what is kept of it.

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
  const [below, wanted, above] = [next.below, next.wanted, next.above].map((x) =>
    shortNumber(x, 8),
  );
  return `Number line of ${fmt.name}: sum plus term is ${wanted}, between ${below} and ${above}; the sum is ${shortNumber(total, 8)}.`;
}

function drawOverflow(width) {
  return [
    shape(
      "text",
      { class: "mpt-tick-label", x: width / 2, y: ADDITION.axis, "text-anchor": "middle" },
      "The sum is ∞. Whatever is added, it stays so.",
    ),
  ];
}

// The numbers of the format on either side of sum + term, one more each way, and where it goes.
function drawAddition({ total, next, fmt }, width) {
  const { axis, pad } = ADDITION;
  const { below, above, wanted, ulp } = next;
  const from = below - ulp;
  const x = (number) => pad + ((number - from) / (above + ulp - from)) * (width - 2 * pad);
  const points = [...new Set([below - ulp, below, above, above + ulp])].filter(
    (point) => point >= 0,
  );
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
    shape(
      "text",
      { class: "mpt-tick-label", x: place, y: axis + 26, "text-anchor": "middle" },
      tickNumber(point, fmt.mantissa_bits),
    ),
  ];
}

function drawHalfWay(place) {
  const { axis } = ADDITION;
  return [
    shape("line", { class: "mpt-edge", x1: place, x2: place, y1: axis - 14, y2: axis + 14 }),
    shape(
      "text",
      { class: "mpt-tick-label", x: place, y: axis + 26, "text-anchor": "middle" },
      "half way",
    ),
  ];
}

// The sum as it is now; an arrow at the left if it lies further back.
function drawSum(total, from, x) {
  const { axis, height } = ADDITION;
  const place = total >= from ? x(total) : 12;
  const label = total >= from ? "sum" : "← sum";
  return [
    ...(total >= from
      ? [shape("circle", { class: "mpt-stored", cx: place, cy: axis, r: 5.5 })]
      : []),
    shape(
      "text",
      {
        class: "mpt-tick-label mpt-strong",
        x: place,
        y: height - 12,
        "text-anchor": total >= from ? "middle" : "start",
      },
      label,
    ),
  ];
}

// From sum + term to what it is rounded to, both ways if chance decides.
function drawArrows({ wanted, below, above, chanceUp }, x) {
  if (below === above) return [];
  const ways = [
    [below, 1 - chanceUp],
    [above, chanceUp],
  ].filter(([, chance]) => chance > 0);
  return ways.flatMap(([end, chance]) => {
    const y = ADDITION.axis - 12;
    const [from, to] = [x(wanted), x(end)];
    const side = to < from ? 1 : -1;
    const chanceLabel =
      chance < 1
        ? [
            shape(
              "text",
              { class: "mpt-tick-label", x: to, y: y - 12, "text-anchor": "middle" },
              percentText(chance),
            ),
          ]
        : [];
    return [
      shape("path", {
        class: "mpt-arrow",
        d: `M${from} ${y}H${to + 2 * side}M${to + 8 * side} ${y - 4}L${to + 2 * side} ${y}L${to + 8 * side} ${y + 4}`,
      }),
      ...chanceLabel,
    ];
  });
}

function drawPlace(place, width) {
  const y = ADDITION.axis - 20;
  return [
    shape("path", {
      class: "mpt-wanted",
      d: `M${place} ${ADDITION.axis - 3}L${place - 5} ${y}H${place + 5}Z`,
    }),
    shape(
      "text",
      {
        class: "mpt-tick-label mpt-strong",
        x: Math.min(Math.max(place, 40), width - 40),
        y: y - 24,
        "text-anchor": "middle",
      },
      "sum + term",
    ),
  ];
}
