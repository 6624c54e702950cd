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
from jax.typing import ArrayLike

from discover.lab.training.devices import AXIS, Devices
from discover.lab.training.errors import RunError
from discover.lab.training.evaluate import Evaluate, eval_params, judged_elsewhere
from discover.lab.training.step import Hyper, MakeOptimizer, Step, StepBatch, StepMetrics, TrainState
from discover.sharding import sharded_eval_params


class Members(NamedTuple):
    """The members' own arguments of the compiled programs."""

    hyper: Hyper  # name -> float32 [M]
    seeds: jax.Array  # int32 [M]
    drawn: jax.Array  # int32 [M], which of the S drawn batches a member takes


class Compiled:
    """A jitted function, compiled on first use for the shapes at hand, and how long that took.

    ``jax.jit`` keeps what it compiled, but neither compiles without calling nor tells the time, which is no part of
    the steps per second.
    """

    def __init__(self, function: Callable[..., Any], **options: Any):
        self.seconds = 0.0
        self._jitted = jax.jit(function, **options)
        self._ready: dict[Any, Any] = {}

    def __call__(self, *arguments: Any) -> Any:
        return self.prepare(*arguments)(*arguments)

    def prepare(self, *arguments: Any) -> Any:
        """Compiles for these arguments, without calling."""
        leaves, structure = jax.tree.flatten(arguments)
        key = (structure, tuple((np.shape(x), jnp.result_type(x)) for x in leaves))
        if key not in self._ready:
            began = time.perf_counter()
            self._ready[key] = self._jitted.lower(*arguments).compile()
            self.seconds += time.perf_counter() - began
        return self._ready[key]

    def shapes(self, *arguments: Any) -> Any:
        """The shapes and types of what it returns, without computing it."""
        return jax.eval_shape(self._jitted, *arguments)


def over_members(mode: str, function: Callable[..., Any], arguments: Any) -> Any:
    """Calls ``function(*a)`` for every member's arguments ``a``, leaves [M, ...].

    Args:
        mode: `vmap` computes members side by side, `map` one after the other. A member's numbers depend on
            who trains beside it in their rounding at the most.
        function: of one member.
        arguments: a tuple of trees.
    """
    # An axis of one would still turn each convolution into a batched one, and a loop of one bring buffers that start
    # in the host's memory to the device.
    if jax.tree.leaves(arguments)[0].shape[0] == 1:
        return jax.tree.map(lambda x: x[None], function(*jax.tree.map(lambda x: x[0], arguments)))
    if mode == "map":
        return jax.lax.map(lambda a: function(*a), arguments)
    return jax.vmap(function)(*arguments)


class ModelPrograms:
    """What does not depend on the optimizer: initial parameters and evaluation."""

    def __init__(
        self,
        init: Callable[[jax.Array], Any],
        evaluate: Evaluate,
        *,
        member_mode: str = "vmap",
        devices: Devices | None = None,
    ):
        def start(seeds: jax.Array) -> Any:
            return over_members(member_mode, lambda seed: init(init_key(seed)), (seeds,))

        def judge(params: Any, images: jax.Array, labels: jax.Array) -> StepMetrics:
            return over_members(member_mode, lambda own: evaluate(own, images, labels), (params,))

        self.member_mode = member_mode
        self.devices = Devices() if devices is None else devices
        self.start = Compiled(start, out_shardings=self.devices.whole)
        """``start(seeds)``: the initial parameters of all members, leaves [M, ...]."""
        self.evaluate = Compiled(judge, out_shardings=self.devices.whole)
        """``evaluate(params, images, labels)``: loss and accuracy [M] on a split."""


