# %% [markdown]
# # 01 · What can 16 bits hold?
#
# A training run in mixed precision stores most of its numbers in 16 bits instead of 32. Sixteen
# bits make 65,536 codes, few enough to look at every one of them, and this lesson does.
#
# Afterwards you will be able to
#
# - take any 16-bit code apart and say which number it is,
# - say how far a number's neighbours are, in FP16 and in BF16,
# - say where each format starts to lose small numbers and large ones, to the last digit,
# - tell what a format is good for from its two widths.
#
# 40 minutes. You need Python and a little PyTorch. The exercise is linked at the end.

# %%
import torch

import mptutor as mpt
from mptutor.plots import plot_ranges, plot_spacing
from mptutor.widgets import BitExplorer

# %% [markdown]
# ## Three fields
#
# Take a number that everybody writes down without a second thought, and look at its bits. They are
# three fields side by side: one sign bit, five exponent bits, ten mantissa bits. `decode` puts a
# space between them and says what they mean.

# %%
x = torch.tensor(0.1, dtype=torch.float16)
code = x.view(torch.uint16).item()
print(f"{code:016b}", "stands for", x.item())
print(mpt.FP16.decode(code))

# %% [markdown]
# The number is the product of two parts. The *significand* lies between 1 and 2: the mantissa
# counts, in steps of 1/1024, how far it is on the way. The power of two comes from the exponent
# field, from which a fixed number, the *bias*, is subtracted, so that small numbers get an exponent
# too.
#
# > **Predict.** Which exponent field stands for 2⁰, the power of two in 1.0? Five bits count from 0
# > to 31. Write your number down, then run the cell.

# %%
one = mpt.FP16.decode(mpt.FP16.encode(1.0))
print(one)
print("exponent field of 1.0:", one.exponent_field)

# %% [markdown]
# Fields 1 to 30 are for ordinary numbers, 0 and 31 are kept for later, and 15 is in the middle:
# that is the bias. Look at the mantissa of 1.0 as well: it is all zeros. The leading 1 of the
# significand is the same for every such number, so it need not be stored. It is called the *hidden
# bit*: eleven bits of precision for ten bits of memory.
#
# With that, you can read a code by hand.

# %%
sign, exponent_field, mantissa = code >> 15, code >> 10 & 0b11111, code & 0b1111111111
value = (-1) ** sign * (1 + mantissa / 1024) * 2.0 ** (exponent_field - 15)
print(sign, exponent_field, mantissa, "->", value)
assert value == x.item()

# %% [markdown]
# It is not 0.1, only the nearest number that FP16 has. Now take the bits in hand. Click them, or
# type a number; the first line says what FP16 makes of it, the rows show all formats side by side.

# %% tags=["widget"]
BitExplorer(value=0.1, fmt="FP16", examples=["0.1", "1/3", "1", "100"])

# %% [markdown]
# **Goal.** Starting from 0.1, make FP16 show exactly −0.5 by clicking bits.
#
# **Question.** Which single bit doubles the number, and when does flipping it halve the number
# instead?
#
# <details><summary>Answer</summary>
#
# The last bit of the exponent field. Set from 0 to 1 it raises the exponent by one, which doubles
# the number. Cleared from 1 to 0 it halves it. (The first and the last exponent are different, see
# below.) And −0.5 takes eight clicks: eight bits of its code differ from those of 0.1.
#
# </details>

# %% [markdown]
# ## The distance to the next number
#
# > **Predict.** In FP16, what is 2048 + 1? And what do you get if you store 2049 and add 1 to that?

# %%
large = torch.tensor(2048.0, dtype=torch.float16)
print((large + 1).item(), (torch.tensor(2049.0, dtype=torch.float16) + 1).item())
assert large + 1 == large

# %% [markdown]
# Adding 1 changed nothing, and 2049 became 2048 before anything was added. Above 2048 the mantissa
# has no bit left for the ones: the next number is 2050. The distance between neighbours is called
# the *ulp*, unit in the last place. Exactly half way, the neighbour with the even code wins.

# %%
for x in (1.0, 1000.0, 2048.0, 30000.0):
    below, above = mpt.FP16.neighbours(x)
    print(f"below {below:<11.6g} {x:>7} above {above:<11.6g} ulp {mpt.FP16.ulp(x):g}")

