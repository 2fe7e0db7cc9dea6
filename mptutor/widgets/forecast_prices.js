// The arithmetic of a forecast: counts of a step in, times and bytes out. The same as
// mptutor/forecast/pricing.py and roofline.py; a test holds them equal.

const PHASES = ["forward", "backward", "update"];
const [POINTWISE, PRODUCT, CONVOLUTION] = [0, 1, 2];
const [FLOAT32, FLOAT16, BFLOAT16] = [0, 1, 2];

// The data sheet's FLOP a second for an operation, and whether on Tensor Cores.
function arithmeticRate({ dtype, kind, flop }, gpu, choices) {
  if (dtype === FLOAT16) return [gpu.fp16_flops, true];
  if (dtype === BFLOAT16) return gpu.bf16_flops ? [gpu.bf16_flops, true] : [gpu.fp32_flops, false];
  const tf32 = kind === CONVOLUTION && choices.tf32_convolutions && flop && gpu.tf32_flops;
  return tf32 ? [gpu.tf32_flops, true] : [gpu.fp32_flops, false];
}

function bandwidth(gpu, { efficiency }) {
  return gpu.bytes_per_s * (gpu.memory_kind === "HBM" ? efficiency.hbm : efficiency.gddr);
}

// What an operation takes and what it waits for: the longest of three times.
function cost(operation, gpu, channelsLast, choices) {
  const { efficiency } = choices;
  const [flops, onTensorCores] = arithmeticRate(operation, gpu, choices);
  const convolution = operation.kind === CONVOLUTION;
  const share = onTensorCores
    ? efficiency.tensor_cores
    : convolution
      ? efficiency.cores_convolution
      : efficiency.cores;
  const transposed = convolution && onTensorCores && !channelsLast ? 1 + efficiency.transpose : 1;
  const arithmetic = operation.flop / (flops * share);
  const memory = (operation.bytes * transposed) / bandwidth(gpu, choices);
  const seconds = Math.max(arithmetic, memory, efficiency.launch_s);
  const bound =
    seconds === efficiency.launch_s ? "launch" : seconds === memory ? "memory" : "arithmetic";
  return { ms: 1000 * seconds, bound, rate: flops, onTensorCores };
}

function operationsAt(counted, batch) {
  return counted.operations.map(
    ([layer, phase, kind, dtype, flop, flopEach, bytes, bytesEach, times]) => ({
      layer: counted.layers[layer],
      phase: PHASES[phase],
      kind,
      dtype,
      flop: flop + flopEach * batch,
      bytes: bytes + bytesEach * batch,
      times,
    }),
  );
}

// A step priced for a GPU: {ms, bounds, peak, parts, layers, roof}.
function priceStep(counted, power, gpu, channelsLast, choices) {
  const noTimes = () => Object.fromEntries(choices.bounds.map((bound) => [bound, 0]));
  const bounds = noTimes();
  const layers = new Map();
  const flopAt = new Map();
  for (const operation of operationsAt(counted, 2 ** power)) {
    const { ms, bound, rate, onTensorCores } = cost(operation, gpu, channelsLast, choices);
    const key = `${operation.layer} ${operation.phase}`;
    if (!layers.has(key))
      layers.set(key, {
        name: operation.layer,
        phase: operation.phase,
        flop: 0,
        bytes: 0,
        bounds: noTimes(),
      });
    const layer = layers.get(key);
    const { times } = operation;
    bounds[bound] += times * ms;
    layer.bounds[bound] += times * ms;
    layer.flop += times * operation.flop;
    layer.bytes += times * operation.bytes;
    const units = `${rate} ${onTensorCores}`;
    const roof = flopAt.get(units) ?? { rate, onTensorCores, flop: 0 };
    roof.flop += times * operation.flop;
    flopAt.set(units, roof);
  }
  const parts = Object.fromEntries(choices.parts.map((part, i) => [part, counted.peaks[power][i]]));
  return {
    ms: total(bounds),
    bounds,
    parts,
    peak: total(parts),
    layers: [...layers.values()].filter(({ flop }) => flop).map(finished),
    roof: roofOf([...flopAt.values()], gpu, choices),
  };
}

function finished(layer) {
  const ms = total(layer.bounds);
  const bound = Object.keys(layer.bounds).reduce((a, b) =>
    layer.bounds[b] > layer.bounds[a] ? b : a,
  );
  return {
    ...layer,
    ms,
    bound,
    intensity: layer.flop / layer.bytes,
    flops: (1000 * layer.flop) / ms,
  };
}

// The roof for the products that make up most of the arithmetic.
function roofOf(rates, gpu, choices) {
  const { rate, onTensorCores } = rates.reduce((a, b) => (b.flop > a.flop ? b : a));
  const share = choices.efficiency[onTensorCores ? "tensor_cores" : "cores"];
  return {
    flops: rate,
    bytesPerS: gpu.bytes_per_s,
    reachedFlops: rate * share,
    reachedBytesPerS: bandwidth(gpu, choices),
  };
}

function total(values) {
  return Object.values(values).reduce((sum, value) => sum + value, 0);
}
