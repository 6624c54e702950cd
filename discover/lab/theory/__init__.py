"""The paper's bound, and problems on which it can be checked.

- `bounds`: the constants and the bound of Theorem 1 (NumPy only).
- `problems`: clustered quadratic and logistic problems with a known optimum and chosen variances.

The simulation that puts them together is `discover.lab.experiments.reproduce.simulate`.
"""

from discover.lab.theory.bounds import Constants, Theorem1, direct_step_size_limit, step_size_limit, theorem_1
from discover.lab.theory.problems import LogisticProblem, Problem, QuadraticProblem, constants, logistic, quadratic

__all__ = [
    "Constants",
    "LogisticProblem",
    "Problem",
    "QuadraticProblem",
    "Theorem1",
    "constants",
    "direct_step_size_limit",
    "logistic",
    "quadratic",
    "step_size_limit",
    "theorem_1",
]
