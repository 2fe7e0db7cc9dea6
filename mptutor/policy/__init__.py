"""Autocast's policy: which dtype each op gets, seen and followed.

* `observe` runs some 200 ops under autocast and returns the table of what comes out, for CUDA
  (no GPU is needed) and for the CPU; `difference` compares two tables.
* `cast_classes` asks the autocast kernels of the installed torch for their rules, op by op.
* `cuda_policy` makes ``torch.autocast("cpu")`` follow CUDA's rules.

Nothing here lists which op gets which dtype: all of it is asked of the installed torch.
"""

from mptutor.policy.apply import cuda_policy
from mptutor.policy.classes import CastClass, cast_classes
from mptutor.policy.observe import (
    OpPolicy,
    Outcome,
    PolicyDifference,
    PolicyTable,
    difference,
    observe,
)

__all__ = [
    "CastClass",
    "OpPolicy",
    "Outcome",
    "PolicyDifference",
    "PolicyTable",
    "cast_classes",
    "cuda_policy",
    "difference",
    "observe",
]
