"""The torch functions the audit knows by name, sorted by what they do to values.

A function is called by the name under which a `TorchFunctionMode` sees it: `x + y` is `add` or
`__add__`, `x[i] = y` is `__setitem__`. What is in none of these sets is an ordinary operation.
"""

# ruff: noqa: SIM905  (a list of thirty names in quotes is harder to read)

from __future__ import annotations

#: The same values in another shape.
VIEWS = frozenset(
    "view reshape transpose permute t flatten unsqueeze squeeze expand contiguous detach "
    "__getitem__ unbind chunk split narrow select".split()
)
#: Casts. One that has nothing to do returns its own argument.
TO_FP32 = frozenset("to float type".split())
TO_HALF = frozenset("to half bfloat16 type type_as".split())
CASTS = TO_FP32 | TO_HALF | {"double"}

#: Nothing is computed that a rule asks for.
IGNORED = frozenset(
    "__get__ __set__ __delete__ size dim numel stride is_floating_point is_complex _is_view "
    "requires_grad_ register_hook backward __len__ __format__ __repr__ __str__ __hash__ "
    "storage_offset untyped_storage data_ptr __deepcopy__ _set_grad_enabled to_sparse "
    "__reduce_ex__ element_size dtype normal_ uniform_ kaiming_uniform_ constant_ ones_ zeros_ "
    "trunc_normal_ xavier_uniform_ empty_like manual_seed grad".split()
)
#: A value is read back to Python, for which an accelerator has to be waited.
SYNCS = frozenset("item __float__ __bool__ __int__ __index__ tolist numpy cpu nonzero".split())

#: Python floats among the arguments become elements of the tensor's dtype.
TAKES_CONSTANTS = frozenset(
    "mul __mul__ __rmul__ mul_ add add_ sub __add__ __radd__ __iadd__ __sub__ div __truediv__ "
    "masked_fill masked_fill_ where clamp clamp_ clamp_min clamp_min_ fill_ full full_like "
    "new_full __setitem__ maximum".split()
)
#: Chosen values are put into a tensor, as masks do.
FILLS = frozenset(
    "masked_fill masked_fill_ where full full_like new_full triu tril fill_ __setitem__ "
    "generate_square_subsequent_mask".split()
)
#: Of these, and of products, a constant that vanishes does no harm.
SCALINGS = frozenset("mul __mul__ __rmul__ mul_ __imul__".split())

SUMS = frozenset("sum mean prod norm cumsum dot var std nansum".split())
PRODUCTS = frozenset("matmul __matmul__ __rmatmul__ mm bmm baddbmm einsum outer linear".split())
#: Infinite where their argument, or the second of two, is 0.
POLES = frozenset("log log2 log10 rsqrt reciprocal __rtruediv__".split())
QUOTIENTS = frozenset("div __truediv__ true_divide".split())
ADDITIONS = frozenset("add __add__ __radd__ sub __sub__ add_ sub_ lerp".split())

#: Ways to change an average, or a gradient, in place.
REPLACEMENTS = frozenset("copy_ set_data".split())
IN_PLACE_UPDATES = REPLACEMENTS | frozenset(
    "add_ lerp_ sub_ mul_ __iadd__ __isub__ __imul__".split()
)
ADDED_IN_PLACE = frozenset("add_ sub_ __iadd__ __isub__".split())
CLAMPS = frozenset("clamp_ clip_ clamp_max_ clamp_min_ renorm_".split())
LINEAR_EDITS = frozenset("mul_ div_ __imul__ __itruediv__ _foreach_mul_ _foreach_div_".split())

#: What a gradient that carries the loss scale may pass through with it, and what may remove it.
KEEP_SCALE = frozenset("to float half bfloat16 cat stack clone".split())
CHANGE_SCALE = SCALINGS | frozenset("div __truediv__ true_divide div_ __itruediv__".split())
