# %% [markdown]
# # 08 · Does it reach the same accuracy?
#
# Mixed precision is worth its trouble only if the network ends up as good. "My run reached 91 %
# with both" proves little: another seed moves that number more than the precision does. This lesson
# trains one network by every recipe, several times, and looks where recipes really differ.
#
# Afterwards you will be able to
#
# - turn an FP32 training loop into mixed precision, and say what each line is for,
# - compare two recipes over several seeds, and say whether they differ,
# - name, for each recipe that fails, the optimizer and the moment, and the reason,
# - tell a healthy training from one that looks healthy.
#
# 50 minutes. You need [lesson 04](04_master_weights.ipynb), [lesson
# 06](06_dynamic_loss_scaling.ipynb) and [lesson 07](07_autocast.ipynb). The data is the set of
# clothes that comes with the course; with a network at hand, put `"cifar10"` in its place below,
# and ten times the time.

# %%
import warnings
from itertools import islice
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import mptutor as mpt
from mptutor.data import batches, load
from mptutor.experiments.fine_tuning import run_fine_tuning
from mptutor.experiments.recipes import AMP_FP16, AMP_FP16_UNSCALED, FP32, NAIVE_FP16
from mptutor.experiments.tasks import shorten
from mptutor.experiments.training import run_training
from mptutor.experiments.vae import run_vae
from mptutor.models import small_cnn
from mptutor.plots import plot_outcome, plot_training
from mptutor.widgets import TrainingRace

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
data = load("fashion-mnist-5k", size=32, channels=3, device=device)


def fresh(steps=10):
    torch.manual_seed(0)
    net = small_cnn().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.005)
    return net, optimizer, islice(batches(data.train, 128), steps)


# %% [markdown]
# ## The loop that every text gives
#
# In one form or another it is everywhere. The two asserts come from
# [PyTorch's own recipe](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html).

# %%
from torch.cuda.amp import GradScaler, autocast


def listing(net, optimizer, batches, check=True):
    scaler = GradScaler()
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        with autocast():
            output = net(images)
            assert output.dtype is torch.float16 or not check
            loss = F.cross_entropy(output, labels)
            assert loss.dtype is torch.float32 or not check
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


# %% [markdown]
# > **Predict.** Run on your machine, does it train in FP16? How many different warnings will it
# > give, and will it get to its end?

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        print("losses", listing(*fresh())[::3])
    except AssertionError:
        print("AssertionError: the output is not FP16")
said = {f"{w.category.__name__}: {str(w.message)[:90]}" for w in caught}
print(*sorted(said), sep="\n")
assert any("is deprecated" in line for line in said)

# %% [markdown]
# Two names are deprecated, on any machine. Where there is no CUDA, autocast and scaler switch
# themselves off with a warning that most loops drown, and only the needless assert notices.
#
# > **Predict.** Take the asserts out. The loop now runs everywhere. How do its losses compare with
# > those of a loop without any AMP: equal, close, or different?

# %%
net, optimizer, some = fresh()
plain = []
for images, labels in some:
    optimizer.zero_grad()
    loss = F.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    plain.append(loss.item())
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    as_listed = listing(*fresh(), check=False)
print(*(f"{a:.6f} {b:.6f}" for a, b in zip(plain, as_listed, strict=True)), sep="\n")
assert (plain == as_listed) == (device == "cpu")

# %% [markdown]
# On a CPU every bit is FP32's. "It works with AMP" can mean that AMP was never on. So print the
# dtype of a layer's output once, when you set a loop up, and do not assert it at every step.
#
# ## Line by line
#
# | line | what is wrong | instead |
# |---|---|---|
# | `from torch.cuda.amp import …` | deprecated | no import |
# | `autocast()` | says neither device nor dtype | `torch.autocast(device, dtype=torch.float16)` |
# | `GradScaler()` | CUDA's alone | `torch.amp.GradScaler(device)` |
# | `assert … is torch.float16` | false in BF16; autocast's table decides | nothing |
# | `loss.item()` | waits for the GPU in each step | `loss.detach()`; read all at the end |
#
# > **Predict.** Which 16 bits does autocast take if it isn't told, for CUDA and for the CPU?