# %% [markdown]
# The ulp grows with the number, and doubles at every power of two: the neighbour *below* 1 or 2048
# is only half as far as the one above. Small numbers are often said to "round worse". Measure it:
# here are all positive numbers of FP16, in order, and the distance from each to the next.
#
# > **Predict.** Relative to the number itself, where is the distance largest: from 2⁻¹⁰ to 2⁻⁹,
# > from 1 to 2, or from 2¹³ to 2¹⁴?

# %%
codes = torch.arange(1, 0x7C00, dtype=torch.int16)
numbers = codes.view(torch.float16).double()
relative = numbers.diff() / numbers[:-1]
for power in (2.0**-10, 1.0, 2.0**13):
    binade = relative[(numbers[:-1] >= power) & (numbers[:-1] < 2 * power)]
    print(f"from {power:<11} on: {binade.min():.2e} to {binade.max():.2e}")

# %% [markdown]
# The same, wherever you look. A format with a floating point has a *relative* precision. It swings
# by a factor of 2 within each power of two, and that is all: over the normal range it lies between
# 2⁻¹¹ and 2⁻¹⁰.

# %%
normal = numbers[:-1] >= mpt.FP16.smallest_normal
assert relative[normal].min() > 2**-11 and relative[normal].max() == 2**-10
plot_spacing([mpt.FP16, mpt.BF16])

# %% [markdown]
# Two things to see. Where both are level, BF16 is eight times coarser than FP16. And both lines
# take off at the left, where something ends, FP16's much earlier.

# %% [markdown]
# ## Below the smallest normal number
#
# > **Predict.** What is the smallest positive number of FP16? You know the code of 1.0; which code
# > would the smallest number have?

# %%
for code in (0x0001, 0x0002, 0x03FF, 0x0400, 0x0401):
    print(mpt.FP16.decode(code))

# %% [markdown]
# The smallest *normal* number is 2⁻¹⁴, about 6.1 · 10⁻⁵, with the code `0x0400`. Below it the
# exponent field is 0, and two things change. The hidden bit is 0, so that there can be a zero at
# all. (There are two, +0 and −0.) And the exponent stays at −14, so that the steps stay equal down
# to zero. These are the *subnormal* numbers; the smallest is 2⁻²⁴, about 6.0 · 10⁻⁸. They have
# fewer and fewer significant bits, which is why the line took off.
#
# > **Predict.** Rounded to FP16, what becomes of 2⁻²⁵, exactly half the smallest number? And of the
# > next larger FP32 number?

# %%
half = torch.tensor(2.0**-25)
just_above = torch.nextafter(half, torch.tensor(1.0))
print(half.half().item(), just_above.half().item())
assert half.half() == 0 and just_above.half() == mpt.FP16.smallest_subnormal

# %% [markdown]
# A tie between 0 and 2⁻²⁴ goes to the even code, and 0 is even. So 2⁻²⁵ and everything below it
# becomes zero, and everything above it becomes at least 2⁻²⁴. Gradients live down here. Lesson 03
# counts them.

# %% [markdown]
# ## The last exponent
#
# > **Predict.** The largest number of FP16 is 65504. Rounded to FP16, what becomes of 65505? Of
# > 65519? Of 65520?

# %%
wanted = torch.tensor([65504.0, 65505.0, 65519.0, 65520.0])
print(wanted.half().tolist())
assert wanted.half()[2] == 65504 and wanted.half()[3].isinf()

# %% [markdown]
# Rounding comes first, overflow second. The number after 65504 would be 65536. What lies nearer to
# 65504 becomes 65504; from the middle on, at 65520, the result is infinite.
#
# The codes for infinity, and for NaN ("not a number"), are the ones with the last exponent field,
# 31. How many codes of each kind are there?

# %%
from collections import Counter

kinds = Counter(mpt.FP16.decode(code).kind for code in mpt.FP16.codes())
print(dict(kinds))
assert kinds["inf"] == 2 and kinds["nan"] == 2**11 - 2

# %% [markdown]
# With the last field and an empty mantissa it is an infinity, with any other mantissa a NaN. An
# infinity is worse than a large error, because what is computed from it is often a NaN, and a NaN
# spreads to everything.
#
# > **Predict.** Here is a variance, computed in FP16 as the mean of the squares less the square of
# > the mean. Nothing in it looks large. What comes out?

# %%
activations = torch.tensor([300.0, 301.0, 302.0, 303.0], dtype=torch.float16)
squares = activations**2
print("squares:", squares.tolist())
print("variance:", (squares.mean() - activations.mean() ** 2).item())
assert (squares.mean() - activations.mean() ** 2).isnan()

