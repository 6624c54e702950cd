"""Several processes: the same step as in one process, no more sent than DDP sends, and mistakes are said."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from tests.torch import on_ranks
from tests.torch.problem import OURS


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def two():
    """What two processes found."""
    return on_ranks.run(on_ranks.everything, 2)


@pytest.mark.parametrize("kind", OURS)
def test_clusters_spread_over_two_processes_are_as_in_one(two, kind):
    close(two[0]["exchanged"][kind], on_ranks.in_one_process(kind, 2))
    assert all(torch.equal(two[1]["exchanged"][kind][name], p) for name, p in two[0]["exchanged"][kind].items())


def test_large_parameters_are_damped_as_in_one_process(two):
    close(two[0]["large"], on_ranks.large())


def test_clusters_spread_over_four_processes_are_as_in_one():
    ends = on_ranks.run(on_ranks.exchanged, 4, "muon")
    close(ends[0], on_ranks.in_one_process("muon", 4))
    assert all(torch.equal(end[name], p) for end in ends for name, p in ends[0].items())


def test_what_is_sent_is_what_ddp_sends_and_each_process_holds_a_slice(two):
    for sent, shapes in (rank["sent"] for rank in two):
        params = 4 * (16 * 8 + 8)
        told = 8 * 2 * (2 + 2 + 1) // 2  # the sizes of two clusters, which of two parameters, and one number more
        assert sent == {"all_to_all_single": params // 2, "all_gather": params // 2 + told}
        assert shapes == {"mean": (64,), "buffer:0": (64,), "buffer:1": (64,)}


def test_different_clusters_behind_averaged_gradients_are_noticed(two):
    for rank in two:
        message = rank["same"]["averaged"]
        assert message.startswith("the processes hold different clusters: ['a'] in rank 0, ['b'] in rank 1")
        assert "ranks='exchange'" in message
        message = rank["exchange"]["averaged"]
        assert message.startswith("rank 0 with ['a'] and rank 1 with ['b'] have the same gradients: DDP has averaged")
        assert "no_sync()" in message


def test_groups_of_other_sizes_behind_averaged_gradients_are_noticed(two):
    for rank in two:
        message = rank["sizes"]
        assert message.startswith("the processes hold different sizes of groups: {'b': 8.0} in rank 0, {'b': 7.0} in")
        assert "Give `collect` one size in all; or make the optimizer with ranks='exchange'" in message


@pytest.mark.parametrize("sync", ["no_sync", "hook"])
def test_ddp_with_local_gradients_is_as_in_one_process(two, sync):
    for rank in two:
        close(rank["exchange"][sync], on_ranks.one_process_of())


@pytest.mark.parametrize("kind", OURS)
def test_fsdp_shards_the_buffers_and_resumes(two, kind):
    for params, again, message in (rank["sharded"][kind] for rank in two):
        close(params, on_ranks.sharded_in_one_process(kind))
        assert all(map(torch.equal, params, again))
        assert message.startswith("damping needs whole parameters")


def test_fsdp_with_narrow_buffers_and_with_clusters_of_their_own(two):
    for params, message in (rank["sharded otherwise"] for rank in two):
        expected = [p.detach() for p in on_ranks.with_narrow_buffers().parameters()]
        torch.testing.assert_close(params, expected, rtol=0, atol=1e-4)
        assert message.startswith("ranks='exchange' needs whole parameters, and FSDP has sharded these")


def test_the_older_fsdp_takes_what_works_number_by_number_and_the_rest_is_refused(two):
    for params, said in (rank["flattened"] for rank in two):
        close(params, on_ranks.sharded_in_one_process("adam"))
        assert [message.split(",")[0] for message in said] == [
            "FullyShardedDataParallel has flattened the matrices",
            "ranks='exchange' needs whole parameters",
            "damping needs whole parameters",
        ]


def test_zero_redundancy_shares_the_buffers_out(two):
    for split, whole in (rank["zero redundancy"] for rank in two):
        close(split, whole)


def test_what_is_not_finite_in_one_process_is_left_out_by_all(two):
    expected, _ = on_ranks.left_out()
    for rank, found in enumerate(one["left out"] for one in two):
        params, skipped = found["exchange"]
        close(params, expected)
        assert skipped == sum(bad == rank for _, bad in on_ranks.BAD)
        assert found["same"] == (1, True)
