"""What the tests run in several processes; each process leaves what it found in a file."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from discover import sample
from discover.torch import Discover, DiscoverAdamW, DiscoverMuon, local_gradients, optimizer, ranks
from tests.torch.problem import OURS, draw, give, parameters

COUNTS = (500, 300, 150, 50)
OPTIONS = {"weight_decay": 0.1, "l2": 0.05, "damping": 0.3, "beta": 0.9}
STEPS = 6


def run(function, world, *args):
    """What `function(rank, *args)` returns in each of `world` processes that are connected by gloo."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_connected, (world, folder, function, args), nprocs=world)
        return [torch.load(Path(folder) / f"{rank}", weights_only=False) for rank in range(world)]


def _connected(rank, world, folder, function, args):
    torch.set_num_threads(1)
    optimizer.AFRESH = 3  # so that the mean is summed afresh in these few steps, too
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    try:
        torch.save(function(rank, *args), Path(folder) / f"{rank}")
    finally:
        dist.destroy_process_group()


def everything(rank):
    """All that the tests want to know of two processes."""
    sync = ("averaged", "no_sync", "hook")
    return {
        "exchanged": {kind: exchanged(rank, kind) for kind in OURS},
        "large": large(rank),
        "sharded": {kind: sharded(rank, kind) for kind in OURS},
        "sharded otherwise": sharded_otherwise(rank),
        "same": {"averaged": in_ddp(rank, "same", "averaged")},
        "exchange": {how: in_ddp(rank, "exchange", how) for how in sync},
        "flattened": flattened(rank),
        "zero redundancy": zero_redundancy(rank),
        "sizes": sizes(rank),
        "left out": {"exchange": left_out(rank), "same": left_out_of_a_shard(rank)},
        "sent": bytes_sent(rank),  # the last, as it counts all that is sent from then on
    }


def exchanged(rank, kind):
    """Parameters at the end: groups of random clusters, dealt to the ranks in turn."""
    world = dist.get_world_size()
    params, batches = draw(5, STEPS, len(COUNTS), groups=(world, world + 2))
    tensors = parameters(params)
    opt = OURS[kind](tensors.items(), 0.05, COUNTS, ranks="exchange", **OPTIONS)
    for ids, sizes, grads in batches:
        for k in range(rank, len(ids), world):
            give(tensors, grads[k])
            if k % 2 and k != 1:
                tensors["wide"].grad = None  # some groups do not reach it
            opt.collect(int(ids[k]), float(sizes[k]))
        opt.step()
    return {name: p.detach() for name, p in tensors.items()}


def in_one_process(kind, world):
    """The same without the others."""
    params, batches = draw(5, STEPS, len(COUNTS), groups=(world, world + 2))
    tensors = parameters(params)
    opt = OURS[kind](tensors.items(), 0.05, COUNTS, **OPTIONS)
    for ids, sizes, grads in batches:
        for k, one in enumerate(grads):
            give(tensors, one)
            if k % 2 and k != 1:
                tensors["wide"].grad = None
            opt.collect(int(ids[k]), float(sizes[k]))
        opt.step()
    return {name: p.detach() for name, p in tensors.items()}


def large(rank=None):
    """Parameters at the end, large enough for damping to take its products from a part of their numbers."""
    before, sample.LEAST = sample.LEAST, 300
    params, batches = draw(9, 4, 2, {"matrix": (20, 31), "kernel": (5, 7, 3, 6), "b": (5,)}, groups=(2, 2))
    tensors = parameters(params)
    opt = Discover(tensors.items(), 0.05, 2, damping=0.1, ranks="same" if rank is None else "exchange")
    for ids, sizes, grads in batches:
        for k in (0, 1) if rank is None else (rank,):
            give(tensors, grads[k])
            opt.collect(int(ids[k]), float(sizes[k]))
        opt.step()
    sample.LEAST = before
    return {name: p.detach() for name, p in tensors.items()}


