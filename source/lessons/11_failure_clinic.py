# %% [markdown]
# # 11 · My loss is NaN. Now what?
#
# Eight trainings come in. Their loss is NaN, or stands still, or 16 bits bring nothing. You look at
# each with bare eyes first, then with an instrument, and mend it. The flow chart at the end is made
# of what you saw on the way.
#
# Afterwards you will be able to
#
# - tell from losses and scales alone which kind of fault to look for,
# - use `mptutor.audit` on a loop of your own, and read its findings,
# - mend a loop instead of hiding what is wrong with it,
# - say what an audit cannot tell.
#
# 50 minutes. You need [lesson 06](06_dynamic_loss_scaling.ipynb).

# %%
import math
import time

import torch
import torch.nn.functional as F

import mptutor
from mptutor.experiments.clinic import attention, classifier, detector, patient, powers, tell

# %% [markdown]
# ## A healthy loop
#
# A `patient` is a model, its optimizer, a scaler and some batches, small and seeded. This loop is
# in order. The instrument watches a loop without changing a bit of it, writes down what happened in
# which order, and judges that by rules.
#
# > **Predict.** Will it find something in a healthy loop?


# %%
def train(p, loss_of):
    losses, scales = [], []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = loss_of(p.model, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.scaler.update()
        losses.append(loss.item())
        scales.append(p.scaler.get_scale())
    return losses, scales


def cross_entropy(model, x, y):
    return F.cross_entropy(model(x), y)


with mptutor.audit() as a:
    losses, _ = train(patient(), cross_entropy)
print(tell(losses))

# %%
faults = [finding for finding in a.findings if finding.level != "note"]
assert faults == [] and losses[-1] < losses[0]
a

# %% [markdown]
# No fault. A *note* is true and needs nothing done. A *suspect* finding probably does harm, and a
# *wrong* one certainly.
#
# ## NaN from the first step
#
# The first patient is a head of attention. It trained well for weeks, and its queries and keys have
# grown.
#
# > **Predict.** The loss is NaN in all 20 steps. `GradScaler` starts at 65536 and does what it can.
# > Where is the scale afterwards, and what has it helped?


# %%
def attend(model, x, y):
    q, k, v = model["qkv"](x).chunk(3, dim=-1)
    weights = ((q @ k.mT) / q.shape[-1] ** 0.5).softmax(-1)
    return F.cross_entropy(model["head"](weights @ v).mean(1), y)


p = patient(attention)
before = p.weights_hash()
losses, scales = train(p, attend)
print(tell(losses, every=4), powers(scales), sep="\n")
assert scales[-1] == 2.0**-4 and p.weights_hash() == before

# %% [markdown]
# Every step was skipped and not one weight has moved. The loss was NaN *before* it was multiplied
# by the scale, so no scale can mend it. Now the instrument.

# %%
chart = {}
with mptutor.audit() as a:
    train(patient(attention), attend)
chart["NaN from the first step, scale collapses"] = a.findings[0].rule
a

# %% [markdown]
# The cause comes first and the collapse of the scale second, as its consequence. The product passes
# 65504 before it is divided; then softmax computes inf - inf. The repair divides first.


# %%
def attend_scaled_first(model, x, y):
    q, k, v = model["qkv"](x).chunk(3, dim=-1)
    weights = ((q / q.shape[-1] ** 0.5) @ k.mT).softmax(-1)
    return F.cross_entropy(model["head"](weights @ v).mean(1), y)


losses, scales = train(patient(attention), attend_scaled_first)
print(tell(losses, every=4))
assert min(scales) == 2.0**16 and losses[-1] < losses[0]

# %% [markdown]
# ## NaN now and then
#
# Binary cross entropy, written out by hand, with a guard against log(0).
#
# > **Predict.** In which steps will the loss be NaN: the first, or later ones, when the model has
# > become sure of itself? What is 1e-8 in FP16?


# %%
def guarded(model, x, y):
    prob = torch.sigmoid(model(x))
    return -(y * torch.log(prob + 1e-8) + (1 - y) * torch.log(1 - prob + 1e-8)).mean()


losses, scales = train(patient(detector, lr=2.0), guarded)
print(tell(losses), powers(scales), sep="\n")
print("the guard in FP16:", torch.tensor(1e-8).half().item())
print("a sigmoid of 9 in FP16:", torch.tensor(9.0).half().sigmoid().item())
assert math.isfinite(losses[0]) and any(map(math.isnan, losses))

# %%
with mptutor.audit() as a:
    train(patient(detector, lr=2.0), guarded)
chart["NaN now and then, more often as training goes on"] = a.findings[0].rule
a

# %% [markdown]
# The guard is 0. Once the model is sure, its sigmoid is exactly 1, and log(0) times 0 is NaN. A
# larger guard would keep the loss finite and make it flat exactly where the model is most wrong.
# The logarithm taken from the logits needs none.


# %%
def logit_loss(model, x, y):
    return F.binary_cross_entropy_with_logits(model(x), y)


losses, _ = train(patient(detector, lr=2.0), logit_loss)
print(tell(losses))
assert all(map(math.isfinite, losses)) and losses[-1] < losses[0]

# %% [markdown]
# ## NaN after a while, for good
#
# This loop has one line too many. The scale doubles every 4 good steps here, so that you need not
# wait for 2000.
#
# > **Predict.** For which steps does the extra line look harmless, and which one is the deadly one?


# %%
def step_twice(p):
    losses, scales = [], []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(p.model, x, y)
        p.scaler.scale(loss).backward()
        p.scaler.step(p.optimizer)
        p.optimizer.step()
        p.scaler.update()
        losses.append(loss.item())
        scales.append(p.scaler.get_scale())
    return losses, scales


losses, scales = step_twice(patient(growth_interval=4, steps=24))
print(tell(losses), powers(scales), sep="\n")
first = [math.isfinite(loss) for loss in losses].index(False)
assert scales[first - 1] < scales[first - 2]

# %%
with mptutor.audit() as a:
    step_twice(patient(growth_interval=4, steps=24))
chart["NaN for good after the first skipped step"] = a.findings[0].rule
a

# %% [markdown]
# A growing scale must overflow some day; the scaler skips that step and goes back. The extra
# `optimizer.step()` takes it all the same, with infinite gradients. Until then it only made every
# step twice as long. Repair: delete the line.

# %%
losses, scales = train(patient(growth_interval=4, steps=24), cross_entropy)
print(tell(losses, every=3), powers(scales), sep="\n")
assert all(map(math.isfinite, losses)) and max(scales) > scales[-1]

# %% [markdown]
# ## Flat, without a word
#
# The loss has a small weight, as an auxiliary loss has. Adam does not mind: it divides by the
# size of the gradients anyway. There is no scaler.
#
# > **Predict.** How many of the gradients are exactly 0?


# %%
def unscaled(p, weight=1e-6):
    losses = []
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = weight * cross_entropy(p.model, x, y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item() / weight)
    return losses


p = patient(lr=0.01, adam=True, steps=30)
print(tell(unscaled(p), every=3))
zeros = [(w.grad == 0).float().mean().item() for w in p.model.parameters()]
print("share of zeros in each gradient:", zeros)
assert min(zeros) == 1.0

# %%
with mptutor.audit() as a:
    unscaled(patient(lr=0.01, adam=True))
chart["flat, and gradients are 0"] = a.findings[0].rule
a

# %%
p = patient(lr=0.01, adam=True, steps=30)
losses, _ = train(p, lambda *batch: 1e-6 * cross_entropy(*batch))
print(tell([loss / 1e-6 for loss in losses], every=3))
assert losses[-1] < 0.9 * losses[0]

# %% [markdown]
# ## Flat, to the last bit
#
# One batch, over and over: a good loop learns it by heart. The gradients here are not 0, and the
# weights do move.
#
# > **Predict.** Autocast stands around the whole training. What does it remember from one step to
# > the next?


# %%
def one_block(p):
    x, y = p.batches[0]
    losses = []
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(20):
            p.optimizer.zero_grad()
            loss = cross_entropy(p.model, x, y)
            loss.backward()
            p.optimizer.step()
            losses.append(loss.item())
    return losses


p = patient()
before, losses = p.weights_hash(), one_block(p)
print(tell(losses, every=4))
assert len(set(losses)) == 1 and p.weights_hash() != before

# %%
with mptutor.audit() as a:
    one_block(patient())
chart["flat to the last bit, weights move"] = a.findings[0].rule
a

# %% [markdown]
# Autocast keeps its 16-bit copies of the weights until the block ends. Inside one block they are
# those of the first step. Repair: a block around each forward pass.


# %%
def one_batch(p, dtype=torch.float32, autocast=True):
    x, y = p.batches[0]
    losses = []
    for _ in range(20):
        p.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = cross_entropy(p.model, x.to(dtype), y)
        loss.backward()
        p.optimizer.step()
        losses.append(loss.item())
    return losses


losses = one_batch(patient())
print(tell(losses, every=4))
assert losses[-1] < 0.9 * losses[0]

# %% [markdown]
# ## Learns, but too little
#
# A fine-tuning with weights kept in BF16: small steps, by Adam.
#
# > **Predict.** All weights have a gradient. How many of 6467 change in 20 steps of 1e-4?


# %%
def changed(p, **options):
    before = [w.detach().clone() for w in p.model.parameters()]
    losses = one_batch(p, **options)
    moved = sum(int((w != b).sum()) for w, b in zip(p.model.parameters(), before, strict=True))
    return moved, losses


p = patient(lr=1e-4, adam=True)
p.model.bfloat16()
with mptutor.audit() as a:
    moved, losses = changed(p, dtype=torch.bfloat16, autocast=False)
chart["learns too little, weights keep their bits"] = a.findings[0].rule
print(moved, "weights moved;", tell(losses, every=4))

# %%
moved_fp32, losses_fp32 = changed(patient(lr=1e-4, adam=True))
print(moved_fp32, "weights moved;", tell(losses_fp32, every=4))
assert moved < moved_fp32 / 2 and losses_fp32[-1] < losses[-1]
a

# %% [markdown]
# FP32 weights under autocast are the repair; [lesson 04](04_master_weights.ipynb) says why.
#
# ## Nothing gained
#
# A loop that came from a machine with a GPU, and runs.
#
# > **Predict.** In which dtype does it compute on the CPU?


# %%
def ported(p):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in p.batches:
        p.optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = cross_entropy(p.model, x, y)
        scaler.scale(loss).backward()
        scaler.step(p.optimizer)
        scaler.update()


with torch.autocast("cuda"):
    print(classifier()(torch.ones(1, 32)).dtype)
with mptutor.audit() as a:
    ported(patient())
chart["nothing gained, all is FP32"] = a.findings[0].rule
a

# %%
p = patient()
seen = []
p.model.register_forward_hook(lambda model, inputs, output: seen.append(output.dtype))
train(p, cross_entropy)
print(set(seen))
assert set(seen) == {torch.float16}

# %% [markdown]
# ## Slower than before
#
# The last one is in 16 bits and in order. Its layers are 16 wide.
#
# > **Predict.** Which is faster at a width of 16, FP32 or BF16? And at 512?


# %%
def step_ms(width, autocast):
    p = patient(lambda: classifier(width), batch=256)
    one_batch(p, autocast=autocast)
    start = time.perf_counter()
    one_batch(p, autocast=autocast)
    return (time.perf_counter() - start) / 20 * 1000


for width in (16, 512):
    print(
        f"{width:4} wide: FP32 {step_ms(width, False):.2f} ms, BF16 {step_ms(width, True):.2f} ms"
    )
with mptutor.audit() as a:
    one_batch(patient(lambda: classifier(16), batch=256))
notes = [finding.rule for finding in a.findings]
chart["slower than in FP32"] = "layers_too_small"
assert "layers_too_small" in notes
a

# %% [markdown]
# Open the notes: nothing is wrong here, so the finding is one of them. Whether the wide layers gain
# is up to your processor; without BF16 units they do not, and the audit notes that too. Lesson 09
# measures where the gain begins.
#
# ## The flow chart
#
# You have earned it. Each row is a symptom you saw and the first finding of the audit.

# %%
for symptom, cause in chart.items():
    print(f"{symptom:52} {cause}")
kinds = {mptutor.audit.RULES[cause].kind for cause in chart.values()}
assert kinds == {"order", "dtype", "range", "gain"} and len(chart) == 8

# %% [markdown]
# 1. Is the **loss** inf or NaN? The forward pass is at fault, or the weights are NaN already; no
#    scale helps. Look for the first operation with an infinite result: a product, a sum, a guard.
# 2. Is the loss finite and the **scale** falling? A few skips at the start are harmless. Skips that
#    do not end come from the backward pass.
# 3. Finite and **flat**? Count zeros in the gradients, then weights that moved. Zeros: the scale is
#    missing. No movement: the weights are in 16 bits. Movement and the same loss: a stale cache.
#    Movement, but wrong: the order of scale, unscale, clip and step, as in the exercise.
# 4. Fine, but **nothing gained**? Print the dtype of a layer's output, then compare step times.
#
# ## Repairs that hide
#
# > **Predict.** The head of attention again. `nan_to_num` makes its loss finite. What are the loss
# > and the weights after 20 steps?

# %%
p = patient(attention)
before = p.weights_hash()
losses, scales = train(p, lambda *batch: torch.nan_to_num(attend(*batch)))
print(tell(losses, every=4), powers(scales), sep="\n")
assert set(losses) == {0.0} and p.weights_hash() == before

# %% [markdown]
# A loss of 0, and nothing learned. Skipping bad batches, turning the scale down, raising an eps or
# turning AMP off do the same in other ways: they silence a symptom and leave its cause. After a
# repair the loss must fall *as in the right loop*.
#
# ## What the audit cannot tell
#
# > **Predict.** Here are labels that are pure chance, and a guard that comes into use in step 12.
# > Which of the two will be found?


# %%
def guard_from_step_12():
    steps = iter(range(20))
    return lambda *batch: (guarded if next(steps) >= 12 else logit_loss)(*batch)


p = patient()
p.batches = [(x, y[torch.randperm(len(y))]) for x, y in p.batches]
with mptutor.audit() as by_chance:
    train(p, cross_entropy)
with mptutor.audit() as usual:
    train(patient(detector), guard_from_step_12())
with mptutor.audit(call_steps=20) as patient_audit:
    train(patient(detector), guard_from_step_12())
for a in by_chance, usual, patient_audit:
    print([finding.rule for finding in a.findings if finding.level != "note"])
assert patient_audit.findings[0].rule == "constant_vanishes"

# %% [markdown]
# Neither, at first. Wrong labels, a bad learning rate, a bug in the model: all that is wrong in
# FP32 too is no business of the audit. Train in FP32 first, then look at precision.
#
# And it judges what it saw. Calls of torch are looked at in the first 5 steps and again once
# something is inf or NaN; layers in the first 20, then every 50th. A fault that comes later and
# stays quiet is found with a larger `call_steps`, or by auditing a run that starts from a late
# checkpoint. It does not see the inside of compiled code, other processes, or scalers that are not
# PyTorch's; its report says so where it meets them. Speed it does not measure at all.
#
# ## What you have seen
#
# - Losses and scales alone told NaN of the forward pass from a bad scale, and both from a loss that
#   stands still.
# - The audit named the cause of all eight, with the line; consequences stood below it.
# - Each repair removed the cause, and the loss fell. Hiding NaN repairs nothing.
# - An audit judges order, dtypes and ranges in the steps it watched. It knows nothing about what is
#   wrong in FP32 as well.
#
# **Now you:** [exercise 11](../exercises/11_failure_clinic/11_failure_clinic.ipynb), 40 minutes.
# For a script of your own, run `mptutor audit train.py` in a terminal.
