"""Floating-point formats as values.

A binary floating-point number is three fields side by side: a sign bit *s*, an exponent field *E*
and a mantissa field *M* (the standard calls it the trailing significand). With *m* mantissa bits
and the format's *bias*, a code stands for

    (-1)^s × 2^(E - bias) × (1 + M / 2^m)      if E > 0       a normal number
    (-1)^s × 2^(1 - bias) × (0 + M / 2^m)      if E = 0       a subnormal number, or zero

The exponent buys range, the mantissa buys precision, and 16 bits have to share. FP16 spends them
5 and 10, BF16 spends them 8 and 7; that one choice explains most of this course.

Read as integers, the codes of the positive numbers count upwards in the order of their values, so
the neighbour above a number is the next code. `FloatFormat.encode` relies on it.

What the largest codes mean is where formats differ. Three conventions exist, named here by what
they keep: ``"ieee"`` reserves the whole top exponent for infinities and NaNs (IEEE 754, 3.4);
``"nan"`` gives up the infinities and keeps one NaN a sign, which is how FP8 E4M3 reaches 448
instead of 240 (OCP 8-bit Floating Point Specification, 5.1); ``"none"`` makes every code a finite
number, as FP6 and FP4 do (OCP Microscaling Formats Specification, 5.3). Libraries call the last
two ``fn``, as in ``float8_e4m3fn``.

Every limit below is derived from these few numbers. None is typed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from numbers import Integral

import torch

#: What may happen to a number too large for the format, and to infinity where there is none.
OVERFLOW_RULES = ("inf", "saturate", "nan")

_SPECIALS = ("ieee", "nan", "none")


def _require_int(name: str, value: int, low: int, high: int) -> int:
    """Return ``value`` as an int; NumPy's integers are welcome, their overflow is not."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not low <= value <= high:
        raise ValueError(f"{name} is {value!r}; allowed are integers from {low} to {high}")
    return int(value)


def _require_number(name: str, value: float) -> float:
    """Return ``value`` as a float; whatever Python can make one of is welcome, text is not."""
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; allowed are real numbers, infinities and NaN")
    return float(value)


