"""Members of one run: hyperparameters are arguments of one program, and training together changes nothing."""

from discover.experiments.build import build_data, program_key, traced_names
from discover.experiments.config import Config
from discover.experiments.run import Member, run

CONFIG = Config().override(
    ["model.name=logistic", "batches.groups=2", "batches.group_size=8", "training.steps=6", "training.seeds=0",
     "training.steps_per_dispatch=3", "training.log_every=1"]
)  # fmt: skip
DATA = build_data(CONFIG)


def test_every_hyperparameter_of_discover_before_adam_is_an_argument_of_one_program():
    config = CONFIG.override(["optimizer.name=discover_adam", "optimizer.learning_rate=0.01"])
    own = {"beta": 0.8, "nu": 0.7, "beta1": 0.5, "beta2": 0.9, "eps": 1e-4}
    other = {"beta": 0.95, "nu": 0.95, "beta1": 0.0, "beta2": 0.999, "eps": 1e-8}
    changed = [{**own, name: value} for name, value in other.items()]
    together = run(config, None, dataset=DATA, members=[Member(0, values) for values in [own, *changed]])
    losses = [[line["loss"] for line in m.metrics if line["kind"] == "train"] for m in together.members]
    assert all(losses[0] != loss for loss in losses[1:])  # each of the five has an effect

    def key(values):
        set_to = config.override([f"optimizer.{name}={value}" for name, value in values.items()])
        return program_key(set_to, traced_names(set_to, [Member(0)]), (0.5, 0.5))

    assert len({key(values) for values in [own, other, *changed]}) == 1
