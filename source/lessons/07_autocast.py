# %% [markdown]
# # 07 · Which dtype does each op get, and why?
#
# `torch.autocast` changes no model and no tensor you hold. It decides, call by call, in which dtype
# an op runs. Most texts print its lists from memory, and from another version of PyTorch. This
# lesson asks the one that is installed here, for a GPU too, with or without one.
#
# Afterwards you will be able to
#
# - look up what autocast does to any op, on CUDA and the CPU, and follow a dtype through a chain,
# - say which losses need your care, and give it to them,
# - place the region in a training loop, and say what goes wrong around too much of it,
# - write an autograd function of your own that is right under autocast.
#
# 45 minutes. You need [lesson 01](01_number_formats.ipynb): FP16 ends at 65504. In short from
# [lesson 05](05_loss_scaling.ipynb): the loss is multiplied by a scale before `backward()`.

# %%
import threading
from collections import Counter
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mptutor as mpt
from mptutor.experiments.dtype_trace import run_dtype_trace
from mptutor.plots import plot_dtype_trace
from mptutor.widgets import PolicyExplorer

device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## One step, dtype by dtype
#
# A small CNN takes one step under autocast to FP16. On a GPU that is the GPU's own autocast; on a
# CPU, `mptutor` lends it CUDA's rules.
#
# > **Predict.** Which of these will be FP16: the weights, the activations, the gradients of the
# > activations, the gradients of the weights, the loss? And what is batch norm's output?

# %%
trace = run_dtype_trace("small_cnn", policy="cuda")
plot_dtype_trace(trace)

# %%
mpt.records.show("dtypes")

# %%
norm = trace.layer("norm1")
print(norm)
assert (
    {x.weight for x in trace.layers} == {x.weight_grad for x in trace.layers} == {None, "float32"}
)
assert (norm.input, norm.weight, norm.output) == ("float16", "float32", "float16")

# %% [markdown]
# There is no 16-bit model. The weights are FP32 and so are their gradients. What is in 16 bits
# comes and goes with the step: the activations, and the gradients that flow back through them.
# Those are what the loss scale protects.
#
# And batch norm is *not* kept in FP32, as is often written. It runs in the dtype it is given, with
# FP32 parameters.
#
# ## Five rules
#
# Autocast is a layer in PyTorch's dispatcher: an op that has an entry there gets its arguments cast
# first, any other op runs as if nothing were. So the rules can be observed. `observe` calls some
# 200 ops with 16-bit operands, with FP32 operands and with one of each (a single operand is then
# 16-bit). For CUDA it does so on tensors that have a device and a dtype but no values, so no GPU is
# needed. Both tables together took eight seconds on one core of a server CPU.
#
# > **Predict.** Under CUDA autocast, which of these run in FP16 and which in FP32, whatever they
# > are given: `linear`, `softmax`, `layer_norm`, `sum`, `mean`, `relu`, `add`?

# %%
cuda, cpu = mpt.policy.observe("cuda"), mpt.policy.observe("cpu")
for op in ("linear", "softmax", "layer_norm", "sum", "mean", "relu", "add"):
    low, wide, mixed = cuda[op].outcomes()
    print(f"{op:11} 16-bit -> {low:8} FP32 -> {wide:8} mixed -> {mixed:8} {cuda[op].rule}")

# %%
for rule, ops in cuda.by_rule().items():
    print(f"{rule:12} {len(ops):3} ops: {', '.join(ops[:5])}")
assert cuda["linear"].rule == "16-bit" and cuda["softmax"].rule == "FP32"
assert cuda["mean"].rule == cuda["relu"].rule == cuda["batch_norm"].rule == "as given"

# %% [markdown]
# - *16-bit*: products and convolutions. That is where the speed is, and the hardware adds the
#   products up in FP32.
# - *FP32*: what leaves FP16's range or needs more digits, such as sums, powers, exponentials,
#   norms, and most losses.
# - *widest*: ops of several tensors. One FP32 operand makes the result FP32.
# - *as given*: all the rest. Autocast does nothing, and the op does what it would do without.
# - *raises*: one op that is refused; we come to it.
# - *not observed* is no rule: these few ask the GPU's driver something, or the values.
#
# `mean` and `sum` have different rules. No text needs to tell you: ask the table.
#
# ## Another device, another list
#
# CPUs have an autocast too, with a list of its own.
#
# > **Predict.** `softmax` of an FP16 tensor comes out FP32 under CUDA autocast. Under the CPU's?
# > For how many of the ops will the two disagree: a handful, or dozens?

# %%
differing = mpt.policy.difference(cuda, cpu)
print(len(differing), "of", len(cuda), "ops differ. On CUDA, on the CPU:")
for (on_cuda, on_cpu), n in Counter((a.rule, b.rule) for a, b in differing.ops).most_common(4):
    print(f"  {on_cuda:8} {on_cpu:9} {n:3}")

# %%
for op in ("softmax", "layer_norm", "sum", "mv", "cross_entropy", "binary_cross_entropy"):
    print(f"{op:22} {cuda[op].rule:7} {cpu[op].rule}")