@dataclass(frozen=True)
class Decoded:
    """One code, taken apart.

    The fields are named as in IEEE 754, 3.4: ``exponent_field`` is the biased exponent *E*,
    ``mantissa_field`` the trailing significand *M*. ``exponent`` and ``significand`` are the
    numbers they stand for, so that a finite ``value`` is ``±significand × 2**exponent``; for
    infinities and NaNs both are ``None``. ``kind`` is one of ``"zero"``, ``"subnormal"``,
    ``"normal"``, ``"inf"``, ``"nan"``.
    """

    fmt: FloatFormat
    code: int
    sign: int
    exponent_field: int
    mantissa_field: int
    exponent: int | None
    significand: float | None
    kind: str
    value: float

    @property
    def bits(self) -> str:
        """The code in binary, a space between the fields: ``"0 01111 0000000000"``."""
        exponent = f"{self.exponent_field:0{self.fmt.exponent_bits}b}"
        mantissa = f"{self.mantissa_field:0{self.fmt.mantissa_bits}b}"
        return f"{self.sign} {exponent} {mantissa}"

    def __str__(self) -> str:
        if self.exponent is None:
            return f"{self.bits} = {self.value}"
        sign = "-" if self.sign else "+"
        return f"{self.bits} = {sign}{self.significand} × 2^{self.exponent} = {self.value!r}"


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format of up to 32 bits.

    Parameters
    ----------
    name : str
        How the format is called in tables and pictures.
    exponent_bits, mantissa_bits : int
        Widths of the two fields, 2 to 8 and 1 to 23: what FP32 can hold. Without infinities 8
        exponent bits are one too many, since the largest numbers would lie beyond FP32's.
    bias : int, optional
        What is subtracted from the exponent field; IEEE 754's ``2**(exponent_bits - 1) - 1``
        unless given. 1 must stay a normal number of the format.
    special : {"ieee", "nan", "none"}
        Which codes are infinities and NaNs; see the module's docstring.
    torch_dtype : torch.dtype, optional
        The dtype torch stores this format in, where it has one.

    Raises
    ------
    ValueError
        If a width, the bias or ``special`` is not one of the values above.

    Examples
    --------
    >>> FP16.max, FP16.smallest_normal, FP16.smallest_subnormal
    (65504.0, 6.103515625e-05, 5.960464477539063e-08)
    >>> FloatFormat("E3M4", exponent_bits=3, mantissa_bits=4).max
    15.5
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int = None  # type: ignore[assignment]  # __post_init__ fills in the standard's bias
    special: str = "ieee"
    torch_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if self.special not in _SPECIALS:
            raise ValueError(f"special is {self.special!r}; allowed are {_SPECIALS}")
        self._set_int("exponent_bits", self.exponent_bits, 2, 8 if self.special == "ieee" else 7)
        self._set_int("mantissa_bits", self.mantissa_bits, 1, 23)
        standard_bias = 2 ** (self.exponent_bits - 1) - 1
        bias = standard_bias if self.bias is None else self.bias
        # 1 is normal: emin <= 0 <= emax. FP32 holds every number: -126 <= emin, emax <= 127.
        top = self._top_exponent_field
        self._set_int("bias", bias, max(1, top - 127), min(top, 127))

    def _set_int(self, name: str, value: int, low: int, high: int) -> None:
        object.__setattr__(self, name, _require_int(name, value, low, high))

    # -- limits ----------------------------------------------------------------------------------

    @property
    def bits(self) -> int:
        """Width of the whole code; for TF32, which is stored in 32 bits, the 19 it uses."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def _top_exponent_field(self) -> int:
        """The largest exponent field that finite numbers use."""
        largest_field = 2**self.exponent_bits - 1
        return largest_field - 1 if self.special == "ieee" else largest_field

    @property
    def emax(self) -> int:
        """Exponent of the largest numbers: they lie in ``[2**emax, 2**(emax + 1))``."""
        return self._top_exponent_field - self.bias

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number. Subnormal numbers share it."""
        return 1 - self.bias

    @property
    def max_code(self) -> int:
        """The code of `max`: every positive finite number has a code up to this one."""
        last = 2 ** (self.bits - 1) - 1
        if self.special == "none":
            return last
        return last - 1 if self.special == "nan" else last - 2**self.mantissa_bits

    @property
    def max(self) -> float:
        """The largest finite number."""
        return self.decode(self.max_code).value

    @property
    def smallest_normal(self) -> float:
        """The smallest number with full precision, ``2**emin``."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number, ``2**(emin - mantissa_bits)``."""
        return 2.0 ** (self.emin - self.mantissa_bits)

    @property
    def eps(self) -> float:
        """Distance from 1 to the next larger number, ``2**-mantissa_bits``, as in `torch.finfo`."""
        return 2.0**-self.mantissa_bits

    @property
    def underflow_threshold(self) -> float:
        """The largest number that rounding to nearest, ties to even, takes to zero.

        It is the tie between zero and the smallest subnormal number, and zero is the even one.
        """
        return self.smallest_subnormal / 2

    @property
    def overflow_threshold(self) -> float:
        """The smallest FP32 number that rounding to nearest, ties to even, takes beyond `max`.

        The tie lies half an ulp above `max`. It goes beyond if the code of `max` is odd, as in
        FP16, where 65520 becomes infinite. In E4M3 that code is even: 464 still becomes 448, and
        the threshold is the FP32 number after 464.

        (With 23 mantissa bits the tie is no FP32 number; the exact real number is returned.)
        """
        tie = self.max + self.ulp(self.max) / 2
        goes_beyond = self.max_code % 2 == 1
        return tie if goes_beyond else FP32.neighbours(tie)[1]

    @property
    def overflow(self) -> str:
        """What becomes of numbers that are too large, unless the caller says otherwise.

        ``"inf"`` where the format has infinities, ``"saturate"`` (to ±`max`) where it has none.
        Libraries differ here; see `mptutor.rounding`.
        """
        return "inf" if self.special == "ieee" else "saturate"

    # -- codes and values ------------------------------------------------------------------------

    def codes(self) -> range:
        """Every code there is: the non-negative numbers first, then the same with the sign set."""
        return range(2**self.bits)

    def decode(self, code: int) -> Decoded:
        """Take a code apart into its fields and its value.

        Raises
        ------
        ValueError
            If ``code`` is not an integer of ``bits`` bits.
        """
        code = _require_int("code", code, 0, 2**self.bits - 1)
        magnitude = code & (2 ** (self.bits - 1) - 1)
        sign = code >> (self.bits - 1)
        exponent_field, mantissa_field = divmod(magnitude, 2**self.mantissa_bits)
        fields = (self, code, sign, exponent_field, mantissa_field)
        if magnitude > self.max_code:
            is_inf = self.special == "ieee" and mantissa_field == 0
            value = math.copysign(math.inf if is_inf else math.nan, -sign)
            return Decoded(*fields, None, None, "inf" if is_inf else "nan", value)
        leading_bit = 1 if exponent_field > 0 else 0
        kind = "normal" if leading_bit else "subnormal" if mantissa_field else "zero"
        exponent = max(exponent_field, 1) - self.bias
        significand = leading_bit + mantissa_field * self.eps
        value = (-1) ** sign * significand * 2.0**exponent
        return Decoded(*fields, exponent, significand, kind, value)

    def encode(self, x: float, overflow: str | None = None) -> int:
        """Return the code of the number nearest to ``x``; of two equally near, the even code.

        Parameters
        ----------
        x : float
            Any number, infinities and NaN included.
        overflow : {"inf", "saturate", "nan"}, optional
            What becomes of numbers that are too large, and of infinities; the format's own
            `overflow` unless given.

        Raises
        ------
        TypeError
            If ``x`` is no number.
        ValueError
            If ``x`` is NaN and the format has none, or ``overflow`` asks for what it lacks.
        """
        x = _require_number("x", x)
        sign_bit = 2 ** (self.bits - 1) if math.copysign(1.0, x) < 0 else 0
        if math.isnan(x):
            return sign_bit + self._nan_code()
        overflow = check_overflow(self, overflow)
        if math.isfinite(x):
            # Codes count upwards with the values: one step an ulp, 2**m steps a power of two. A
            # mantissa that rounds up to 2 carries into the exponent by itself.
            binades_below = self._exponent(x) - self.emin
            code = binades_below * 2**self.mantissa_bits + round(abs(x) / self._spacing(x))
            if code <= self.max_code:
                return sign_bit + code
        if overflow == "saturate":
            return sign_bit + self.max_code
        return sign_bit + (self.max_code + 1 if overflow == "inf" else self._nan_code())

    def ulp(self, x: float) -> float:
        """Distance between neighbouring numbers of the format around ``x``.

        At a power of two, where the distance changes, it is the one above. Beyond `max` it is the
        one at `max`; at NaN it is NaN.
        """
        return math.nan if math.isnan(x) else self._spacing(min(abs(x), self.max))

    def neighbours(self, x: float) -> tuple[float, float]:
        """Return the numbers of the format next below and next above ``x``, never ``x`` itself.

        Beyond ±`max` lies ±inf, in formats without infinities NaN. As in IEEE 754, 5.3.1, nothing
        lies beyond an infinity but itself.
        """
        if math.isnan(x):
            return math.nan, math.nan
        # Subtracting, since negation would make -0.0 of 0.0.
        return 0.0 - self._next_above(-x), self._next_above(x)

    def _next_above(self, x: float) -> float:
        if x >= self.max:
            return math.inf if self.special == "ieee" else math.nan
        if x < -self.max:
            return -self.max
        ulp = self._spacing(x)
        # Towards zero from a power of two the numbers lie closer than away from it.
        if x < -self.smallest_normal and math.frexp(x)[0] == -0.5:
            ulp /= 2
        return (math.floor(x / ulp) + 1) * ulp

    def _exponent(self, x: float) -> int:
        """Exponent that ``x`` is written with, were it unlimited above: emin if subnormal."""
        return max(math.frexp(x)[1] - 1, self.emin) if x else self.emin

    def _spacing(self, x: float) -> float:
        """Distance between neighbours in the binade of ``x``, were the exponent unlimited above."""
        return 2.0 ** (self._exponent(x) - self.mantissa_bits)

    def _nan_code(self) -> int:
        if self.special == "none":
            raise ValueError(f"x is nan, and {self.name} has no code for it")
        if self.special == "nan":
            return self.max_code + 1
        # IEEE 754, 6.2.1: the first mantissa bit of a quiet NaN is set.
        inf_code = self.max_code + 1
        return inf_code + 2 ** (self.mantissa_bits - 1)

    # -- how a format shows itself ---------------------------------------------------------------

    def __str__(self) -> str:
        return self.name

    def _repr_html_(self) -> str:
        rows = {
            "bits": f"1 + {self.exponent_bits} + {self.mantissa_bits}",
            "largest": f"{self.max:g}",
            "smallest normal": f"{self.smallest_normal:.3g}",
            "smallest subnormal": f"{self.smallest_subnormal:.3g}",
            "eps": f"{self.eps:.3g}",
        }
        cells = "".join(f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in rows.items())
        return f"<table><caption>{escape(str(self.name))}</caption>{cells}</table>"


