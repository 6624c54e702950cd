"""Buffers for some parameters, one shared momentum for the others: less memory, where clusters differ little."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from discover.context import NO_CONTEXT, Context, GroupTransformation, Scalar
from discover.groups import mean_over_groups
from discover.optimizers.compose import Mask, each, unless_empty
from discover.optimizers.plain import scale_by_qhm


class BufferedState(NamedTuple):
    """What is remembered of the parameters with a buffer for each cluster, and of the others."""

    rule: Any
    shared: Any


def buffered_only(rule: GroupTransformation, buffered: Mask, beta: Scalar, nu: Scalar) -> GroupTransformation:
    """The rule for the parameters that the mask chooses; the rule with one cluster, which is QHM, for the others.

    Args:
      rule: `scale_by_discover`.
      buffered: which parameters have a buffer for each cluster; None: all.
      beta, nu: of the rule.
    """
    if buffered is None:
        return rule
    groups, momentum = mean_over_groups(), scale_by_qhm(beta, nu)

    def halves(tree: Any, like: Any) -> tuple[Any, Any]:
        """The tree with only the buffered parameters in it, and with only the others."""
        treedef, chosen = jax.tree.structure(like), each(buffered, like, True)
        pairs = list(zip(treedef.flatten_up_to(tree), treedef.flatten_up_to(chosen), strict=True))
        nothing = optax.MaskedNode()
        own, others = ([leaf if bool(on) == half else nothing for leaf, on in pairs] for half in (True, False))
        return treedef.unflatten(own), treedef.unflatten(others)

    def contexts(context: Context, like: Any) -> tuple[Context, Context]:
        context = context._replace(move=None)  # the kernel does not move what others have to say something about
        if context.offset is None:
            return context, context
        vectors = halves(context.offset.vector, like)
        own, others = (context._replace(offset=context.offset._replace(vector=vector)) for vector in vectors)
        return own, others

    def init(params):
        own, others = halves(params, params)
        return BufferedState(rule.init(own), momentum.init(others))

    def update(updates, state, params=None, *, context=NO_CONTEXT, **extra):
        own_context, other_context = contexts(context, updates)
        own, others = halves(updates, updates)
        own_params, other_params = (None, None) if params is None else halves(params, updates)
        direction, rule_state = rule.update(own, state.rule, own_params, context=own_context, **extra)
        means, _ = groups.update(others, groups.init(others), other_params, context=other_context, **extra)
        shared, shared_state = momentum.update(means, state.shared, other_params)
        now, before = (shared, shared_state), (jax.tree.map(jnp.zeros_like, shared), state.shared)
        shared, shared_state = unless_empty(extra.get("group_sizes"), now, before)
        both = jax.tree.map(
            lambda one, other: other if isinstance(one, optax.MaskedNode) else one,
            direction,
            shared,
            is_leaf=lambda node: isinstance(node, optax.MaskedNode),
        )
        return both, BufferedState(rule_state, shared_state)

    return GroupTransformation(init, update)