assert (cuda["softmax"].rule, cpu["softmax"].rule) == ("FP32", "as given")
assert (cuda["mv"].rule, cpu["mv"].rule) == ("16-bit", "as given")
assert cuda["cross_entropy"].rule == cpu["cross_entropy"].rule == "FP32"

# %% [markdown]
# So a CPU, left to itself, does not show what a GPU will do. A `sum` in FP16 can overflow on the
# laptop and not on the server, and with `mv` (matrix times vector) it is the other way round.
#
# Look around. The chain below the table shows what several ops, one after another, make of a dtype.

# %% tags=["widget"]
PolicyExplorer(cuda, cpu, op="linear", chain=["linear"])

# %% [markdown]
# **Goal.** Add two ops to `linear` so that CUDA and the CPU agree at the start and at the end of
# the chain, and disagree in between.
#
# **Question.** What does the FP32 detour on CUDA cost, and what does it buy?
#
# <details><summary>Answer</summary>
#
# For example `linear`, `softmax`, `matmul`, which is attention. On CUDA the softmax comes out FP32
# and is cast back by the product, so the tensor in between takes twice the memory. The exponentials
# and their sum are computed and kept in FP32, and rounded to 16 bits once.
#
# </details>
#
# ## Losses
#
# From here on, a CPU follows CUDA's list (on a GPU this line changes nothing).

# %%
amp = mpt.simulate_amp().enable()

# %% [markdown]
# > **Predict.** A hinge loss, `relu(1 - z).mean()`, of FP16 outputs `z`. Which rules apply to the
# > two ops? Which dtype has the loss? It is scaled by `GradScaler`'s 65536: which gradients come
# > out?

# %%
layer = nn.Linear(4, 1).to(device)
x = torch.randn(64, 4, device=device)
scaler = torch.amp.GradScaler(device)

# %%
for fixed in (False, True):
    layer.zero_grad()
    with torch.autocast(device, torch.float16):
        z = layer(x)
        loss = F.relu(1 - (z.float() if fixed else z)).mean()
    scaler.scale(loss).backward()
    print(loss.dtype, layer.weight.grad.tolist())
    assert bool(layer.weight.grad.isfinite().all()) == fixed

# %% [markdown]
# Both are *as given*, so the loss is FP16, and on the way back the scale has to become FP16 too.
# 65536 is beyond 65504. A loss that is built from unlisted ops wants one `.float()` at its
# beginning.
#
# ## The op that is refused
#
# Binary cross entropy of probabilities has gradients like 1 / p, more than FP16 can hold. CUDA
# autocast does not run it at all. The CPU's runs it in FP32, so tests on a CPU do not see this
# coming.

# %%
p = torch.rand(8, device=device)
with torch.autocast(device, torch.float16):
    try:
        F.binary_cross_entropy(p, p)
        raise AssertionError("it was not refused")
    except RuntimeError as error:
        print(error)

# %%
with torch.autocast(device, torch.float16):
    assert F.binary_cross_entropy_with_logits(p.logit(), p).dtype == torch.float32

# %% [markdown]
# The repair takes logits instead. Where that cannot be, there is an island without autocast:
#
# ## Islands of FP32
#
# `enabled=False` switches autocast off inside a region. The failure of this lesson is what people
# write first.
#
# > **Predict.** `h` comes out of a layer under autocast. Inside the island, does `layer(h)` run in
# > FP32?

# %%
square = nn.Linear(8, 8).to(device)
with torch.autocast(device, torch.float16):
    h = square(torch.ones(2, 8, device=device))
    with torch.autocast(device, enabled=False):
        try:
            square(h)
            raise AssertionError("it ran")
        except RuntimeError as error:
            print(error)
        assert square(h.float()).dtype == torch.float32
    assert square(h.float()).dtype == torch.float16

# %% [markdown]
# The island casts nothing, back neither: `h` is FP16, the weights FP32, and they do not meet. An
# island needs both, `enabled=False` *and* `.float()`. The last line shows the other half of the
# mistake: outside, a `.float()` in front of a product is undone by autocast.
#
# ## In place
#
# > **Predict.** `h` is FP16 and `x` FP32, and both are added, once by `h + x` and once by `h += x`.
# > Which dtypes come out?

# %%
x = torch.randn(2, 8, device=device)
eight = torch.randn(8, 8, device=device)
with torch.autocast(device, torch.float16):
    print("h + x ", (h + x).dtype, "   addmm ", x.addmm(x, eight).dtype)
    h += x
    print("h += x", h.dtype, "   addmm_", x.clone().addmm_(x, eight).dtype)
    out = torch.empty(2, 8, device=device)
    print("                         out=  ", torch.mm(x, eight, out=out).dtype)
assert h.dtype == torch.float16 and out.dtype == torch.float32

