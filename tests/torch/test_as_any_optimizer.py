"""What users of torch's optimizers expect: groups, schedules, scalers, clipping, dtypes, and errors."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from discover.torch import Discover, DiscoverAdamW, DiscoverMuon, optimizer
from tests.torch.problem import NAMES, OURS, draw, equal, loss_of, model, parameters, take_step, train

KINDS = pytest.mark.parametrize("kind", OURS)


@KINDS
@pytest.mark.parametrize("options", [{}, {"damping": 0.1}, {"buffer_dtype": torch.bfloat16}, {"buffers": "cpu"}])
def test_parameters_without_numbers_and_with_one(kind, options):
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((0,), (0, 3), (), (4, 3, 2, 2), (2, 3))]
    opt = OURS[kind](params, 0.1, 2, **options)
    for step in range(3):
        for p in params:
            p.grad = torch.full_like(p, step + 1.0)
        opt.cluster = step % 2
        opt.step()
    assert all(p.isfinite().all() and not (p == 1).any() for p in params)


def test_hooks_of_torch_see_the_step():
    net, seen = model(), []
    opt = Discover(net.parameters(), 0.01, NAMES)

    def set_cluster(opt, args, kwargs):
        seen.append(opt.cluster)
        opt.cluster = "qa"

    opt.register_step_pre_hook(set_cluster)
    opt.register_step_post_hook(lambda opt, args, kwargs: seen.append(opt.cluster))
    loss_of(net, 0).backward()
    opt.step()
    assert seen == [None, None]
    assert opt.state[net[0].weight]["buffer:qa"].any()


@KINDS
def test_parameter_groups_have_their_own_rate_and_decay(kind):
    """Each group moves as if it had an optimizer of its own."""
    params, batches = draw(1, 5, 3)
    ends = []
    own = {"wide": {"lr": 0.1, "weight_decay": 0.5}, "scale": {"lr": 0.01, "beta": 0.5, "l2": 0.1}}
    for together in (True, False):
        tensors = {name: p for name, p in parameters(params).items() if name in own}
        groups = [{"params": [tensors[name]], **options} for name, options in own.items()]
        opts = [OURS[kind](groups, 0.0, 3)] if together else [OURS[kind]([group], 0.0, 3) for group in groups]
        for batch in batches:
            for opt, part in zip(opts, [tensors] if together else [{name: tensors[name]} for name in own]):
                take_step(opt, part, batch)
        ends.append([p.detach() for p in tensors.values()])
    assert equal(*ends)


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_schedulers_move_the_learning_rate(lr):
    net, rates = model(), []
    opt = DiscoverAdamW(net.parameters(), lr, NAMES)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=2)
    schedule = torch.optim.lr_scheduler.SequentialLR(
        opt, [warm, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)], [2]
    )

    def after():
        schedule.step()
        rates.append(float(opt.param_groups[0]["lr"]))

    train(net, opt, range(6), after)
    assert rates[0] < rates[2] > rates[-1]
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.3, total_steps=6, cycle_momentum=False)
    train(net, opt, range(6), after)
    assert max(rates) > 0.2


def test_a_learning_rate_in_a_tensor_makes_the_same_steps():
    ends = []
    for lr in (0.1, torch.tensor(0.1)):
        net = model()
        ends.append(train(net, DiscoverAdamW(net.parameters(), lr, NAMES), range(4)))
    for left, right in zip(*ends):
        torch.testing.assert_close(left, right)


@KINDS
def test_gradient_clipping_between_backward_and_step(kind):
    net = model()
    opt = OURS[kind](net.parameters(), 0.01, NAMES, buffer_dtype=torch.float32)
    opt.cluster = "qa"
    (1e6 * loss_of(net, 0)).backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    length = sum(opt.state[p]["buffer:qa"].square().sum() for p in net.parameters()).sqrt()
    assert length == pytest.approx(min(1, (1 - 0.95) * 3), rel=1e-4)  # ρ times the clipped length


@KINDS
def test_a_grad_scaler_skips_an_overflow_and_scales_back(kind):
    ends = []
    for scaled in (True, False):
        net = model()
        opt = OURS[kind](net.parameters(), 0.01, NAMES)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=10**6, enabled=scaled)
        for step in range(4):
            if step == 2 and scaled:
                opt.cluster = "news"
                (loss_of(net, step) * float("inf")).backward()
                before = [p.detach().clone() for p in net.parameters()]
                scaler.unscale_(opt)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
                assert equal(before, list(net.parameters()))
            opt.cluster = NAMES[step % 3]
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(net, step)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        ends.append([p.detach() for p in net.parameters()])
    for left, right in zip(*ends):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize(
    ("unscale_each", "error", "message"),
    [(False, AssertionError, "No inf checks were recorded"), (True, RuntimeError, "has already been called")],
)
def test_a_grad_scaler_stops_at_collected_groups_before_a_step_is_taken(unscale_each, error, message):
    """It looks at p.grad once a step, and `collect` has taken the gradients: scaled ones must not pass for others."""
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    scaler = torch.amp.GradScaler("cpu")
    before = [p.detach().clone() for p in net.parameters()]

    def one_step():
        for number, name in enumerate(NAMES):
            scaler.scale(loss_of(net, number)).backward()
            if unscale_each:
                scaler.unscale_(opt)
            opt.collect(name)
        scaler.step(opt)

    with pytest.raises(error, match=message):
        one_step()
    assert equal(before, list(net.parameters()))


@KINDS
def test_missing_gradients_and_frozen_parameters_are_left_alone_and_others_may_come_later(kind):
    net = model()
    net[0].bias.requires_grad_(False)
    opt = OURS[kind](net[0].parameters(), 0.01, NAMES, weight_decay=0.1)
    unused = torch.nn.Parameter(torch.ones(2, 2))
    opt.add_param_group({"params": [unused], "lr": 1.0})
    frozen = net[0].bias.detach().clone()
    train(net, opt, range(3))
    assert torch.equal(net[0].bias, frozen)
    assert torch.equal(unused, torch.ones(2, 2))
    assert net[0].bias not in opt.state
    opt.add_param_group({"params": net[3].parameters()})
    before = net[3].weight.detach().clone()
    train(net, opt, range(3, 6))
    assert not torch.equal(net[3].weight, before)


@KINDS
def test_half_precision_parameters_have_a_wide_memory(kind):
    net = model(torch.bfloat16)
    opt = OURS[kind](net.parameters(), 0.01, NAMES)
    train(net, opt, range(3))
    for p in net.parameters():
        assert p.dtype == torch.bfloat16
        tensors = {key: value.dtype for key, value in opt.state[p].items() if key != "step"}
        assert set(tensors.values()) == {torch.float32}


@KINDS
def test_layouts_of_images_are_kept(kind):
    ends = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = model().double().to(memory_format=layout)
        opt = OURS[kind](net.parameters(), 0.01, NAMES, damping=0.1)
        train(net, opt, range(4))
        assert opt.state[net[0].weight]["buffer:qa"].is_contiguous(memory_format=layout)
        ends.append(list(net.parameters()))
    for left, right in zip(*ends):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


@KINDS
def test_buffers_on_the_host_make_the_same_steps(kind):
    ends = []
    for where in (None, "cpu"):
        net = model()
        opt = OURS[kind](net.parameters(), 0.01, NAMES, buffers=where)
        ends.append(train(net, opt, range(6)))
    assert equal(*ends)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_another_device_is_read_and_written_by_name_only(dtype):
    """As with buffers="cpu" on a GPU, where `to` makes a copy: buffers narrower than ḡ take that way too."""
    net = model()
    opt = DiscoverMuon(net.parameters(), 0.01, NAMES, buffer_dtype=dtype, buffers="cpu")
    train(net, opt, range(3))
    buffers = [opt.state[p]["buffer:nli"] for p in net.parameters()]
    train(net, opt, range(3))
    assert all(now is before for now, before in zip((opt.state[p]["buffer:nli"] for p in net.parameters()), buffers))


@KINDS
def test_a_compiled_step_is_the_same_and_compiled_once_for_all_clusters(kind, monkeypatch):
    from torch._dynamo.utils import counters

    monkeypatch.setattr(optimizer, "AFRESH", 5)

    def trained(compiled):
        net, programs = model(torch.float64), []
        opt = OURS[kind](net.parameters(), 0.01, range(1, 11), damping=0.1, weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 20)
        if compiled:
            opt.step = torch.compile(opt.step, backend="aot_eager")

        def after():
            schedule.step()
            programs.append(counters["stats"]["unique_graphs"])

        return train(net, opt, range(12), after), programs

    torch._dynamo.reset()
    counters.clear()
    compiled, programs = trained(True)
    assert set(programs) == {1}
    for left, right in zip(compiled, trained(False)[0]):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def test_a_closure_sets_the_cluster():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)

    def closure():
        opt.zero_grad()
        loss = loss_of(net, 0)
        loss.backward()
        opt.cluster = "news"
        return loss

    assert opt.step(closure).item() == pytest.approx(loss_of(model(), 0).item())
    assert opt.cluster is None
    state = opt.state[net[0].weight]
    assert state["buffer:news"].any()
    assert not state["buffer:qa"].any()


def test_training_and_evaluation_are_at_the_same_parameters():
    assert not any(hasattr(kind, "eval") or hasattr(kind, "train") for kind in OURS.values())
