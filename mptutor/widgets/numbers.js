// Numbers as people type them and as people read them. The grammar is the one in
// typed_numbers.py; a test holds the two equal.

const TOKEN = /\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|inf(?:inity)?|nan|\*\*|[-+*/^])/iy;
const LONGEST_TEXT = 80;
const LARGEST_POWER = 1100;

// The number that `text` spells, or an Error whose message can be shown to the person who typed it.
function readNumber(text) {
  try {
    const tokens = tokenise(text);
    const value = readSum(tokens);
    if (tokens.length) throw new Error(tokens.at(-1));
    return value;
  } catch {
    const advice = "Type a number such as 0.1, 2048+1 or 2^-25.";
    const typed = text.trim();
    throw new Error(typed ? `“${typed}” is no number I can read. ${advice}` : advice);
  }
}

function tokenise(text) {
  text = text.replaceAll("−", "-").replaceAll("×", "*").trimEnd();
  if (text.length > LONGEST_TEXT) throw new Error("too long");
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const token = TOKEN.exec(text);
    if (!token) throw new Error(text);
    tokens.push(token[1].toLowerCase());
  }
  return tokens.reverse();
}

function readSum(tokens) {
  let total = readProduct(tokens);
  while (["+", "-"].includes(tokens.at(-1))) {
    total = tokens.pop() === "+" ? total + readProduct(tokens) : total - readProduct(tokens);
  }
  return total;
}

function readProduct(tokens) {
  let product = readSigned(tokens);
  while (["*", "/"].includes(tokens.at(-1))) {
    product =
      tokens.pop() === "*" ? product * readSigned(tokens) : divide(product, readSigned(tokens));
  }
  return product;
}

function readSigned(tokens) {
  if (["+", "-"].includes(tokens.at(-1))) {
    return tokens.pop() === "-" ? -readSigned(tokens) : readSigned(tokens);
  }
  const base = readLiteral(tokens.pop());
  if (!["^", "**"].includes(tokens.at(-1))) return base;
  tokens.pop();
  return power(base, readSigned(tokens));
}

function readLiteral(token) {
  if (token === "nan") return NaN;
  if (token === "inf" || token === "infinity") return Infinity;
  const value = token === undefined ? NaN : Number(token);
  if (Number.isNaN(value)) throw new Error(token);
  return value;
}

function divide(x, y) {
  if (y === 0) throw new Error("division by zero");
  return x / y;
}

function power(base, exponent) {
  if (!Number.isInteger(exponent) || Math.abs(exponent) > LARGEST_POWER)
    throw new Error("exponent");
  let result = 1;
  for (let i = 0; i < Math.abs(exponent); i++) result *= base;
  return exponent < 0 ? divide(1, result) : result;
}

// -- printing -------------------------------------------------------------------------------------

// The shortest text that reads back as x.
function printNumber(x) {
  if (Number.isNaN(x)) return "nan";
  if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
  return Object.is(x, -0) ? "-0" : String(x);
}

// x to so many significant digits, for people: 0.0999755859, 5.96e-8, ∞.
function shortNumber(x, digits = 9) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "-∞";
  if (Object.is(x, -0)) return "-0";
  const size = Math.abs(x);
  const rounded = Number(x.toPrecision(digits));
  if (size === 0 || (size >= 1e-4 && size < 1e9)) return String(rounded);
  return rounded.toExponential().replace("e+", "e");
}

// All digits of x while they are few; then the first ones and an ellipsis.
function exactNumber(x, mostDigits = 24) {
  if (!Number.isFinite(x) || x === 0) return shortNumber(x);
  const [digits, exponent] = x.toExponential(100).split("e");
  const significant = digits.replace(/\.?0+$/, "");
  if (significant.replace(/[-.]/g, "").length > mostDigits) return `${shortNumber(x, 15)}…`;
  if (exponent >= -6 && exponent < 12) return plainDigits(significant, Number(exponent));
  return `${significant}e${Number(exponent)}`;
}

function plainDigits(significant, exponent) {
  const sign = significant.startsWith("-") ? "-" : "";
  const digits = significant.replace(/[-.]/g, "");
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  const rest = digits.slice(exponent + 1);
  return rest ? `${sign}${whole}.${rest}` : sign + whole;
}

// x in few enough characters for a tick: all digits if they fit, else those that tell numbers of
// `mantissaBits` apart.
function tickNumber(x, mantissaBits) {
  const full = shortNumber(x);
  return full.length <= 9
    ? full
    : shortNumber(x, Math.ceil(1 + (mantissaBits + 1) * Math.log10(2)));
}

function superscript(integer) {
  return [...String(integer)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
}

function signed(integer) {
  return String(integer).replace("-", "−");
}

function between(x, low, high) {
  return Math.min(Math.max(x, low), high);
}
