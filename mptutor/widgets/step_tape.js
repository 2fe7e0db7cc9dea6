// What the step debugger shows, from its recording: the stops of a run, and what each means.
// step_recording.py says how runs are packed.

const GRADIENTS = ["dtype", "norm", "low", "median", "largest", "zero", "nonfinite", "one"];
const LOSSES = ["outputDtype", "outputMax", "lossDtype", "loss", "scaled"];
const SCALING = ["scale", "growthTracker", "foundInf"];
const WEIGHTS = ["one", "moved"];

const NOT_FINITE = { nan: NaN, inf: Infinity, "-inf": -Infinity };

function explore({ loop, batch, scale, stop, recording }) {
  const chosen = findLoop(recording, loop);
  const run = unpackRun(recording, chosen, batch, scale);
  const right = unpackRun(recording, recording.choices.loops[0], batch, scale);
  const last = run.stops.length - 1;
  const problem =
    stop >= 0 && stop <= last
      ? ""
      : `There is no stop ${stop}; allowed is 0 to ${last}. Shown is the nearest.`;
  const place = between(stop, 0, last);
  return { ...run, loop: chosen, batch, scale, right, stop: place, now: run.stops[place], problem };
}

function findLoop({ choices }, name) {
  return choices.loops.find((loop) => loop.name === name);
}

function unpackRun(recording, loop, batch, scale) {
  const [moments, error] = recording.runs[loop.name][batch][scale];
  const stops = [];
  let [step, line, previous] = [0, -1, ""];
  for (const index of moments) {
    const [event, losses, gradients, scaling, weights] = recording.moments[index];
    if (previous !== "checked") {
      line += 1;
      if (line === loop.calls.length) [step, line] = [step + 1, 0];
    }
    stops.push({
      step,
      line,
      event,
      call: loop.calls[line],
      losses: named(LOSSES, recording.losses[losses]),
      gradients: gradients < 0 ? null : named(GRADIENTS, recording.gradients[gradients]),
      scaling: named(SCALING, recording.scaling[scaling]),
      weights: named(WEIGHTS, recording.weights[weights]),
    });
    previous = event;
  }
  return { stops, error: recording.errors[error] };
}

function named(names, row) {
  return Object.fromEntries(names.map((name, i) => [name, NOT_FINITE[row[i]] ?? row[i]]));
}

// -- other loops ----------------------------------------------------------------------------------

// The loop that these calls make, if it was recorded.
function loopOf(calls, { choices }) {
  const text = (some) => JSON.stringify(some);
  return choices.loops.find((loop) => text(loop.calls) === text(calls));
}

// What the four buttons would make of the call at `line`: a loop, and where the call then is.
const CHANGES = {
  earlier: (calls, line) => [swapped(calls, line - 1), line - 1],
  later: (calls, line) => [swapped(calls, line), line + 1],
  twice: (calls, line) => [[...calls.slice(0, line + 1), ...calls.slice(line)], line + 1],
  out: (calls, line) => [calls.filter((_, i) => i !== line), Math.min(line, calls.length - 2)],
};

function swapped(calls, line) {
  if (line < 0 || line + 1 >= calls.length) return [];
  return [...calls.slice(0, line), calls[line + 1], calls[line], ...calls.slice(line + 2)];
}

// The traits after a change at the present line, or nothing if that loop was not recorded.
function changed({ loop, now, batch, scale }, change, recording) {
  const [calls, line] = CHANGES[change](loop.calls, now.line);
  const next = loopOf(calls, recording);
  if (!next) return null;
  const run = unpackRun(recording, next, batch, scale);
  return { loop: next.name, stop: stopAt(run.stops, now.step, line) };
}

// The first stop at a line of a step; where the run does not get there, its last.
function stopAt(stops, step, line) {
  const found = stops.findIndex((stop) => stop.step === step && stop.line === line);
  return found < 0 ? stops.length - 1 : found;
}

// The traits for another loop, batch or scale: at the same call of the same step, if it is there.
function changedTo(state, changes) {
  const { now } = explore(state);
  const next = { ...state, ...changes };
  const loop = findLoop(state.recording, next.loop);
  const line = loop.calls.findIndex(({ name }) => name === now.call.name);
  const { stops } = unpackRun(state.recording, loop, next.batch, next.scale);
  const first = stopAt(stops, now.step, Math.max(line, 0));
  const isSecond = now.event === "stepped" || now.event === "skipped";
  const stop = isSecond && stops[first].event === "checked" ? first + 1 : first;
  return { ...changes, stop };
}

// -- in words -------------------------------------------------------------------------------------

function sizeText(x) {
  if (x >= 1000 && x < 1e6) return count(Math.round(x));
  return shortNumber(x, 4);
}

function scaleText(scale) {
  return scale > 0 && pow2(binade(scale)) === scale
    ? `2${superscript(binade(scale))}`
    : sizeText(scale);
}

function ratioText(ratio) {
  if (ratio === 1) return "the same";
  if (Number.isNaN(ratio)) return "NaN";
  if (ratio === 0) return "nothing";
  if (!Number.isFinite(ratio)) return "∞";
  return ratio > 1
    ? `× ${sizeText(Number(ratio.toPrecision(3)))}`
    : `÷ ${sizeText(Number((1 / ratio).toPrecision(3)))}`;
}

