"""An optax loop for an equinox model on class-pure batches. Three lines make it Discover: below each `# was:`."""

import equinox as eqx
import jax
import optax

import discover
from discover.lab.data import BatchPlan, cluster, load

digits = load("digits")
images = digits.train.images.reshape(len(digits.train), -1) / 255.0
plan = BatchPlan(digits.train.labels, cluster(digits, "classes"), groups=2, group_size=16)  # batches [G, b, ...]

model = eqx.nn.MLP(64, 10, width_size=64, depth=1, key=jax.random.key(0))
params, static = eqx.partition(model, eqx.is_inexact_array)


def predict(params, images):
    return jax.vmap(eqx.combine(params, static))(images.reshape(-1, 64))


def loss_fn(params, batch):
    logits = predict(params, batch["image"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"].reshape(-1)).mean()


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

logits = predict(params, digits.test.images / 255.0)
accuracy = float((logits.argmax(axis=-1) == digits.test.labels).mean())
print(f"test accuracy {accuracy:.1%}")
