"""The paper's bounds, and problems on which they can be checked.

- `bounds`: the constants and bounds of Lemmas 1 to 4 and of Theorem 1 (NumPy only).
- `problems`: clustered quadratic and logistic problems with a known optimum and chosen variances.

The simulation that puts them together is `discover.lab.experiments.reproduce.simulate`.
"""

from discover.lab.theory.bounds import (
    Constants,
    Theorem1,
    direct_step_size_limit,
    lemma_1,
    lemma_2,
    lemma_3,
    lemma_4,
    sgd_steady_state,
    step_size_limit,
    theorem_1,
)
from discover.lab.theory.problems import (
    LogisticProblem,
    Problem,
    QuadraticProblem,
    constants,
    logistic,
    quadratic,
)

__all__ = [
    "Constants",
    "LogisticProblem",
    "Problem",
    "QuadraticProblem",
    "Theorem1",
    "constants",
    "direct_step_size_limit",
    "lemma_1",
    "lemma_2",
    "lemma_3",
    "lemma_4",
    "logistic",
    "quadratic",
    "sgd_steady_state",
    "step_size_limit",
    "theorem_1",
]
