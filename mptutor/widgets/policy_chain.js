// What the policy explorer shows, from its traits: the same as `result` in policy_explorer.py.

function explore({ search, op, chain, start, other, tables }) {
  const rows = new Map(tables.ops.map((row) => [row.op, row]));
  const matches = tables.ops.filter((row) => matchesSearch(row, search)).map((row) => row.op);
  const ops = chain.filter((name) => rows.has(name)).slice(0, tables.longest);
  const begin = start === "16-bit" ? tables.dtype : start;
  const follow = (device) =>
    followed(
      ops.map((name) => rows.get(name)[device]),
      begin,
      other,
      tables.dtype,
    );
  const [cuda, cpu] = [follow("cuda"), follow("cpu")];
  return {
    problem: problemOf({ search, op, chain, tables, rows, matches }),
    matches,
    selected: rows.get(op) ?? tables.ops[0],
    start: begin,
    steps: ops.map((name, i) => ({ op: name, cuda: cuda[i], cpu: cpu[i] })),
  };
}

function matchesSearch({ op, family }, search) {
  const name = `${op} ${family}`.toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => name.includes(word));
}

// What each op gives, from its row of outcomes for 16-bit, FP32 and mixed operands.
function followed(outcomes, begin, other, low16) {
  let dtype = begin;
  return outcomes.map(([low, wide, mixed]) => {
    if (dtype === "float32") dtype = wide;
    else if (dtype === low16) dtype = other === "same" ? low : mixed;
    else dtype = "";
    return dtype;
  });
}

function problemOf({ search, op, chain, tables, rows, matches }) {
  for (const name of [op, ...chain]) {
    if (!rows.has(name)) return `There is no op “${name}” in the table of ${rows.size}.`;
  }
  if (chain.length > tables.longest) {
    return `The chain has ${chain.length} ops; shown are the first ${tables.longest}.`;
  }
  return matches.length ? "" : `No op or family of the table has “${search}” in its name.`;
}

// -- in words -----------------------------------------------------------------------------------------

function sentence({ problem, selected, start, steps }, does) {
  if (problem) return problem;
  const [onCuda, onCpu] = [does[selected.rules.cuda], does[selected.rules.cpu]];
  const said =
    onCuda === onCpu
      ? `${selected.op} ${onCuda} on both.`
      : `${selected.op} ${onCuda} on CUDA and ${onCpu} on the CPU.`;
  if (!steps.length) return said;
  const [cuda, cpu] = [comesOut(steps, "cuda"), comesOut(steps, "cpu")];
  const both = cuda === cpu ? `${cuda} on both` : `${cuda} on CUDA and ${cpu} on the CPU`;
  return `${said} From ${start}, the chain ${both}.`;
}

function comesOut(steps, device) {
  const reached = steps.filter((step) => step[device] !== "");
  const last = reached.at(-1);
  const isWhole =
    reached.length === steps.length && !["raises", "not observed"].includes(last[device]);
  return isWhole ? `comes out ${last[device]}` : `breaks off at ${last.op}`;
}