FP32 = FloatFormat("FP32", 8, 23, torch_dtype=torch.float32)
TF32 = FloatFormat("TF32", 8, 10)
FP16 = FloatFormat("FP16", 5, 10, torch_dtype=torch.float16)
BF16 = FloatFormat("BF16", 8, 7, torch_dtype=torch.bfloat16)
FP8_E4M3 = FloatFormat("FP8_E4M3", 4, 3, special="nan", torch_dtype=torch.float8_e4m3fn)
FP8_E5M2 = FloatFormat("FP8_E5M2", 5, 2, torch_dtype=torch.float8_e5m2)
FP6_E2M3 = FloatFormat("FP6_E2M3", 2, 3, special="none")
FP6_E3M2 = FloatFormat("FP6_E3M2", 3, 2, special="none")
FP4_E2M1 = FloatFormat("FP4_E2M1", 2, 1, special="none")

#: The formats of the course by name, widest first.
NAMED_FORMATS: dict[str, FloatFormat] = {
    fmt.name: fmt
    for fmt in (FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E5M2, FP6_E2M3, FP6_E3M2, FP4_E2M1)
}


def get_format(fmt: FloatFormat | str | torch.dtype) -> FloatFormat:
    """Return the format that ``fmt`` names: a `FloatFormat`, its name, or a torch dtype.

    Raises
    ------
    ValueError
        If no named format has this name or dtype.

    Examples
    --------
    >>> get_format("bf16") is get_format(torch.bfloat16) is BF16
    True
    """
    if isinstance(fmt, FloatFormat):
        return fmt
    if isinstance(fmt, str) and fmt.upper() in NAMED_FORMATS:
        return NAMED_FORMATS[fmt.upper()]
    if isinstance(fmt, torch.dtype):
        for named in NAMED_FORMATS.values():
            if named.torch_dtype is fmt:
                return named
    names = ", ".join(NAMED_FORMATS)
    raise ValueError(f"fmt is {fmt!r}; allowed are a FloatFormat, a torch dtype, or one of {names}")


def check_overflow(fmt: FloatFormat, overflow: str | None) -> str:
    """Return the overflow rule to apply: the format's own, or ``overflow`` if ``fmt`` allows it."""
    if overflow is None:
        return fmt.overflow
    if overflow not in OVERFLOW_RULES:
        raise ValueError(f"overflow is {overflow!r}; allowed are {OVERFLOW_RULES}")
    has_none = (overflow == "inf" and fmt.special != "ieee") or (
        overflow == "nan" and fmt.special == "none"
    )
    if has_none:
        raise ValueError(f"overflow is {overflow!r}, but {fmt.name} has no {overflow}")
    return overflow