# %%
print({kind: torch.get_autocast_dtype(kind) for kind in ("cuda", "cpu")})
assert torch.get_autocast_dtype("cuda") is not torch.get_autocast_dtype("cpu")


# %%
def train(net, optimizer, batches):
    scaler = torch.amp.GradScaler(device)
    losses = []
    for images, labels in batches:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


# %% [markdown]
# Four lines are AMP: forward and loss in the region; the loss scaled for `backward()`; a step that
# unscales, looks, and may skip; a scale that moves. Both `autocast` and `GradScaler` take
# `enabled=False` and then let everything pass. To *look* at gradients between `backward()` and
# `step()`, call `scaler.unscale_(optimizer)` first, or what you see is multiplied by the scale.
# BF16 needs no scaler.
#
# A number that Python reads from a tensor is a wait for the GPU. The class below counts such reads.
#
# > **Predict.** How many a step has the new loop? It is not zero: who reads?


# %%
class CountReads(TorchDispatchMode):
    reads = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.reads += op is torch.ops.aten._local_scalar_dense.default
        return op(*args, **(kwargs or {}))


with mpt.simulate_amp(), CountReads() as of_ten_steps:
    mixed = train(*fresh())
print(of_ten_steps.reads / 10, "a step; loss.item() would add one")
assert of_ten_steps.reads == 10

# %% [markdown]
# It is the scaler's: whether to skip is decided in Python, from `found_inf`.
#
# (`simulate_amp` makes a CPU compute as a GPU with Tensor Cores would. A GPU it leaves alone.)

# %%
apart = max(abs(a - b) for a, b in zip(mixed, plain, strict=True))
print(f"after ten steps the losses differ from FP32's by at most {apart:.4f}")
assert 0 < apart < 0.05

# %% [markdown]
# ## The race
#
# The same loop now serves five recipes, with Adam at 1e-3 and five seeds each, for 20 steps of 64
# images: FP32; naive FP16, where `model.half()` is all; FP16 weights with an FP32 master copy and a
# scaler; AMP in FP16 and in BF16. The table shows the latest seed. All five took 20 seconds on one
# core of a server CPU of 2023; you can read on meanwhile.

# %% tags=["widget"]
some = shorten(data, 20 * 64)
settings = {"data": some, "batch_size": 64, "epochs": 1, "device": device}
race = TrainingRace(run_training, seeds=range(5), **settings)
race

# %% [markdown]
# **Goal.** Press Start, and Stop before the first seed is through. Which recipe is out, and at
# which step? Then press *Start again* and let it run.
#
# **Question.** Watch the other four in one seed. Whose curve is lowest at the end, and would you
# report it?
#
# <details><summary>Answer</summary>
#
# Naive FP16, whose second loss is NaN. The other four lie on top of each other. Which is lowest, in
# the third decimal, changes from seed to seed. The cells below look at accuracies in that way.
#
# </details>
#
# > **Predict.** Five runs of the same recipe end at five accuracies. How far apart: 0.1 %, 1 %, 10
# > %? And how far is AMP's mean from FP32's? (If you stopped the race, the cell runs it whole.)

# %%
parity = race.complete()
parity

# %%
plot_outcome(parity, title="Seeds differ more than recipes do")

# %%
mpt.records.show("training")

# %%
spread = {recipe: parity.spread(recipe, "accuracy") for recipe in parity.recipes}
for recipe in ("FP16 + master + scaler", "AMP FP16", "AMP BF16"):
    assert abs(spread[recipe].mean - spread["FP32"].mean) < spread["FP32"].std
assert spread["naive FP16"].mean < 0.11

