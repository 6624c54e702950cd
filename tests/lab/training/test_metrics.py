"""Training lines do not depend on how the steps were cut into stretches, nor on being resumed."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.training.metrics import MemberLog

STEPS, MEMBERS = 23, 2


def new_log(lines):
    labels = [{"seed": seed} for seed in range(MEMBERS)]
    return MemberLog(labels, ["a", "b"], lambda member, step: 0.5**member / step, 4, STEPS, lines.extend)


def numbers():
    return np.random.default_rng(0).random((2, STEPS, MEMBERS), dtype=np.float32)


def unbroken():
    lines = []
    new_log(lines).add(0, *numbers())
    return lines


@settings(max_examples=60)
@given(st.sets(st.integers(1, STEPS - 1)), st.sets(st.integers(1, STEPS - 1)))
def test_lines_are_the_same_however_the_run_is_cut_and_resumed(cuts, resumptions):
    loss, accuracy = numbers()
    lines = []
    log = new_log(lines)
    ends = sorted({*cuts, *resumptions, STEPS})
    for first, last in zip([0, *ends], ends):
        log.add(first, loss[first:last], accuracy[first:last])
        if last in resumptions:
            note = json.loads(json.dumps(log.note()))
            log = new_log(lines)
            log.recall(note)
    assert lines == unbroken()


def test_a_line_is_the_mean_over_its_steps_and_the_last_one_may_be_shorter():
    lines = [line for line in unbroken() if line["seed"] == 1]
    loss, accuracy = numbers()
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20, 23]
    for line, rows in zip(lines, [slice(0, 4), slice(4, 8), slice(8, 12), slice(12, 16), slice(16, 20), slice(20, 23)]):
        np.testing.assert_allclose(line["loss"], loss[rows, 1].mean(), rtol=1e-6)
        np.testing.assert_allclose(line["accuracy"], accuracy[rows, 1].mean(), rtol=1e-6)
        assert line["learning_rate"] == 0.5 / line["step"]


def test_a_diverged_member_is_reported_once_and_writes_no_more_lines():
    loss, accuracy = numbers()
    loss[9:, 1] = np.nan
    lines = []
    log = new_log(lines)
    assert log.add(0, loss[:5], accuracy[:5]) == []
    assert log.add(5, loss[5:12], accuracy[5:12]) == [1]
    assert log.add(12, loss[12:], accuracy[12:]) == []
    assert log.diverged_at == {1: 10}
    assert [line["step"] for line in lines if line["seed"] == 1] == [4, 8]
    assert [line["step"] for line in lines if line["seed"] == 0] == [4, 8, 12, 16, 20, 23]
