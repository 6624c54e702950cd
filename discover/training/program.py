"""The compiled programs of a run: start, train many steps, evaluate; for several members at once.

A *member* is one network in training: a seed and hyperparameters. All members of a program share the compiled code
and the data on the device; each has its own parameters, optimizer state, batches and keys. Arrays of members have a
leading axis [M], batches of the seeds a leading [S] (members with the same seed share them).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discover.training.step import Hyper, Step, StepBatch, StepMetrics, TrainState


class Members(NamedTuple):
    """The members' own arguments of the compiled programs."""

    hyper: Hyper  # name -> float32 [M]
    seeds: jax.Array  # int32 [M]
    plan: jax.Array  # int32 [M], which of the S drawn batches a member takes


class Programs:
    """Compiles on first use, and keeps what it compiled: learning rates and seeds are arguments.

    Args:
        init: ``init(key) -> params``.
        make_optimizer: builds the optimizer from traced hyperparameters.
        step: see :func:`discover.training.step.make_step`.
        evaluate: see :func:`discover.training.evaluate.make_evaluate`.
        steps_per_dispatch: the largest number of steps in one call.
        member_mode: `vmap` computes members side by side, `map` one after the other. With `map` a member's numbers do
            not depend on who trains beside it, bit for bit.
    """

    def __init__(
        self,
        init: Callable[[jax.Array], Any],
        make_optimizer: Callable[[Hyper], optax.GradientTransformationExtraArgs],
        step: Step,
        evaluate: Callable[[TrainState, jax.Array, jax.Array], StepMetrics],
        *,
        steps_per_dispatch: int,
        member_mode: str = "vmap",
    ):
        self.steps_per_dispatch = steps_per_dispatch
        self.compile_seconds = 0.0
        self._compiled: dict[Any, Callable[..., Any]] = {}

        def over_members(function: Callable[..., Any], *shared: Any) -> Callable[..., Any]:
            """Calls ``function(member's arguments, *shared)`` for every member."""
            if member_mode == "map":
                return lambda arguments: jax.lax.map(lambda a: function(*a, *shared), arguments)
            return lambda arguments: jax.vmap(lambda a: function(*a, *shared))(arguments)

        def start(members: Members) -> TrainState:
            def one(hyper: Hyper, seed: jax.Array) -> TrainState:
                params = init(init_key(seed))
                return TrainState(params, make_optimizer(hyper).init(params))

            return over_members(one)((members.hyper, members.seeds))

        def advance(
            state: TrainState,
            members: Members,
            batches: StepBatch,
            images: jax.Array,
            first: jax.Array,
            count: jax.Array,
        ) -> tuple[TrainState, StepMetrics]:
            keys = jax.vmap(step_key)(members.seeds)

            def body(i: jax.Array, carry: tuple[TrainState, StepMetrics]) -> tuple[TrainState, StepMetrics]:
                state, log = carry
                own = jax.tree.map(lambda a: a[i][members.plan], batches)

                def one(state: Any, hyper: Hyper, key: jax.Array, batch: StepBatch) -> Any:
                    return step(state, hyper, key, first + i, batch, images)

                state, metrics = over_members(one)((state, members.hyper, keys, own))
                return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), log, metrics)

            empty = jnp.zeros((steps_per_dispatch, len(members.seeds)), jnp.float32)
            # The number of steps is an argument: any stretch of a run, and so any way of cutting it in two, executes
            # the very same program, which is what makes a resumed run equal to the last bit.
            return jax.lax.fori_loop(0, count, body, (state, StepMetrics(empty, empty)))

        def judge(state: TrainState, images: jax.Array, labels: jax.Array) -> StepMetrics:
            return over_members(evaluate, images, labels)((state,))

        self._start = jax.jit(start)
        self._advance = jax.jit(advance, donate_argnums=0)
        self._judge = jax.jit(judge)

    def start(self, members: Members) -> TrainState:
        """Returns the initial state of all members, leaves [M, ...]."""
        return self._call("start", self._start, members)

    def advance(
        self, state: TrainState, members: Members, batches: StepBatch, images: jax.Array, first: int, count: int
    ) -> tuple[TrainState, StepMetrics]:
        """Trains ``count`` steps from number ``first`` on; the old state's memory is used for the new one.

        Args:
            state: leaves [M, ...]; donated.
            members: their arguments.
            batches: leaves [steps_per_dispatch, S, ...], of which the first ``count`` are used.
            images: the data set.
            first: number of the first step, from 0.
            count: how many steps.

        Returns:
            The new state, and metrics [steps_per_dispatch, M]. Returns before the device is done.
        """
        numbers = np.int32(first), np.int32(count)
        return self._call("advance", self._advance, state, members, batches, images, *numbers)

    def prepare_advance(self, state: TrainState, members: Members, batches: StepBatch, images: jax.Array) -> None:
        """Compiles :meth:`advance` for these shapes, so that the first call is as quick as the others."""
        self._compile("advance", self._advance, state, members, batches, images, np.int32(0), np.int32(0))

    def evaluate(self, state: TrainState, images: jax.Array, labels: jax.Array) -> StepMetrics:
        """Returns loss and accuracy [M] on a split."""
        return self._call("evaluate", self._judge, state, images, labels)

    def abstract_state(self, members: Members) -> TrainState:
        """Returns the shapes and types of the state, without computing it."""
        return jax.eval_shape(self._start, members)

    def _call(self, name: str, function: Any, *arguments: Any) -> Any:
        return self._compile(name, function, *arguments)(*arguments)

    def _compile(self, name: str, function: Any, *arguments: Any) -> Callable[..., Any]:
        leaves, structure = jax.tree.flatten(arguments)
        key = (name, structure, tuple((np.shape(x), jnp.result_type(x)) for x in leaves))
        if key not in self._compiled:
            began = time.perf_counter()
            self._compiled[key] = function.lower(*arguments).compile()
            self.compile_seconds += time.perf_counter() - began
        return self._compiled[key]


def init_key(seed: Any) -> jax.Array:
    """The key of a seed's initial parameters."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def step_key(seed: Any) -> jax.Array:
    """The key from which a seed's steps draw augmentation and dropout."""
    return jax.random.fold_in(jax.random.key(seed), 1)