# %% [markdown]
# Every recipe with FP32 weights, or an FP32 copy of them, is within the spread of FP32's own seeds.
#
# ## One lucky run
#
# > **Predict.** In how many of the five seeds does AMP FP16 end above FP32?


# %%
def by_seed(recipe):
    return [run.last("accuracy") for run in parity.of(recipe)]


differences = [b - a for a, b in zip(by_seed("FP32"), by_seed("AMP FP16"), strict=True)]
print("AMP FP16 - FP32:", *(f"{100 * d:+.1f} %" for d in differences))
print(f"spread of FP32's seeds {100 * stdev(by_seed('FP32')):.1f} %")
print(f"spread of the differences {100 * stdev(differences):.1f} %")
assert stdev(differences) < stdev(by_seed("FP32"))

# %% [markdown]
# Report one seed, and chance picks the answer. Two runs of the *same* seed share weights and
# order of images, so most of what chance does, it does to both; that is why the differences within
# a seed lie closer together. The mean of *n* of them is known to their spread divided by √n, its
# *standard error*. A mean less than about two standard errors from 0 shows no difference. It
# doesn't show that there is none: it says how small it would have to be.

# %%
error = stdev(differences) / len(differences) ** 0.5
print(f"AMP FP16 is better by {100 * fmean(differences):+.2f} % ± {100 * error:.2f} %")
assert abs(fmean(differences)) < 0.02

# %% [markdown]
# ## Why naive FP16 died
#
# > **Predict.** Two FP16 weights of 1, with gradients of 10⁻⁴ and 0, and one step of Adam. Where do
# > they end? Adam moves a weight by about lr = 0.001 at first, whatever the gradient.

# %%
for dtype in (torch.float32, torch.float16):
    weights = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    weights.grad = torch.tensor([1e-4, 0.0], dtype=dtype)
    optimizer = torch.optim.Adam([weights])
    optimizer.step()
    squares = optimizer.state[weights]["exp_avg_sq"]
    print(
        f"{dtype}: v {squares.tolist()}, eps {torch.tensor(1e-8, dtype=dtype).item():.0e}", end=""
    )
    print(f", weights {weights.tolist()}")
assert weights[0].isinf() and weights[1].isnan()

# %% [markdown]
# Adam divides by √v + eps. In FP16 the square of a small gradient is 0, and so is the default eps
# of 10⁻⁸. What is left is m / 0 and 0 / 0. The forward pass of step 2 does the rest. Would a loss
# scale help? Here is the answer of `GradScaler`:

# %%
scaler = torch.amp.GradScaler(device)
half = torch.nn.Linear(4, 1).to(device, torch.float16)
scaler.scale(half(torch.ones(2, 4, device=device).half()).float().sum()).backward()
try:
    scaler.step(torch.optim.Adam(half.parameters()))
except ValueError as refused:
    print(refused)

# %% [markdown]
# Divided by the scale *in FP16* the gradients would be as small as before. So it's a matter of FP16
# weights with that optimizer, not of FP16 alone.
#
# > **Predict.** Naive FP16 with SGD, which has no eps: NaN, worse than FP32, or the same?

# %%
sgd = run_training(
    recipes=(FP32, NAIVE_FP16),
    optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01),
    quick=True,
)
for run in sgd.runs:
    print(f"{run.recipe:10} loss {run.losses[0]:.3f} at first, {run.losses[-1]:.3f} at last")
assert abs(sgd.runs[0].losses[-1] - sgd.runs[1].losses[-1]) < 0.05
assert sgd.runs[1].losses[-1] < 0.6 * sgd.runs[1].losses[0]

# %% [markdown]
# "Naive FP16 diverges" is no statement; "naive FP16 with Adam at its default eps is NaN from step
# 2" is one.
#
# ## A term goes missing
#
# A NaN is a kind failure. Now a variational autoencoder: its loss is a reconstruction error plus
# 10⁻⁴ times a KL term, weak on purpose. Its gradients are about 2⁻²⁴, where FP16 ends.
#
# > **Predict.** AMP in FP16, with the scaler left out. Which of the two terms will differ from
# > FP32's, and will the loss tell you? (Six networks are trained: 6 seconds on that core.)