class Programs:
    """Everything a run calls on the device: start, many steps, evaluation. Learning rates and seeds are arguments."""

    def __init__(self, model: ModelPrograms, make_optimizer: MakeOptimizer, step: Step, *, steps_per_dispatch: int):
        self.steps_per_dispatch = steps_per_dispatch
        self._model, self._devices = model, model.devices
        mode, devices = model.member_mode, model.devices

        def start(params: Any, hyper: Hyper) -> Any:
            opt_state = over_members(mode, lambda h, p: make_optimizer(h).init(p), (hyper, params))
            return devices.keep_in_place(TrainState(params, opt_state)).opt_state

        def advance(
            state: TrainState,
            members: Members,
            batches: StepBatch,
            images: jax.Array,
            first: jax.Array,
            count: jax.Array,
        ) -> tuple[TrainState, StepMetrics]:
            keys = jax.vmap(step_key)(members.seeds)

            def body(i: jax.Array, carry: tuple[TrainState, jax.Array]) -> tuple[TrainState, jax.Array]:
                state, log = carry
                own = jax.tree.map(lambda a: a[i][members.drawn], batches)

                def one(state: TrainState, hyper: Hyper, key: jax.Array, batch: StepBatch) -> Any:
                    return step(
                        make_optimizer(hyper), state, key, first + i, batch, images, clip_norm=hyper.get("clip_norm")
                    )

                state, metrics = over_members(mode, one, (state, members.hyper, keys, own))
                return state, log.at[:, i].set(jnp.stack(metrics))

            empty = jnp.zeros((len(StepMetrics._fields), steps_per_dispatch, len(members.seeds)), jnp.float32)
            # The number of steps is an argument: any stretch of a run, and so any way of cutting it in two, executes
            # the very same program, which is what makes a resumed run equal to the last bit.
            state, log = jax.lax.fori_loop(0, count, body, (state, empty))
            return devices.keep_in_place(state), devices.keep_everywhere(StepMetrics(*log))

        def gather(state: TrainState) -> Any:
            def one(opt_state: Any, params: Any) -> Any:
                return sharded_eval_params(opt_state, params, devices.mesh, data_axis=AXIS)

            return over_members(mode, one, (state.opt_state, state.params))

        def judged(state: TrainState) -> Any:
            return over_members(mode, eval_params, (state.opt_state, state.params))

        self._start = Compiled(start)
        self._advance = Compiled(advance, donate_argnums=0)
        self._gather = Compiled(gather, out_shardings=devices.whole)
        self._judged = Compiled(judged)

    @property
    def compile_seconds(self) -> float:
        """Time spent compiling so far, here and for the shared part."""
        own = (self._start, self._advance, self._gather, self._judged)
        programs = (*own, self._model.start, self._model.evaluate)
        return sum(program.seconds for program in programs)

    def start(self, members: Members) -> TrainState:
        """Returns the initial state of all members, leaves [M, ...]."""
        params = self._model.start(members.seeds)
        return TrainState(params, self._start(params, members.hyper))

    def advance(
        self, state: TrainState, members: Members, batches: StepBatch, images: jax.Array, first: int, count: int
    ) -> tuple[TrainState, StepMetrics]:
        """Trains ``count`` steps from number ``first`` on; the old state's memory is used for the new one."""
        return self._advance(state, members, batches, images, np.int32(first), np.int32(count))

    def prepare_advance(self, state: TrainState, members: Members, batches: StepBatch, images: jax.Array) -> Any:
        """Compiles :meth:`advance` for these shapes, so that the first call is as quick as the others; returns it."""
        return self._advance.prepare(state, members, batches, images, np.int32(0), np.int32(0))

    def evaluate(self, state: TrainState, images: jax.Array, labels: jax.Array) -> StepMetrics:
        """Returns loss and accuracy [M] on a split, at the parameters that :meth:`eval_params` says."""
        return self._model.evaluate(self.eval_params(state), images, labels)

    def eval_params(self, state: TrainState) -> Any:
        """Returns the parameters that the state means to be judged by, leaves [M, ...]."""
        if not judged_elsewhere(state.opt_state):
            return self._gather(state) if self._devices.several else eval_params(state.opt_state, state.params)
        if self._devices.several:
            raise RunError("an optimizer that is judged elsewhere than at its parameters trains on one device only")
        return self._judged(state)

    def abstract_state(self, members: Members) -> TrainState:
        """Returns the shapes and types of the state, without computing it."""
        params = self._model.start.shapes(members.seeds)
        return TrainState(params, self._start.shapes(params, members.hyper))


def init_key(seed: ArrayLike) -> jax.Array:
    """The key of a seed's initial parameters."""
    return jax.random.fold_in(jax.random.key(seed), 0)


def step_key(seed: ArrayLike) -> jax.Array:
    """The key from which a seed's steps draw augmentation and dropout."""
    return jax.random.fold_in(jax.random.key(seed), 1)