# %% [markdown]
# A tensor that exists keeps its dtype. Ops in place and with `out=` pass autocast by: a residual
# stream written with `+=` stays in 16 bits, and `addmm_` stays in FP32.
#
# ## Weights are cast once
#
# An FP32 weight that several ops use is cast by the first and kept until the *outermost* region
# ends. What follows is the same on every device, so the simulation goes.
#
# > **Predict.** One layer without bias, called three times in one region. How many casts are there
# > with the cache, and how many without it?


# %%
class CountCasts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.count += op is torch.ops.aten._to_copy.default
        return op(*args, **(kwargs or {}))


# %%
amp.disable()
square = nn.Linear(8, 8, bias=False).to(device)
for cached in (True, False):
    with torch.autocast(device, torch.float16, cache_enabled=cached), CountCasts() as casts:
        for _ in range(3):
            square(x)
    print(f"cache_enabled={cached!s:5}", casts.count, "casts")
    assert casts.count == (4 if cached else 6)

# %% [markdown]
# Three casts of the input, and one of the weight or three. Now think of the optimizer, which
# changes the weight.
#
# > **Predict.** Ten steps. Each has its region around forward and loss; the second time, one more
# > region is put around the whole loop. What do the losses do?


# %%
def train(around_the_loop):
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 1).to(device), torch.randn(64, 8).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    losses = []
    with around_the_loop:
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = F.mse_loss(layer(x), x.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


# %%
good, stale = train(nullcontext()), train(torch.autocast(device, torch.float16))
print(*(f"{loss:.2f}" for loss in good), "\n" + " ".join(f"{loss:.2f}" for loss in stale))
assert len(set(stale)) == 1 and good[-1] < 0.2 * good[0]

# %% [markdown]
# The optimizer changes the weights, and forward goes on with the cast it has. No error, no warning:
# the cast is dropped when the outermost region ends, and it does not end. So the region goes around
# forward and loss of *one* step. Backward needs none: each op's backward runs in the dtypes that
# its forward had.
#
# ## Threads
#
# > **Predict.** The region is entered, and a thread that was started inside it calls the layer. In
# > which dtype?

# %%
seen = {}


def work(name):
    seen[name] = square(x).dtype


# %%
with torch.autocast(device, torch.float16):
    work("main")
    thread = threading.Thread(target=work, args=("thread",))
    thread.start()
    thread.join()
print(seen)
assert seen == {"main": torch.float16, "thread": torch.float32}

# %% [markdown]
# Autocast is a matter of the thread. Whoever runs a model in threads of their own enters the region
# in each, or decorates `forward` with `@torch.autocast(device, torch.float16)`.
#
# ## A function of your own
#
# An autograd function writes its own backward, and backward runs outside the region.
#
# > **Predict.** `x` and `w` are FP32. In a region, what is the dtype of the product, and so of the
# > gradient that comes back? With what is that gradient multiplied?


# %%
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.mT, x.mT @ grad


# %%
def try_out(function):
    a, w = torch.ones(2, 8, device=device), torch.ones(8, 8, device=device, requires_grad=True)
    with torch.autocast(device, torch.float16):
        y = function.apply(a, w)
    y.sum().backward()
    return y.dtype, w.grad.dtype


# %%
try:
    try_out(Product)
    raise AssertionError("it ran")
except RuntimeError as error:
    print(error)

# %% [markdown]
# An FP16 gradient meets the FP32 tensors that forward had saved. `custom_bwd` lets backward run
# with the autocast state that forward had. `custom_fwd` notes that state, or, with `cast_inputs`,
# casts the inputs and runs both without autocast.


# %%
def guarded(cast_inputs):
    class Guarded(Product):
        forward = staticmethod(
            torch.amp.custom_fwd(Product.forward, device_type=device, cast_inputs=cast_inputs)
        )
        backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type=device))

    return Guarded


# %%
for cast_inputs in (None, torch.float32):
    print(f"cast_inputs={cast_inputs}:", *try_out(guarded(cast_inputs)))
assert try_out(guarded(None)) == (torch.float16, torch.float32)
assert try_out(guarded(torch.float32)) == (torch.float32, torch.float32)

# %% [markdown]
# Without `cast_inputs`, what the function calls follows the table. `cast_inputs=torch.float32` is
# for functions that need range or digits; where autocast is off it casts nothing. In your own files
# they are written as decorators, below `@staticmethod`.
#
# ## What you have seen
#
# - Each op has one of five rules, and the installed torch tells which. CUDA's list and the CPU's
#   differ in dozens of ops. Weights and their gradients are FP32; batch norm runs as given.
# - A loss built from unlisted ops is FP16, and `binary_cross_entropy` is refused. `.float()` first,
#   logits, or an island with both `enabled=False` and `.float()`.
# - The region goes around forward and loss of one step, in each thread. Around the whole loop it
#   freezes the weights that forward sees. Ops in place and with `out=` pass it by.
# - An autograd function needs `custom_fwd` and `custom_bwd`, since its backward runs outside.
#
# **Now you:** [exercise 07](../exercises/07_autocast/07_autocast.ipynb), 40 minutes.