# %%
vae = run_vae(recipes=(FP32, AMP_FP16, AMP_FP16_UNSCALED), seeds=(0, 1), quick=True)
vae

# %%
plot_training(vae, "kl", title="Without a scaler, the KL term is not trained")

# %%
mpt.records.show("vae")

# %%
without_kl = run_vae(recipes=(FP32,), kl_weight=0.0, seeds=(0, 1), quick=True)
kl = {recipe: vae.spread(recipe, "kl").mean for recipe in vae.recipes}
kl["FP32, no KL term"] = without_kl.spread("FP32", "kl").mean
print(*(f"{recipe:24} KL {value:.2f}" for recipe, value in kl.items()), sep="\n")
assert abs(kl["AMP FP16 without scaler"] / kl["FP32, no KL term"] - 1) < 0.1
assert abs(kl["AMP FP16"] / kl["FP32"] - 1) < 0.05

# %% [markdown]
# It ends where FP32 ends with the term deleted. The images are as good as ever, nothing is NaN,
# nothing warns. That is the whole case for the scaler, which the CNN above never needed: flushed
# gradients do harm only where they were all of something.
#
# ## Weights that stand still
#
# The last recipe is pure BF16: no overflow, no NaN, and eight significant bits for each weight. The
# CNN is trained upright, and then fine-tuned on images turned upside down, with Adam at 3·10⁻⁵.
#
# > **Predict.** Which share of the weights does one step move in BF16?

# %%
tuned = run_fine_tuning(quick=True)
tuned

# %%
mpt.records.show("fine tuning")

# %%
accuracy = {recipe: tuned.spread(recipe, "accuracy").mean for recipe in tuned.recipes}
moved = {recipe: tuned.of(recipe)[0].share_moved for recipe in tuned.recipes}
assert moved["pure BF16"] < 0.5 < 0.9 < moved["BF16 + master"]
assert accuracy["FP32"] - accuracy["pure BF16"] > 0.05
assert abs(accuracy["FP32"] - accuracy["BF16 + master"]) < 0.02

# %% [markdown]
# Most updates are smaller than half a step of the weight, as in lesson 04.
#
# > **Predict.** The same BF16 weights from scratch, with Adam at 10⁻³: how far behind FP32 now?

# %%
from mptutor.experiments.recipes import PURE_BF16

scratch = run_training(recipes=(FP32, PURE_BF16), quick=True)
for run in scratch.runs:
    print(f"{run.recipe:9} last loss {run.losses[-1]:.3f}, weights moved {run.share_moved:.0%}")
assert abs(scratch.runs[0].losses[-1] - scratch.runs[1].losses[-1]) < 0.05
assert scratch.runs[1].share_moved > 2 * moved["pure BF16"]

# %% [markdown]
# At that rate most updates are large enough. A short test from scratch does not show what BF16
# weights do late in a training, at a small rate.
#
# ## What you have seen
#
# - An AMP loop is four lines. The listing that texts give is deprecated, silently FP32 without
#   CUDA, and waits for the GPU at every loss; each line was mended.
# - Over five seeds FP32, AMP in both formats and FP16 with a master copy agree within the spread of
#   FP32 itself. Differences within a seed, with their standard error, say it sharper; one run says
#   nothing.
# - Naive FP16 dies at step 2 with Adam, whose eps is 0 in FP16, and trains with SGD.
# - What fails in silence is worse: without a scaler a VAE lost its KL term; with BF16 weights
#   fine-tuning stood still.
#
# **Now you:** [exercise 08](../exercises/08_training_with_amp/08_training_with_amp.ipynb), 40
# minutes.
