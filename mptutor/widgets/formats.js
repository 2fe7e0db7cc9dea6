// FloatFormat in JavaScript, so that a view needs no kernel to decode and encode. It follows
// mptutor/formats.py, whose module docstring explains it; a test compares the two code by code.
//
// A format arrives as plain data: {name, exponent_bits, mantissa_bits, bias, special, overflow,
// max_code}. Codes have up to 32 bits, too many for JavaScript's signed bit operators, so they are
// taken apart by division.

const doubleBits = new DataView(new ArrayBuffer(8));

// 2^n, exactly, for every exponent of a normal FP64 number.
function pow2(n) {
  doubleBits.setUint32(0, (n + 1023) << 20);
  doubleBits.setUint32(4, 0);
  return doubleBits.getFloat64(0);
}

// The n with 2^n <= |x| < 2^(n + 1). FP64 subnormals all give -1023: far below any format here.
function binade(x) {
  doubleBits.setFloat64(0, x);
  return ((doubleBits.getUint16(0) >> 4) & 0x7ff) - 1023;
}

function formatLimits(fmt) {
  const codes = pow2(fmt.exponent_bits + fmt.mantissa_bits);
  const emin = 1 - fmt.bias;
  const max = decode(fmt.max_code, fmt).value;
  return {
    bits: 1 + fmt.exponent_bits + fmt.mantissa_bits,
    signBit: codes,
    emin,
    emax: binade(max),
    max,
    smallestNormal: pow2(emin),
    smallestSubnormal: pow2(emin - fmt.mantissa_bits),
  };
}

function decode(code, fmt) {
  const signBit = pow2(fmt.exponent_bits + fmt.mantissa_bits);
  const steps = pow2(fmt.mantissa_bits);
  const sign = code >= signBit ? 1 : 0;
  const magnitude = code % signBit;
  const exponentField = Math.floor(magnitude / steps);
  const mantissaField = magnitude % steps;
  const fields = { code, sign, exponentField, mantissaField };
  if (magnitude > fmt.max_code) {
    const isInf = fmt.special === "ieee" && mantissaField === 0;
    const value = isInf ? (sign ? -Infinity : Infinity) : NaN;
    return { ...fields, exponent: null, significand: null, kind: isInf ? "inf" : "nan", value };
  }
  const leadingBit = exponentField > 0 ? 1 : 0;
  const kind = leadingBit ? "normal" : mantissaField ? "subnormal" : "zero";
  const exponent = Math.max(exponentField, 1) - fmt.bias;
  const significand = leadingBit + mantissaField / steps;
  const value = (sign ? -1 : 1) * significand * pow2(exponent);
  return { ...fields, exponent, significand, kind, value };
}

// The code nearest to x, ties to even; null where the format has no NaN.
function encode(x, fmt) {
  const signBit = pow2(fmt.exponent_bits + fmt.mantissa_bits);
  const sign = x < 0 || Object.is(x, -0) ? signBit : 0;
  if (Number.isNaN(x)) return nanCode(fmt);
  if (Number.isFinite(x)) {
    const ulp = spacing(x, fmt);
    const binadesBelow = binade(ulp) - (1 - fmt.bias - fmt.mantissa_bits);
    const code = binadesBelow * pow2(fmt.mantissa_bits) + roundHalfEven(Math.abs(x) / ulp);
    if (code <= fmt.max_code) return sign + code;
  }
  if (fmt.overflow === "saturate") return sign + fmt.max_code;
  return sign + (fmt.overflow === "inf" ? fmt.max_code + 1 : nanCode(fmt));
}

function nanCode(fmt) {
  if (fmt.special === "none") return null;
  if (fmt.special === "nan") return fmt.max_code + 1;
  return fmt.max_code + 1 + pow2(fmt.mantissa_bits - 1);
}

function roundHalfEven(x) {
  const below = Math.floor(x);
  const rest = x - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 !== 0) ? below + 1 : below;
}

function spacing(x, fmt) {
  return pow2(Math.max(binade(x), 1 - fmt.bias) - fmt.mantissa_bits);
}

function ulpOf(x, fmt) {
  return Number.isNaN(x) ? NaN : spacing(Math.min(Math.abs(x), formatLimits(fmt).max), fmt);
}

// The numbers next below and next above x, never x itself; beyond the largest ∞, or NaN if there
// is no infinity.
function neighbours(x, fmt) {
  if (Number.isNaN(x)) return [NaN, NaN];
  // Subtracting, since negation would make -0 of 0.
  return [0 - nextAbove(-x, fmt), nextAbove(x, fmt)];
}

function nextAbove(x, fmt) {
  const { max, smallestNormal } = formatLimits(fmt);
  if (x >= max) return fmt.special === "ieee" ? Infinity : NaN;
  if (x < -max) return -max;
  // Towards zero from a power of two the numbers lie closer than away from it.
  const closer = x < -smallestNormal && -x === pow2(binade(x));
  const ulp = spacing(x, fmt) / (closer ? 2 : 1);
  return (Math.floor(x / ulp) + 1) * ulp;
}