def bytes_sent(rank):
    """Bytes that leave this process in a step after the first, by operation; one cluster a rank."""
    sent = {}

    def counted(module, name, argument, own_share):
        original = getattr(module, name)

        def wrapper(*args, **kwargs):
            given = args[argument]
            sent[name] = sent.get(name, 0) + given.numel() * given.element_size() * own_share
            return original(*args, **kwargs)

        setattr(module, name, wrapper)

    world = dist.get_world_size()
    others = (world - 1) / world
    params, _ = draw(0, 1, world, {"w": (16, 8), "b": (8,)})
    tensors = parameters(params, torch.float32)
    opt = Discover(tensors.values(), 0.1, world, ranks="exchange")
    for step in range(2):
        if step:
            counted(dist, "all_to_all_single", 1, others)
            counted(ranks, "all_gather", 0, others)
        give(tensors, {name: value + rank for name, value in params.items()})
        opt.cluster = rank
        opt.step()
    state = opt.state[tensors["w"]]
    return sent, {key: tuple(value.shape) for key, value in state.items()}


BAD = {(1, 0), (2, 1), (3, 0), (3, 1)}  # step and rank of gradients that are not finite


def left_out(rank=None):
    """Parameters at the end where some groups, once all of a batch, are not finite; by itself or in one process."""
    params, batches = draw(8, STEPS, 2, {"w": (5, 3), "b": (3,)}, groups=(2, 2))
    tensors, alone = parameters(params), rank is None
    opt = Discover(
        tensors.items(), 0.05, 2, ranks="same" if alone else "exchange", weight_decay=0.1, skip_nonfinite=not alone
    )
    for step, (_, _, grads) in enumerate(batches):
        for k in (0, 1) if alone else (rank,):
            give(tensors, grads[k])
            if (step, k) in BAD and not alone:
                tensors["b"].grad[k] = float("nan")
            if (step, k) not in BAD or not alone:
                opt.collect(k, k + 1)
            opt.zero_grad()
        if (step, 0) not in BAD or (step, 1) not in BAD or not alone:
            opt.step()
    return [p.detach() for p in tensors.values()], opt.skipped


