// What becomes of a weight when updates arrive: update_grid.py's arithmetic. Part of that explorer.

// Where `wanted` lies on the grid: the numbers on either side, the one nearest-even rounding takes,
// and how far it is on the way from one to the other.
function land(wanted, fmt, max = formatLimits(fmt).max) {
  wanted = between(wanted, -max, max);
  const ulp = spacing(wanted, fmt);
  const steps = wanted / ulp;
  const below = Math.floor(steps);
  const nearest = Math.sign(steps) * roundHalfEven(Math.abs(steps)) * ulp;
  return {
    wanted,
    below: below * ulp,
    above: Math.ceil(steps) * ulp,
    nearest,
    fraction: steps - below,
  };
}

// The ratio |weight / update| from which on the update is swallowed: half way to the neighbour.
function cutOff(weight, update, fmt) {
  const [below, above] = neighbours(weight, fmt);
  const gap = update > 0 ? above - weight : weight - below;
  return Math.abs(weight) / ((Number.isFinite(gap) ? gap : ulpOf(weight, fmt)) / 2);
}

// What is held (the weight or its master copy) and the weight, before the first step and after each.
function updatePath({ fmt, way, start, update, run }, { formats, draws, draw_steps }) {
  const fp32 = formats[0];
  const max = formatLimits(fmt).max;
  const fp32Max = formatLimits(fp32).max;
  let held = start;
  const path = { held: [start], weights: [start] };
  for (const draw of draws[run]) {
    if (way === "master") {
      held = land(held + update, fp32, fp32Max).nearest;
    } else {
      const { below, above, nearest, fraction } = land(held + update, fmt, max);
      const byChance = (draw + 0.5) / draw_steps < fraction ? above : below;
      held = way === "nearest" ? nearest : byChance;
    }
    path.held.push(held);
    path.weights.push(way === "master" ? land(held, fmt, max).nearest : held);
  }
  return path;
}

// The paths of all ways, and what each format makes of the update. Moving along the path changes
// none of this, so the last answer is kept.
let lastPaths = { key: "", answer: null };

function allPaths({ fmt, weight, update, choices }) {
  const key = [fmt.name, weight, update].join(" ");
  if (lastPaths.key !== key) {
    const start = land(weight, fmt).nearest;
    const runsOf = (way) => (way === "stochastic" ? choices.draws.length : 1);
    const runs = (way) =>
      Array.from({ length: runsOf(way) }, (_, run) =>
        updatePath({ fmt, way, start, update, run }, choices),
      );
    const paths = Object.fromEntries(choices.ways.map((way) => [way, runs(way)]));
    lastPaths = { key, answer: { start, paths, rows: formatRows(weight, update, choices) } };
  }
  return lastPaths.answer;
}

function formatRows(weight, update, choices) {
  return choices.formats.map((fmt) => {
    const start = land(weight, fmt).nearest;
    const { weights } = updatePath({ fmt, way: "nearest", start, update, run: 0 }, choices);
    return {
      fmt,
      start,
      cutOff: cutOff(start, update, fmt),
      swallowed: weights[1] === start,
      end: weights.at(-1),
    };
  });
}

function explore(state) {
  const { choices, way } = state;
  const fmt = choices.formats.find(({ name }) => name === state.fmt);
  const grid = way === "master" ? choices.formats[0] : fmt;
  const inputs = readInputs(state.weight, state.update, choices);
  const { weight, update } = inputs;
  const n = between(state.n, 0, choices.steps);
  const nProblem = `n is ${count(state.n)}; allowed is 0 to ${count(choices.steps)}. Shown is the nearest.`;
  const { start, paths, rows } = allPaths({ fmt, weight, update, choices });
  const held = paths[way][0].held[n];
  const after = land(held + update, grid);
  return {
    fmt,
    way,
    n,
    start,
    held,
    update,
    paths,
    rows,
    grid,
    problem: inputs.problem || (n === state.n ? "" : nProblem),
    weights: paths[way].map((path) => path.weights[n]),
    exact: start + n * update,
    landing: way === "master" ? land(after.nearest, fmt) : after,
    ratio: Math.abs(held / update),
    cutOff: cutOff(held, update, grid),
    swallowed: way === "stochastic" ? after.above === after.below : after.nearest === held,
  };
}

