// A loss scaler replayed over recorded gradients: scaler_run.py, and next_state of scaler_state.py.

// The state after a step in which inf or NaN was found, or was not. The scale is an FP32 number.
function nextState(state, foundInf) {
  if (foundInf) {
    const scale = Math.fround(Math.max(state.scale * state.backoff_factor, state.min_scale));
    return { ...state, scale, growth_tracker: 0, skips_in_a_row: state.skips_in_a_row + 1 };
  }
  const tracker = state.growth_tracker + 1;
  if (tracker !== state.growth_interval)
    return { ...state, growth_tracker: tracker, skips_in_a_row: 0 };
  const larger = Math.fround(state.scale * state.growth_factor);
  const scale = Number.isFinite(larger) ? larger : state.scale;
  return { ...state, scale, growth_tracker: 0, skips_in_a_row: 0 };
}

function simulate(choices, start, spikes, nans) {
  const [isSpike, isNaNBatch] = [new Set(spikes), new Set(nans)];
  const steps = [];
  let state = start;
  let ruinedAt = null;
  choices.gradients.forEach((recorded, i) => {
    const injected = isSpike.has(i) ? recorded * choices.spike : recorded;
    const gradient = ruinedAt !== null || isNaNBatch.has(i) ? NaN : injected;
    const kind = kindOf(gradient, state.scale, ruinedAt !== null, choices);
    steps.push({ scale: state.scale, tracker: state.growth_tracker, gradient, kind });
    state = nextState(state, kind === "skipped" || kind === "dead");
    if (kind === "ruined") ruinedAt = i;
  });
  return { steps, finalScale: state.scale, ruinedAt };
}

function kindOf(gradient, scale, isDead, { overflow_threshold, underflow_threshold }) {
  if (isDead) return "dead";
  // Not "at least": NaN compares false with everything.
  if (!(gradient * scale < overflow_threshold)) return "skipped";
  if (!Number.isFinite(Math.fround(1 / scale))) return "ruined";
  return gradient * scale <= underflow_threshold ? "empty" : "ran";
}

function explore(state) {
  const { choices, spikes, nans } = state;
  const start = {
    scale: pow2(between(state.init_exponent, ...choices.exponents)),
    growth_tracker: 0,
    skips_in_a_row: 0,
    growth_factor: Number(state.growth),
    backoff_factor: Number(state.backoff),
    growth_interval: Number(state.interval),
    min_scale: Number(state.floor),
  };
  const run = simulate(choices, start, spikes, nans);
  const step = between(state.step, 0, choices.gradients.length - 1);
  const skips = run.steps.filter(({ kind }) => kind === "skipped").length;
  return { ...run, start, step, skips, spikes, nans, choices, problem: problemOf(state) };
}

function problemOf({ init_exponent, spikes, nans, step, choices }) {
  const last = choices.gradients.length - 1;
  const [low, high] = choices.exponents;
  if (init_exponent < low || init_exponent > high)
    return `The initial scale is 2^${init_exponent}; allowed is 2^${low} to 2^${high}. Shown is the nearest.`;
  const lost = [...spikes, ...nans].find((i) => i < 0 || i > last);
  if (lost !== undefined) return `There is no step ${lost} to break; allowed is 0 to ${last}.`;
  if (step < 0 || step > last)
    return `There is no step ${step}; allowed is 0 to ${last}. Shown is the nearest.`;
  return "";
}

// -- in words -------------------------------------------------------------------------------------

// A power of two as one, anything else in decimals.
function scaleText(scale) {
  return scale > 0 && pow2(binade(scale)) === scale
    ? `2${superscript(binade(scale))}`
    : shortNumber(scale, 4);
}

function roundText(x) {
  return x >= 1000 && x < 1e9 ? count(Math.round(Number(x.toPrecision(4)))) : shortNumber(x, 4);
}

// What happens in the step that is looked at.
function sentence({ steps, step, finalScale, ruinedAt, start, nans, choices }) {
  const { scale, tracker, gradient, kind } = steps[step];
  const next = scaleText(step + 1 < steps.length ? steps[step + 1].scale : finalScale);
  const falls =
    next === scaleText(scale) ? `the scale stays at ${next}` : `the scale becomes ${next}`;
  const product = `${shortNumber(gradient, 3)} × ${scaleText(scale)} = ${roundText(gradient * scale)}`;
  if (kind === "dead")
    return `Step ${step}: the weights are NaN since step ${ruinedAt}, and so is every gradient. Skipped; nothing helps any more.`;
  if (kind === "skipped" && nans.includes(step))
    return `Step ${step}: the gradients are NaN, at any scale. Skipped, and ${falls}.`;
  if (kind === "skipped")
    return `Step ${step}: the largest gradient, ${product}, is beyond FP16. Skipped, and ${falls}.`;
  if (kind === "ruined")
    return `Step ${step}: the batch is fine and passes the check. But 1 / scale is infinite in FP32, so the step writes NaN into the weights.`;
  if (kind === "empty")
    return `Step ${step}: even the largest gradient, ${product}, rounds to 0 in FP16. The step runs and learns nothing.`;
  const counted =
    tracker + 1 === start.growth_interval
      ? `Good step ${tracker + 1} in a row, and ${falls}`
      : `Good step ${tracker + 1} in a row, of ${start.growth_interval}`;
  return `Step ${step}: the largest gradient, ${product}, fits FP16. The step runs. ${counted}.`;
}

// How it all ends.
function summary({ steps, skips, finalScale, ruinedAt }) {
  const skipped = `${skips} of ${steps.length} steps are skipped`;
  if (ruinedAt !== null)
    return `${skipped}. Training is lost: step ${ruinedAt} writes NaN into the weights.`;
  const empty = steps.filter(({ kind }) => kind === "empty").length;
  const idle = empty ? `, ${empty} learn nothing` : "";
  return `${skipped}${idle}. The scale ends at ${scaleText(finalScale)}.`;
}
