"""An optax loop for a flax nnx model on class-pure batches. Three lines make it Discover: below each `# was:`."""

import jax
import optax
from flax import nnx

import discover
from discover.lab.data import BatchPlan, cluster, load

digits = load("digits")
images = digits.train.images.reshape(len(digits.train), -1) / 255.0
plan = BatchPlan(digits.train.labels, cluster(digits, "classes"), groups=2, group_size=16)  # batches [G, b, ...]

rngs = nnx.Rngs(0)
model = nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.relu, nnx.Linear(64, 10, rngs=rngs))
graphdef, params = nnx.split(model, nnx.Param)


def loss_fn(params, batch):
    logits = nnx.merge(graphdef, params)(batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean()


# was: tx = optax.sgd(0.03, momentum=0.9)
tx = discover.discover(0.3, discover.Clusters(plan.probs))
opt_state = tx.init(params)


@jax.jit
def step(params, opt_state, batch, ids):
    # was: loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    loss, grads = discover.group_value_and_grad(loss_fn)(params, batch)
    # was: updates, opt_state = tx.update(grads, opt_state, params)
    updates, opt_state = tx.update(grads, opt_state, params, cluster_ids=ids)
    return optax.apply_updates(params, updates), opt_state, loss.mean()


for number in range(300):
    drawn = plan.batch(number)
    batch = {"image": images[drawn.indices], "label": drawn.labels}
    params, opt_state, loss = step(params, opt_state, batch, drawn.cluster_ids)

logits = nnx.merge(graphdef, params)(digits.test.images.reshape(len(digits.test), -1) / 255.0)
accuracy = float((logits.argmax(axis=-1) == digits.test.labels).mean())
print(f"test accuracy {accuracy:.1%}")