// -- what was typed -------------------------------------------------------------------------------

function readInputs(weightText, updateText, { weights, ratios }) {
  let [weight, problem] = readInput(weightText, "weight", 1);
  if (weight < weights[0] || weight > weights[1]) {
    problem ||= `The weight is ${weightText}; allowed is 2^-6 to 2.`;
    weight = between(weight, ...weights);
  }
  let [update, updateProblem] = readInput(updateText, "update", -weight / 5000);
  const size = between(Math.abs(update), weight / ratios[1], weight / ratios[0]);
  if (size !== Math.abs(update)) {
    updateProblem ||= `The update is ${updateText}; allowed is a half to 2^-26 of the weight, up or down.`;
    update = update < 0 || Object.is(update, -0) ? -size : size;
  }
  problem ||= updateProblem;
  return {
    weight,
    update: Math.fround(update),
    problem: problem ? `${problem} Shown is the nearest.` : "",
  };
}

function readInput(text, name, otherwise) {
  try {
    const number = readNumber(text);
    return Number.isFinite(number)
      ? [Math.fround(number), ""]
      : [otherwise, `The ${name} is ${text}; it has to be finite.`];
  } catch (error) {
    return [otherwise, `${name[0].toUpperCase()}${name.slice(1)}: ${error.message}`];
  }
}

// -- in words -------------------------------------------------------------------------------------

const WAY_NAMES = {
  nearest: "in the format, to nearest",
  stochastic: "in the format, at random",
  master: "with an FP32 master copy",
};

function ratioText(ratio) {
  return ratio < 100 ? shortNumber(ratio, 3) : count(Math.round(ratio));
}

// What the next update does.
function sentence(view) {
  const { fmt, way, held, update, landing, ratio, cutOff, swallowed, weights } = view;
  const name = fmt.name.replaceAll("_", " ");
  const sum = `${shortNumber(held, 6)} ${update < 0 ? "−" : "+"} ${shortNumber(Math.abs(update), 4)}`;
  const times = `the weight is ${ratioText(ratio)} times the update`;
  const limit = `from ${ratioText(cutOff)} times on`;
  if (way === "master" && swallowed)
    return `Even the FP32 master copy swallows this update: ${times}, and ${limit} it is lost.`;
  if (way === "master") {
    const now = landing.nearest === weights[0] ? "stays at" : "moves to";
    return `The master copy keeps the update: ${sum}. The ${name} weight made from it ${now} ${shortNumber(landing.nearest, 7)}.`;
  }
  if (way === "stochastic" && !swallowed) {
    const [up, down] = [landing.fraction, 1 - landing.fraction].map(percentText);
    return `${name}: ${sum} goes to ${shortNumber(landing.below, 7)} with a chance of ${down}, to ${shortNumber(landing.above, 7)} with ${up}.`;
  }
  if (swallowed)
    return `${name}: ${sum} is rounded back to ${shortNumber(landing.nearest, 7)}. Swallowed: ${times}, and ${limit} it is lost.`;
  return `${name}: ${sum} becomes ${shortNumber(landing.nearest, 7)}. Kept: ${times}; ${limit} it would be lost.`;
}

// Where the weight stands.
function standing({ n, weights, exact, fmt }) {
  const name = fmt.name.replaceAll("_", " ");
  const mean = weights.reduce((a, b) => a + b) / weights.length;
  const what =
    weights.length > 1 ? `${weights.length} ${name} weights are on average` : `${name} weight is`;
  return `After ${count(n)} update${n === 1 ? "" : "s"} the ${what} ${shortNumber(mean, 7)}; exact is ${shortNumber(exact, 7)}.`;
}
