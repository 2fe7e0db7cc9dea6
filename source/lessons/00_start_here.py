# %% [markdown]
# # 00 · What can my machine do, and how does this course work?
#
# Training a network in 16 bits can be faster and smaller than in 32. It can also be slower, or
# larger, or fail without a word. This course is about telling which, and why, on real experiments.
#
# Afterwards you will be able to
#
# - say which 16-bit formats your machine computes in, and which it imitates,
# - work through a lesson and an exercise of this course,
# - name what goes wrong when everything is simply made 16-bit, and what repairs it.
#
# 15 minutes. You should have trained a network in PyTorch before. To run a cell, click it and press
# Shift+Enter.

# %%
import torch

import mptutor as mpt
from mptutor.checks import check
from mptutor.checks.progress import progress
from mptutor.plots import plot_training
from mptutor.widgets import TrainingRace

# %% [markdown]
# ## Your machine
#
# FP32, FP16 and BF16 are ways to store a number, in 32 or in 16 bits. A processor is *native* in a
# format if it has arithmetic units for it. If it has none, PyTorch *emulates* the format: it
# converts, computes in FP32 and converts back, or worse, works number by number.
#
# > **Predict.** A matrix product is what networks spend their time on. Two matrices of 256 × 256,
# > half the bits: how much faster is your machine in FP16 than in FP32? And in BF16? Write two
# > factors down. In this course you always write a number down before you run the cell; it's how
# > you find out what you believe.

# %%
machine = mpt.hardware.report()
step_ms = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    a = torch.randn(256, 256, device=machine.device).to(dtype)
    step_ms[dtype] = mpt.hardware.Timer(machine.device).measure(lambda a=a: a @ a).median_ms
    faster = step_ms[torch.float32] / step_ms[dtype]
    print(f"{dtype}: {step_ms[dtype]:.3f} ms, {faster:.2f} times the speed of FP32")

# %% [markdown]
# The factors are your machine's. On a GPU with Tensor Cores both are often above 1, unless the
# matrix is too small to fill it. On most CPUs FP16 is far *below* 1, for lack of units. This is
# what PyTorch says about your machine:

# %%
machine

# %% [markdown]
# Half the bits are no promise, then, and slow FP16 would make a course tedious on a laptop. So on
# a CPU the lessons compute FP16 as a Tensor Core does (16-bit inputs, sums in FP32, one rounding at
# the end) on the FP32 units. `mpt.simulate_amp()` does it. You see what a GPU would compute, at
# nearly the speed of FP32; what you do not see is a GPU's speed.

# %% [markdown]
# ## How a lesson works
#
# **Predict, run, reconcile.** A quoted paragraph asks for a number, the cell below it yields it,
# and the text after it explains the difference, if there is one.
#
# **Claims end in an `assert`.** It raises an error if the claim is false on your machine. Change
# one, and see that it can fail.

# %%
tenth = torch.tensor(0.1, dtype=torch.float16)
print(tenth.item())
assert tenth.item() != 0.1, "FP16 has no 0.1"

# %% [markdown]
# **Exercises check themselves.** Each lesson ends with a link to one. A check tries your function
# on many inputs; if one is wrong you see the input, what you gave, what was expected, and which
# misunderstanding that looks like. The first exercise asks which number a pattern of bits stands
# for. Answering "zero" to everything fails, on purpose:

# %% tags=["raises-exception"]
check("01.1", lambda code: 0.0)

# %% [markdown]
# ## A taste
#
# One small network learns to tell ten kinds of clothes apart. It is trained three times, by Adam,
# with the same seed and the same images:
#
# - in **FP32**, as usual,
# - in **naive FP16**: the model is turned to 16 bits with `.half()`, and that is all,
# - in **mixed precision** ("AMP"): the weights stay in FP32, the expensive operations run in FP16,
#   and the loss is scaled. Which operations, and why scaled, are lessons 04 to 07.
#
# > **Predict.** After one pass through 5,000 images, how far from FP32's accuracy will naive FP16
# > be? And AMP?

# %% tags=["widget"]
race = TrainingRace()
race

# %% [markdown]
# **Goal.** Press *Start*, and find out at which step one of the three is out of the race. *Stop*
# ends it early and keeps what there is; *Start again* runs it anew.
#
# **Question.** How far along was the race when it could be told who would not finish?
#
# <details><summary>Answer</summary>
#
# In its first turns of ten steps. A recipe that fails like this can be thrown out in seconds.
#
# </details>
#
# Without a click the next cell runs the race, and waits for its end: 13 seconds on one core of a
# server CPU.

# %%
taste = race.complete()
fp32, naive, amp = (taste.of(recipe)[0] for recipe in taste.recipes)
for run in (fp32, naive, amp):
    end = f"NaN at step {run.diverged_at_step}" if run.diverged_at_step else "finite to the end"
    print(f"{run.recipe:12} accuracy {run.last('accuracy'):.3f}, loss {end}")

# %%
plot_training(taste, title="Mixed precision follows FP32; naive FP16 is over after a step")

# %% [markdown]
# Naive FP16 was not a little worse: its second step was its last. Adam divides by √v + 10⁻⁸, where
# v is an average of the squared gradients. In FP16 small squares round to 0, and so does 10⁻⁸, and
# 0 / 0 is NaN. Mixed precision ends up beside FP32.

# %%
assert torch.tensor(1e-8).half() == 0
assert naive.diverged_at_step is not None and naive.diverged_at_step <= 3
assert abs(amp.last("accuracy") - fp32.last("accuracy")) < 0.05

# %% [markdown]
# It was one seed and one small network. Lesson 08 does it with several seeds and every recipe, and
# shows where naive FP16 gets by and where it fails without a NaN to warn you. That is the worse
# case.

# %% [markdown]
# ## Where you are
#
# The map below checks the exercises as you last saved them. Come back and run it again.

# %%
progress()

# %% [markdown]
# ## What you have seen
#
# - Your machine is native in some formats and emulates others, and half the bits did not simply
#   make it twice as fast: you have the factors.
# - A lesson asks, runs and explains; an `assert` holds each claim; a check names the
#   misunderstanding.
# - Made 16-bit without care, a training went to NaN at its second step. Mixed precision reached
#   FP32's accuracy.
#
# Go on to [lesson 01: What can 16 bits hold?](01_number_formats.ipynb)
