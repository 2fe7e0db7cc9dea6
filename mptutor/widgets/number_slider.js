// A number to drag along the whole of a format, on a signed logarithmic scale. A part of the bit
// explorer.

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
      return Math.sign(x) * (zero + (1 - zero) * between(part, 0, 1));
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
      if (event.ctrlKey || event.metaKey || event.altKey) return;
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
    {
      name: "infinite",
      label: fmt.overflow === "inf" ? "becomes ∞" : "too large",
      from: max,
      to: Infinity,
    },
  ];
}

function drawZones(fmt) {
  const { toPosition } = logScale(fmt);
  const percent = (x) => 50 + 50 * toPosition(x);
  const { max, smallestNormal } = formatLimits(fmt);
  const strips = zonesOf(fmt).flatMap(({ name, from, to }) =>
    [
      [from, to],
      [-to, -from],
    ].map(([left, right]) => {
      const x = percent(left);
      return shape("rect", {
        class: `mpt-zone-${name}`,
        x: `${x}%`,
        width: `${percent(right) - x}%`,
        y: 0,
        height: 12,
      });
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
  return [
    element("span", { class: "mpt-legend-title" }, `What ${title(fmt)} can hold (log scale)`),
    ...keys,
  ];
}
