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

from discover import igt_eval_params
from discover.lab.training.step import Hyper, Step, StepBatch, StepMetrics, TrainState


class Members(NamedTuple):
    """The members' own arguments of the compiled programs."""

    hyper: Hyper  # name -> float32 [M]
    seeds: jax.Array  # int32 [M]
    plan: jax.Array  # int32 [M], which of the S drawn batches a member takes


class Compiled:
    """Compiles functions on first use for the shapes at hand, keeps them, and counts the time it took."""

    def __init__(self) -> None:
        self.compile_seconds = 0.0
        self._ready: dict[Any, Callable[..., Any]] = {}

    def call(self, name: str, function: Any, *arguments: Any) -> Any:
        """Calls the jitted ``function``, compiled before if these shapes were seen before."""
        return self.prepare(name, function, *arguments)(*arguments)

    def prepare(self, name: str, function: Any, *arguments: Any) -> Callable[..., Any]:
        """Compiles the jitted ``function`` for these arguments, without calling it."""
        leaves, structure = jax.tree.flatten(arguments)
        key = (name, structure, tuple((np.shape(x), jnp.result_type(x)) for x in leaves))
        if key not in self._ready:
            began = time.perf_counter()
            self._ready[key] = function.lower(*arguments).compile()
            self.compile_seconds += time.perf_counter() - began
        return self._ready[key]


def over_members(mode: str, function: Callable[..., Any], arguments: Any) -> Any:
    """Calls ``function(*a)`` for every member's arguments ``a``, leaves [M, ...].

    Args:
        mode: `vmap` computes members side by side, `map` one after the other. A member's numbers depend on
            who trains beside it in their rounding at the most.
        function: of one member.
        arguments: a tuple of trees.
    """
    if mode == "map":
        return jax.lax.map(lambda a: function(*a), arguments)
    if (
        jax.tree.leaves(arguments)[0].shape[0] == 1
    ):  # an axis of one would still turn each convolution into a batched one
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], arguments)))
    return jax.vmap(function)(*arguments)


class ModelPrograms:
    """What does not depend on the optimizer: initial parameters and evaluation.

    Args:
        init: ``init(key) -> params``.
        evaluate: see :func:`discover.lab.training.evaluate.make_evaluate`.
        member_mode: see :func:`over_members`.
    """

    def __init__(
        self,
        init: Callable[[jax.Array], Any],
        evaluate: Callable[[Any, jax.Array, jax.Array], StepMetrics],
        *,
        member_mode: str = "vmap",
    ):
        self.compiled = Compiled()

        def start(seeds: jax.Array) -> Any:
            return over_members(member_mode, lambda seed: init(init_key(seed)), (seeds,))

        def judge(params: Any, images: jax.Array, labels: jax.Array) -> StepMetrics:
            return over_members(member_mode, lambda own: evaluate(own, images, labels), (params,))

        self.jitted_start = jax.jit(start)
        self._judge = jax.jit(judge)

    def start(self, seeds: jax.Array) -> Any:
        """Returns the initial parameters of all members, leaves [M, ...]."""
        return self.compiled.call("start", self.jitted_start, seeds)

    def evaluate(self, params: Any, images: jax.Array, labels: jax.Array) -> StepMetrics:
        """Returns loss and accuracy [M] on a split."""
        return self.compiled.call("evaluate", self._judge, params, images, labels)


class Programs:
    """Everything a run calls on the device: start, many steps, evaluation. Learning rates and seeds are arguments.

    Args:
        model: initial parameters and evaluation, which runs of different optimizers may share.
        make_optimizer: builds the optimizer from traced hyperparameters.
        step: see :func:`discover.lab.training.step.make_step`.
        steps_per_dispatch: the largest number of steps in one call.
        member_mode: see :func:`over_members`.
    """

    def __init__(
        self,
        model: ModelPrograms,
        make_optimizer: Callable[[Hyper], optax.GradientTransformationExtraArgs],
        step: Step,
        *,
        steps_per_dispatch: int,
        member_mode: str = "vmap",
    ):
        self.steps_per_dispatch = steps_per_dispatch
        self._model = model
        self._compiled = Compiled()

        def start(params: Any, hyper: Hyper) -> Any:
            return over_members(member_mode, lambda h, p: make_optimizer(h).init(p), (hyper, params))

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

                state, metrics = over_members(member_mode, one, (state, members.hyper, keys, own))
                return state, jax.tree.map(lambda all_, new: all_.at[i].set(new), log, metrics)

            empty = jnp.zeros((steps_per_dispatch, len(members.seeds)), jnp.float32)
            # The number of steps is an argument: any stretch of a run, and so any way of cutting it in two, executes
            # the very same program, which is what makes a resumed run equal to the last bit.
            return jax.lax.fori_loop(0, count, body, (state, StepMetrics(empty, empty)))

        self._start = jax.jit(start)
        self._advance = jax.jit(advance, donate_argnums=0)

    @property
    def compile_seconds(self) -> float:
        """Time spent compiling so far, here and for the shared part."""
        return self._compiled.compile_seconds + self._model.compiled.compile_seconds

    def start(self, members: Members) -> TrainState:
        """Returns the initial state of all members, leaves [M, ...]."""
        params = self._model.start(members.seeds)
        return TrainState(params, self._compiled.call("start", self._start, params, members.hyper))

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
        return self._compiled.call("advance", self._advance, state, members, batches, images, *numbers)

    def prepare_advance(self, state: TrainState, members: Members, batches: StepBatch, images: jax.Array) -> Any:
        """Compiles :meth:`advance` for these shapes, so that the first call is as quick as the others; returns it."""
        return self._compiled.prepare(
            "advance", self._advance, state, members, batches, images, np.int32(0), np.int32(0)
        )

    def evaluate(self, state: TrainState, images: jax.Array, labels: jax.Array) -> StepMetrics:
        """Returns loss and accuracy [M] on a split, at IGT's true parameters or everyone else's own."""
        return self._model.evaluate(self.eval_params(state), images, labels)

    def eval_params(self, state: TrainState) -> Any:
        """Returns the parameters that the state means to be judged by, leaves [M, ...]."""
        return igt_eval_params(state.opt_state, state.params)

    def abstract_state(self, members: Members) -> TrainState:
        """Returns the shapes and types of the state, without computing it."""
        params = jax.eval_shape(self._model.jitted_start, members.seeds)
        return TrainState(params, jax.eval_shape(self._start, params, members.hyper))


def init_key(seed: Any) -> jax.Array:
    """The key of a seed's initial parameters."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def step_key(seed: Any) -> jax.Array:
    """The key from which a seed's steps draw augmentation and dropout."""
    return jax.random.fold_in(jax.random.key(seed), 1)
