// One row of bits a format, to click and to type; a part of the bit explorer.
//
// All rows are aligned where the exponent ends and the mantissa begins: to the left of that line
// lies range, to the right precision.
const NAME_COLUMN = 1;
const BOUNDARY_COLUMN = 2 + 1 + 8;

function bitTable(rows, actions) {
  const group = `mpt-format-${Math.random().toString(36).slice(2)}`;
  const drawn = rows.map((fmt) => bitRow(fmt, group, actions));
  walkWithKeys(drawn);
  const head = element(
    "div",
    { class: "mpt-row mpt-head", "aria-hidden": "true" },
    element(
      "span",
      { style: `grid-column: ${NAME_COLUMN + 1} / ${BOUNDARY_COLUMN}`, class: "mpt-ends" },
      key("sign"),
      key("exponent"),
    ),
    element(
      "span",
      { style: `grid-column: ${BOUNDARY_COLUMN} / span 23`, class: "mpt-starts" },
      key("mantissa"),
    ),
    element("span", { class: "mpt-value" }, "stored value"),
    element("span", { class: "mpt-error" }, "rel. error"),
  );
  const node = element(
    "div",
    { class: "mpt-table", role: "group", "aria-label": "Bits in every format" },
    head,
    ...drawn.map((row) => row.node),
  );
  const update = (view) => drawn.forEach((row, i) => row.update(view.stored[i], view.selected));
  return { node, update };
}

function key(field) {
  return element(
    "span",
    { class: "mpt-key" },
    element("i", { class: `mpt-one mpt-${field}` }),
    field,
  );
}

function bitRow(fmt, group, { now, hold, choose }) {
  const storedNow = () => now().stored.find((stored) => stored.fmt.name === fmt.name);
  const bitNow = (place) => storedNow().bits?.[place];
  const set = (place, bit) => hold(fmt, withBit(storedNow(), place, bit));
  const bits = bitPlaces(fmt).map(({ field, label, column }, place) =>
    control("button", {
      type: "button",
      role: "switch",
      class: `mpt-bit mpt-${field}`,
      style: `grid-column: ${column}`,
      tabindex: -1,
      title: label,
      "aria-label": `${title(fmt)} ${label}`,
      onclick: () => set(place, bitNow(place) === "1" ? "0" : "1"),
    }),
  );
  const radio = control("input", { type: "radio", name: group, onchange: () => choose(fmt) });
  const value = element("span", { class: "mpt-value" });
  const error = element("span", { class: "mpt-error" });
  const node = element(
    "div",
    {
      class: "mpt-row",
      "data-format": fmt.name,
      onclick: ({ target }) => {
        if (!target.closest("button, label")) choose(fmt);
      },
    },
    element("label", { class: "mpt-name" }, radio, title(fmt)),
    ...bits,
    value,
    error,
  );
  const update = (stored, selected) => {
    bits.forEach((bit, place) => showBit(bit, stored.bits?.[place]));
    value.textContent = stored.kind === "none" ? "no NaN" : shortNumber(stored.value);
    error.textContent = errorText(stored.relativeError);
    radio.checked = stored === selected;
    node.classList.toggle("mpt-selected", stored === selected);
  };
  return { node, bits, bitNow, set, update };
}

function showBit(button, bit) {
  const shown = bit ?? "·";
  if (button.textContent === shown) return;
  button.textContent = shown;
  button.classList.toggle("mpt-one", bit === "1");
  button.setAttribute("aria-checked", bit === "1");
}

function errorText(relativeError) {
  if (relativeError === 0) return "exact";
  return Number.isNaN(relativeError) ? "" : shortNumber(relativeError, 2);
}

// The fields of a code from the left: what each bit is, and the column it stands in.
function bitPlaces({ exponent_bits, mantissa_bits, bias }) {
  const first = BOUNDARY_COLUMN - exponent_bits - 1;
  const places = [{ field: "sign", label: "sign bit", column: first }];
  for (let i = exponent_bits - 1; i >= 0; i--) {
    const label = `exponent bit, worth ${2 ** i} (bias ${bias})`;
    places.push({ field: "exponent", label, column: BOUNDARY_COLUMN - 1 - i });
  }
  for (let i = 1; i <= mantissa_bits; i++) {
    const label = `mantissa bit, worth 2${superscript(-i)}`;
    places.push({ field: "mantissa", label, column: BOUNDARY_COLUMN + i - 1 });
  }
  return places;
}

// Where there is no code yet, the other bits are 0.
function withBit({ fmt, code, bits }, place, bit) {
  const worth = pow2(formatLimits(fmt).bits - 1 - place);
  return (code ?? 0) + worth * (Number(bit) - Number(bits?.[place] ?? 0));
}

// One bit at a time is in the tab order. Arrows walk over the bits; 0 and 1 set one and go on to the
// next, so that a code can be typed; Space and Enter flip, as they do on every button.
function walkWithKeys(rows) {
  const places = rows.map((row) => row.bits);
  let at = places[0][0];
  at.tabIndex = 0;
  const stand = (bit) => {
    if (!bit) return;
    at.tabIndex = -1;
    at = bit;
    at.tabIndex = 0;
    at.focus();
  };
  rows.forEach((row, r) =>
    row.bits.forEach((bit, place) => {
      bit.addEventListener("click", () => stand(bit));
      bit.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey) return;
        if ("01".includes(event.key)) {
          if (row.bitNow(place) !== event.key) row.set(place, event.key);
          stand(row.bits[place + 1]);
        } else {
          const next = bitAfterKey(event.key, places, r, place);
          if (next === undefined) return;
          stand(next);
        }
        event.preventDefault();
      });
    }),
  );
}

function bitAfterKey(key, rows, r, place) {
  const sameColumn = (row) => {
    const column = (bit) => Number.parseInt(bit.style.gridColumn, 10);
    const distance = (bit) => Math.abs(column(bit) - column(rows[r][place]));
    return row?.reduce((best, bit) => (distance(bit) < distance(best) ? bit : best)) ?? null;
  };
  switch (key) {
    case "ArrowLeft":
      return rows[r][place - 1] ?? null;
    case "ArrowRight":
      return rows[r][place + 1] ?? null;
    case "ArrowUp":
      return sameColumn(rows[r - 1]);
    case "ArrowDown":
      return sameColumn(rows[r + 1]);
    case "Home":
      return rows[r][0];
    case "End":
      return rows[r].at(-1);
    default:
      return undefined;
  }
}