def left_out_of_a_shard(rank):
    """How many batches FSDP's processes left out after one had NaN in its shard, and whether parameters are finite."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 6)
    fully_shard(model)
    opt = Discover(model.parameters(), 0.05, 3, skip_nonfinite=True)
    for step in range(3):
        model(torch.ones(2, 4)).square().mean().backward()
        if step == rank == 1:
            model.weight.grad.to_local()[0, 0] = float("nan")
        opt.cluster = step
        opt.step()
        opt.zero_grad()
    return opt.skipped, all(bool(p.full_tensor().isfinite().all()) for p in model.parameters())


def in_ddp(rank, held, sync):
    """What a model in DDP says when each rank has a cluster of its own, in up to three steps; or the parameters."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    ddp = DistributedDataParallel(model)
    if sync == "hook":
        ddp.register_comm_hook(None, local_gradients)
    opt = Discover(model.parameters(), 0.1, ["a", "b"], ranks=held)
    try:
        for step in range(3):
            x = torch.arange(6.0, dtype=torch.float64).view(2, 3) + rank + step
            opt.cluster = "ab"[rank]
            if sync == "no_sync":
                with ddp.no_sync():
                    ddp(x).square().mean().backward()
            else:
                ddp(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
    except RuntimeError as error:
        return str(error)
    return [p.detach() for p in model.parameters()]


def sizes(rank):
    """What is said where all processes hold a group of one cluster, with sizes of their own."""
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    opt = Discover(model.parameters(), 0.1, ["a", "b"])
    model(torch.ones(2, 3)).square().mean().backward()
    opt.collect("b", 8 - rank)
    try:
        opt.step()
    except RuntimeError as error:
        return str(error)


def zero_redundancy(rank):
    """The parameters where each process updates some of them; the same without it."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ends = []
    for split in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)).double()
        options = {"lr": 0.1, "clusters": 3, "weight_decay": 0.1}
        params = list(model.parameters())
        opt = ZeroRedundancyOptimizer(params, Discover, **options) if split else Discover(params, **options)
        for step in range(4):
            model(torch.ones(2, 4, dtype=torch.float64)).square().mean().backward()
            (opt.optim if split else opt).cluster = step % 3
            opt.step()
            opt.zero_grad()
        ends.append([p.detach() for p in params])
    return ends


def flattened(rank):
    """What is said of matrices and damping in the older FSDP, and the parameters after some steps without them."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).double()
    sharded, said = FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu")), []
    opt = DiscoverAdamW(sharded.parameters(), 0.05, 3, weight_decay=0.1)
    for step in range(8):
        opt.cluster = step % 3
        sharded(torch.arange(8.0, dtype=torch.float64).view(2, 4) / (1 + step) + rank).square().mean().backward()
        opt.step()
        opt.zero_grad()
    with FullyShardedDataParallel.summon_full_params(sharded):
        ends = [p.detach().clone() for p in model.parameters()]
    for make, options in ((DiscoverMuon, {}), (Discover, {"ranks": "exchange"}), (Discover, {"damping": 0.1})):
        try:
            opt = make(sharded.parameters(), 0.05, 3, **options)
            opt.cluster = 0
            sharded(torch.ones(2, 4, dtype=torch.float64)).square().mean().backward()
            opt.step()
        except (RuntimeError, ValueError) as error:
            said.append(str(error))
    return ends, said


def one_process_of(world=2):
    """The same with both ranks' batches as groups."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    opt = Discover(model.parameters(), 0.1, ["a", "b"])
    for step in range(3):
        for rank in range(world):
            x = torch.arange(6.0, dtype=torch.float64).view(2, 3) + rank + step
            model(x).square().mean().backward()
            opt.collect("ab"[rank])
        opt.step()
    return [p.detach() for p in model.parameters()]


def sharded(rank, kind):
    """A model in FSDP, all ranks with one cluster: the parameters at the end, and after a resume on the way."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).double()
        fully_shard(model, mesh=mesh)
        return model, OURS[kind](model.parameters(), 0.05, 3, weight_decay=0.1)

    def train(model, opt, steps):
        for step in steps:
            x = torch.arange(8.0, dtype=torch.float64).view(2, 4) / (1 + step) + rank
            opt.cluster = step % 3
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model, opt = make()
    train(model, opt, range(4))
    saved, weights = get_optimizer_state_dict(model, opt), model.state_dict()
    again, fresh = make()
    again.load_state_dict(weights)
    fresh.cluster = 0  # for the step without gradients with which torch finds out what an optimizer remembers
    set_optimizer_state_dict(again, fresh, saved)
    for one in ((model, opt), (again, fresh)):
        train(*one, range(4, 8))
    for group in opt.param_groups:
        group["damping"] = 0.1
    try:
        train(model, opt, range(1))
        message = "damping was not refused"
    except RuntimeError as error:
        message = str(error)
    return *([p.full_tensor().detach() for p in one.parameters()] for one in (model, again)), message


def sharded_otherwise(rank):
    """With buffers in half precision, the parameters at the end; and what is said where clusters differ."""
    from torch.distributed.fsdp import fully_shard

    model = with_narrow_buffers(fully_shard)
    try:
        Discover(model.parameters(), 0.05, 3, ranks="exchange")
        message = "it was not refused"
    except ValueError as error:
        message = str(error)
    return [p.full_tensor().detach() for p in model.parameters()], message


def with_narrow_buffers(prepare=lambda model: None):
    """A model after four steps."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 6)
    prepare(model)
    opt = Discover(model.parameters(), 0.05, 3, buffer_dtype=torch.bfloat16)
    for step in range(4):
        model(torch.ones(2, 4) + step).square().mean().backward()
        opt.cluster = step % 3
        opt.step()
        opt.zero_grad()
    return model


def sharded_in_one_process(kind, world=2):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).double()
    opt = OURS[kind](model.parameters(), 0.05, 3, weight_decay=0.1)
    for step in range(8):
        x = torch.arange(8.0, dtype=torch.float64).view(2, 4) / (1 + step)
        opt.cluster = step % 3
        sum(model(x + rank).square().mean() / world for rank in range(world)).backward()
        opt.step()
        opt.zero_grad()
    return [p.detach() for p in model.parameters()]