# %% [markdown]
# 300² is 90,000. The squares overflow, so does the square of the mean, and infinity less infinity
# is NaN. BF16 has the range, you will see in a moment, but not the precision: it stores the four
# numbers as 300, 300, 302, 304, and their squares coarser still. The repair is FP32, for this one
# operation.

# %%
for dtype in (torch.bfloat16, torch.float32):
    a = activations.to(dtype)
    print(dtype, ((a**2).mean() - a.mean() ** 2).item())
assert (a**2).mean() - a.mean() ** 2 == 1.25

# %% [markdown]
# ## Range against precision
#
# A format is decided by two widths. What would you do with 16 bits? Here are six answers. TF32 is
# what NVIDIA's GPUs compute FP32 products in, E5M2 and E4M3 are two formats of 8 bits, and *eps* is
# the distance from 1 to the next number. (E4M3 breaks the pattern at the top: it has no infinities
# and uses the last exponent for numbers, up to 448.)

# %%
formats = [mpt.FP32, mpt.TF32, mpt.BF16, mpt.FP16, mpt.FP8_E5M2, mpt.FP8_E4M3]
print("format    bits        largest   smallest normal   smallest   eps")
for fmt in formats:
    bits = f"1+{fmt.exponent_bits}+{fmt.mantissa_bits}"
    limits = f"{fmt.smallest_normal:<17.2e} {fmt.smallest_subnormal:<10.1e} {fmt.eps:.1e}"
    print(f"{fmt.name:9} {bits:8} {fmt.max:10.3g}   {limits}")
plot_ranges(formats)

# %% [markdown]
# BF16 keeps FP32's eight exponent bits and gives up mantissa for them. In fact a BF16 code is the
# upper half of an FP32 code, and you can check all 65,536 of them.

# %%
every_code = torch.arange(2**16, dtype=torch.int32)
as_bf16 = every_code.to(torch.uint16).view(torch.bfloat16).float()
as_upper_half = (every_code << 16).view(torch.float32)
# A NaN equals nothing, not even itself, so both NaNs are replaced before comparing.
assert torch.equal(as_bf16.nan_to_num(0.5), as_upper_half.nan_to_num(0.5))

# %% [markdown]
# So converting a BF16 number to FP32 is exact, and nothing that FP32 can hold overflows in BF16
# but the very largest numbers. The price is precision.
#
# > **Predict.** FP16 loses a 1 beside 2048. Beside which power of two does BF16 lose it?

# %%
powers = 2.0 ** torch.arange(5, 14)
for dtype in (torch.float16, torch.bfloat16):
    lost = (powers.to(dtype) + 1) == powers.to(dtype)
    print(dtype, "loses a 1 beside", powers[lost][0].item())
assert torch.tensor(256.0).bfloat16() + 1 == 256

# %% [markdown]
# Eight bits of precision, hidden one included, so 2⁸ = 256. Now compare what the formats make of
# the same number.

# %%
for fmt in formats:
    x_q = mpt.quantize(0.1, fmt).item()
    print(f"{fmt.name:9} {x_q:<22} off by {abs(x_q - 0.1) / 0.1:.1e}")

# %% tags=["widget"]
BitExplorer(value=65519.0, fmt="FP16")

# %% [markdown]
# **Goal.** Find a number that FP16 holds exactly and BF16 does not, and one that BF16 can hold and
# FP16 turns into infinity.
#
# **Question.** TF32 has BF16's range and FP16's precision. How many bits does it use, and why does
# a tensor stored in it save no memory?
#
# <details><summary>Answer</summary>
#
# 1 + 8 + 10 = 19. It is no storage format: tensors stay FP32 in memory, and a Tensor Core makes do
# with ten of their mantissa bits.
#
# </details>

# %% [markdown]
# ## What you have seen
#
# - A code is a sign, an exponent field and a mantissa, and you have read one by hand.
# - Neighbours are an ulp apart. Relative to the number that is 2⁻¹¹ to 2⁻¹⁰ over FP16's whole
#   normal range, and eight times that in BF16.
# - FP16 loses what is at or below 2⁻²⁵, and what is at or above 65520. Its smallest normal number
#   is 2⁻¹⁴, its smallest number 2⁻²⁴.
# - Exponent bits buy range, mantissa bits buy precision. BF16 is FP32 cut in half.
#
# **Now you:** [exercise 01](../exercises/01_number_formats/01_number_formats.ipynb), 25 minutes.
# Then go on to [lesson 02](02_rounding_and_accumulation.ipynb), which adds numbers up until the sum
# stops growing.
