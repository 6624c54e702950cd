"""ḡ = Σ p_n g_n for as long as training lasts, after any gradient; and gradients that are not finite."""

import copy
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

import discover
from discover.torch import Discover, DiscoverAdamW, optimizer
from tests.torch.problem import NAMES, OURS, draw, equal, give, loss_of, model, parameters, train

CLUSTERS, SIZE = 10, 40
PLACES = pytest.mark.parametrize("options", [{}, {"buffer_dtype": torch.bfloat16}, {"buffers": "cpu"}])
BAD = pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])


def distances(scales, groups=1, **options):
    """‖ḡ − Σ p g‖/‖Σ p g‖ after each step, each group's gradient multiplied by its step's scale."""
    rng, p = np.random.default_rng(0), torch.nn.Parameter(torch.zeros(SIZE))
    centres, found = rng.normal(size=(CLUSTERS, SIZE)), []
    opt = Discover([p], 0.0, CLUSTERS, **options)
    for scale in scales:
        for n in rng.integers(0, CLUSTERS, groups):
            p.grad = torch.tensor(scale * (centres[n] + 0.3 * rng.normal(size=SIZE)), dtype=torch.float32)
            opt.collect(int(n))
        opt.step()
        buffers = torch.stack([opt.state[p][f"buffer:{n}"] for n in range(CLUSTERS)]).double()
        found.append(((opt.state[p]["mean"] - buffers.mean(0)).norm() / buffers.mean(0).norm()).item())
    return np.asarray(found)


@PLACES
@pytest.mark.parametrize("spike", [1e8, 1e10])
def test_one_gradient_that_is_far_too_large_is_forgotten_within_a_thousand_steps(spike, options):
    scales = np.ones(1200)
    scales[100] = spike
    found = distances(scales, groups=1 if options else 8, **options)
    assert found[101] < 1e-5  # of what the spike has made of ḡ
    assert found[150:500].max() > 1e-5  # (F3) alone would keep what it lost
    assert found[1100:].max() < 1e-5


def test_the_mean_follows_gradients_that_shrink_to_nothing(monkeypatch):
    scales = 0.99 ** np.arange(1500)
    assert distances(scales).max() < 1e-4
    monkeypatch.setattr(optimizer, "AFRESH", 10**6)
    assert distances(scales).max() > 1e-2


@pytest.mark.parametrize("options", [{}, {"buffers": "cpu"}])
def test_it_is_summed_afresh_in_the_same_step_as_in_jax(options):
    """From a ḡ that is none of its buffers' means, which only that sum can repair."""
    params, batches = draw(0, 520, 3, {"w": (2,), "m": (2, 3)}, groups=(1, 1))
    tensors, theirs = parameters(params), jax.tree.map(lambda a: jnp.asarray(a.T), params)
    opt = Discover(tensors.items(), 0.01, (3, 2, 1), **options)
    with jax.enable_x64(True):
        tx = discover.scale_by_discover(discover.Clusters.from_counts([3, 2, 1]))
        state = tx.init(jax.tree.map(jnp.float64, theirs))
        update = jax.jit(lambda grads, state, ids: tx.update(grads, state, cluster_ids=ids)[1])
        for number, (ids, _, (grads,)) in enumerate(batches):
            state = update({name: jnp.asarray(g.T)[None] for name, g in grads.items()}, state, jnp.asarray(ids))
            give(tensors, grads)
            opt.cluster = int(ids[0])
            opt.step()
            if not number:
                state = state._replace(mean=jax.tree.map(lambda m: m + 1, state.mean))
                for p in tensors.values():
                    opt.state[p]["mean"] += 1
            if number not in (510, 511):  # JAX sums at the end of a step, torch before the next
                for name, p in tensors.items():
                    np.testing.assert_allclose(
                        opt.state[p]["mean"], np.asarray(state.mean[name]).T, rtol=0, atol=1e-12, err_msg=str(number)
                    )


