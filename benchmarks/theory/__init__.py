"""The paper's bound, and problems on which it can be checked.

- `bounds`: the constants and the bound of Theorem 1 (NumPy only).
- `problems`: clustered quadratic and logistic problems with a known optimum and chosen variances.
- `simulate`: the optimizers on such problems, many seeds in one compiled program.
- `evidence`: every simulation behind `docs/theory.md`, with its figures: `python -m discover reproduce theory`.
"""

from benchmarks.theory.bounds import Constants, Theorem1, direct_step_size_limit, step_size_limit, theorem_1
from benchmarks.theory.problems import Problem, constants, make_problem

__all__ = [
    "Constants",
    "Problem",
    "Theorem1",
    "constants",
    "direct_step_size_limit",
    "make_problem",
    "step_size_limit",
    "theorem_1",
]