function dtypeText(dtype) {
  return { float16: "FP16", float32: "FP32", bfloat16: "BF16" }[dtype] ?? dtype;
}

// How the gradients are, as the end of a sentence.
function gradientText(gradients) {
  if (!gradients) return "there are no gradients";
  const { norm, nonfinite, zero } = gradients;
  if (nonfinite) return `${percentText(nonfinite)} of the gradients are inf or NaN`;
  if (zero === 1) return "every gradient is 0";
  return `the gradient norm is ${sizeText(norm)}`;
}

function previousOf({ stops, stop }) {
  return stop > 0 ? stops[stop - 1] : null;
}

// What the call at the present stop has done.
function sentence(view) {
  const { now, error, batch } = view;
  const begins = `Step ${now.step + 1}, ${now.call.name}: `;
  if (now.event === "raised") return `${begins}${error.split(". ")[0].replace(/\.$/, "")}.`;
  return (
    begins +
    SENTENCES[now.event === "ran" ? now.call.name : now.event](now, previousOf(view), batch)
  );
}

const SENTENCES = {
  half: () => "the weights themselves are FP16 from here on.",
  zero_grad: (now, before) =>
    before?.gradients ? "the old gradients are gone." : "there are no gradients yet to clear.",
  forward: ({ losses: { outputDtype, outputMax } }) =>
    `the outputs are ${dtypeText(outputDtype)}, the largest ${sizeText(outputMax)}.`,
  loss: ({ losses: { lossDtype, loss } }) =>
    `the loss is ${sizeText(loss)}, in ${dtypeText(lossDtype)}.`,
  scale: ({ losses: { loss, scaled }, scaling: { scale } }) =>
    `${sizeText(loss)} × ${scaleText(scale)} = ${sizeText(scaled)}. Every gradient will be as many times too large.`,
  backward: ({ gradients, losses: { scaled }, scaling: { scale } }, before) => {
    if (before?.gradients)
      return `added to the gradients that were there, ${gradientText(gradients)}.`;
    const asIs = scaled === null || scale === 1 || gradients.nonfinite || gradients.zero === 1;
    return `${gradientText(gradients)}${asIs ? "" : `, ${scaleText(scale)} times too large`}.`;
  },
  unscale_: ({ gradients, scaling: { scale, foundInf } }) => {
    if (!gradients) return "there is nothing to unscale, and nothing is noted.";
    const found = foundInf ? "inf or NaN was found and noted" : "no inf or NaN was found";
    return `divided by ${scaleText(scale)}, ${gradientText(gradients)}; ${found}.`;
  },
  clip: ({ gradients }, before) => {
    if (!gradients) return "there is nothing to clip.";
    if (gradients.nonfinite) return `the norm is not finite, and ${gradientText(gradients)}.`;
    if (before.gradients.norm <= 1)
      return `the norm, ${sizeText(before.gradients.norm)}, is within 1.0: nothing is clipped.`;
    return `the norm was ${sizeText(before.gradients.norm)} and is ${sizeText(gradients.norm)}.`;
  },
  checked: ({ gradients, scaling: { foundInf, scale } }, before) => {
    const isSame = JSON.stringify(gradients) === JSON.stringify(before?.gradients);
    const unscaled = isSame
      ? ""
      : `no unscale_ since the last update, so step divides by ${scaleText(scale)} itself: ${gradientText(gradients)}. `;
    return `${unscaled}${foundInf ? "Inf or NaN was found: the optimizer will not run." : "No inf or NaN was found: the optimizer may run."}`;
  },
  stepped: ({ weights: { moved } }) =>
    Number.isNaN(moved)
      ? "the optimizer runs and writes NaN into the weights."
      : `the optimizer runs. The weights move by ${sizeText(moved)}${moved === 0 ? ": nothing is learned" : ""}.`,
  skipped: () => "skipped. The weights stay as they are.",
  update: ({ scaling: { scale } }, before) =>
    scale === before.scaling.scale
      ? `the scale stays at ${scaleText(scale)}.`
      : `the scale becomes ${scaleText(scale)}.`,
};

// -- the damage -----------------------------------------------------------------------------------

// How each step ended, beside the right order.
function damage({ stops, right }) {
  return [0, 1].map((step) => {
    const ours = endOf(stops, step);
    const theirs = endOf(right.stops, step);
    const moved = ours ? ours.weights.moved : 0;
    const reference = theirs.weights.moved;
    return {
      step,
      outcome: outcomeOf(stops, step),
      moved,
      reference,
      ratio: moved === reference ? 1 : moved / reference,
      scale: ours ? ours.scaling.scale : null,
    };
  });
}

function endOf(stops, step) {
  return stops.filter((stop) => stop.step === step).at(-1);
}

function outcomeOf(stops, step) {
  const events = stops.filter((stop) => stop.step === step).map(({ event }) => event);
  if (!events.length) return "never comes";
  const ran = events.find((event) => event === "stepped" || event === "skipped");
  if (events.includes("raised")) return ran ? `${ran}, then raises` : "raises";
  return ran ?? "no step";
}