@pytest.mark.parametrize("kind", OURS)
def test_training_resumes_bit_by_bit_around_the_step_in_which_the_mean_is_summed(kind, monkeypatch):
    monkeypatch.setattr(optimizer, "AFRESH", 6)
    net = model()
    opt = OURS[kind](net.parameters(), 0.01, NAMES)
    train(net, opt, range(5))
    file = io.BytesIO()
    torch.save([net.state_dict(), opt.state_dict()], file)
    expected = train(net, opt, range(5, 14))
    file.seek(0)
    again = model()
    other = OURS[kind](again.parameters(), 0.01, NAMES)
    for one, saved in zip((again, other), torch.load(file, weights_only=True)):
        one.load_state_dict(saved)
    assert equal(train(again, other, range(5, 14)), expected)


@PLACES
@BAD
def test_what_is_not_finite_reaches_the_step_but_no_buffer(bad, options):
    params, _ = draw(0, 0, 1, {"w": (2, 3), "b": (3,)})
    tensors = parameters(params, torch.float32)
    opt = Discover(tensors.items(), 0.1, 4, **options)
    for n in (0, 2, 3):
        give(tensors, {name: np.ones_like(value) for name, value in params.items()})
        if n == 2:
            tensors["w"].grad[0, 1] = tensors["b"].grad[2] = bad
        opt.collect(n)
    opt.step()
    for p in tensors.values():
        state = opt.state[p]
        assert (~p.isfinite()).sum() == 1
        assert all(value.isfinite().all() for value in state.values())
        assert torch.equal(state["buffer:2"] == 0, ~p.isfinite())  # where its own is not, it has not moved
        assert (state["buffer:0"] > 0).all()
        mean = sum(state[f"buffer:{n}"].float() / 4 for n in range(4))
        torch.testing.assert_close(state["mean"], mean)


@BAD
@pytest.mark.parametrize("kind", OURS)
def test_a_group_that_is_not_finite_can_be_left_out(kind, bad):
    """Also one of two groups of a cluster."""
    params, (batch,) = draw(1, 1, 1, groups=(4, 4))
    ends = []
    for spoilt in (True, False):
        tensors = parameters(params)
        opt = OURS[kind](tensors.items(), 0.1, 3, weight_decay=0.1, skip_nonfinite=spoilt)
        for number, grads in enumerate(batch[2]):
            give(tensors, grads)
            if number == 1:
                tensors["kernel"].grad[0, 0, 0, 0] = bad
            if spoilt or number != 1:
                opt.collect(number % 2, number + 1)
            opt.zero_grad()
        opt.step()
        assert opt.skipped == spoilt
        ends.append([*tensors.values(), *(value for p in tensors.values() for value in opt.state[p].values())])
    assert equal(*ends)


@pytest.mark.parametrize("in_groups", [False, True])
@pytest.mark.parametrize("kind", OURS)
def test_a_batch_that_is_left_out_whole_changes_nothing(kind, in_groups):
    net = model()
    opt = OURS[kind](net.parameters(), 0.01, NAMES, weight_decay=0.1, l2=0.1, skip_nonfinite=True)
    train(net, opt, range(2))
    before = copy.deepcopy((opt.state_dict(), list(net.parameters())))
    (loss_of(net, 2) * float("nan")).backward()
    if in_groups:
        opt.collect("qa")
    else:
        opt.cluster = "qa"
    opt.step()
    opt.zero_grad()
    assert opt.cluster is None
    assert equal(before[1], list(net.parameters()))
    after = opt.state_dict()
    for number, state in before[0]["state"].items():
        assert equal(state.values(), after["state"][number].values())
    assert opt.skipped == after["param_groups"][0]["skipped"] == 1
    assert after["param_groups"][0]["steps"] == 2
    again = copy.deepcopy(opt)
    again.load_state_dict(after)
    assert (again.skipped, again.skip_nonfinite) == (1, True)
    with pytest.raises(RuntimeError, match="no cluster was set"):
        opt.step()
    assert all(p.isfinite().all() for p in train(net, opt, range(3)))


def test_large_finite_gradients_and_empty_parameters_are_not_left_out():
    p, empty = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(0, 3))
    opt = DiscoverAdamW([p, empty], 0.1, 2, skip_nonfinite=True)
    p.grad, empty.grad = torch.full((4,), 3e38), torch.zeros(0, 3)  # the sum of their squares is infinite
    opt.cluster = 0
    opt.step()
    assert opt.skipped == 0
    assert opt.state[p]["buffer:0"].all()
