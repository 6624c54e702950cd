"""Random clusterings and plans for the property tests."""

from hypothesis import strategies as st

from discover.lab.data import Clustering

# Cluster sizes from 1 to 10,000; powers of ten beside ordinary numbers, so that heavy skew is common.
size = st.one_of(st.integers(1, 12), st.sampled_from([1, 2, 10, 100, 1000, 3000]), st.integers(1, 10_000))
sizes = st.lists(size, min_size=1, max_size=12)
groups = st.integers(1, 9)
group_size = st.integers(1, 40)
seed = st.integers(0, 2**40)


def partition(cluster_sizes, seed):
    """A clustering with the given sizes, its examples dealt out in a scattered order."""
    import numpy as np

    ids = np.repeat(np.arange(len(cluster_sizes)), cluster_sizes)
    return Clustering.from_assignments(np.random.default_rng(seed).permutation(ids))
