"""jax: one compiled round, devices by `vmap` or one after the other by `lax.map`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np

from benchmarks.rivals import crew
from benchmarks.rivals.spec import Array, Spec, told


class Jaxed:
    """One round as one compiled function; weights lie as [in, out]."""

    def __init__(self, spec: Spec, threads: int, *, how: str) -> None:
        import jax  # in the process that uses it, once its core is its own

        self.spec = spec
        x, y = spec.data()
        self.x = jax.device_put(np.ascontiguousarray(x))
        self.y = jax.device_put(np.ascontiguousarray(y, dtype=np.int32))
        self.compiled = jax.jit(partial(_total, spec, how))

    def pack(self, weights: list[Array]) -> Array:
        """One vector, every weight transposed."""
        return np.concatenate([w.T.reshape(-1) for w in weights]).astype(np.float32)

    def unpack(self, w: Array) -> list[Array]:
        """The parameters inside it."""
        return [np.asarray(value).T for value in _views(w, self.spec)]

    def total(self, w: Array, ids: Array, picks: Array) -> Array:
        """The sum over the devices."""
        small = ids.astype(np.int32), picks.astype(np.int32)
        return np.asarray(self.compiled(w, self.x, self.y, *small))


def _views(w: Any, spec: Spec) -> list[Any]:
    out = []
    start = 0
    for shape in spec.shapes:
        stop = start + int(np.prod(shape))
        out.append(w[start:stop].reshape(shape[::-1]))
        start = stop
    return out


def _total(spec: Spec, how: str, w: Any, x: Any, y: Any, ids: Any, picks: Any) -> Any:
    """The sum of all devices' models, as one vector."""
    import jax

    device = partial(_fedavg, spec)
    if spec.lam is not None:
        device = partial(_pfedme, spec)

    def answer(number: Any, pick: Any) -> Any:
        return device(_views(w, spec), x[number], y[number], pick)

    if how == "vmap":
        answers = jax.vmap(answer)(ids, picks)
    else:
        answers = jax.lax.map(lambda pair: answer(*pair), (ids, picks))
    return jax.numpy.concatenate([value.sum(0).reshape(-1) for value in answers])


def _loss(weights: Any, x: Any, y: Any) -> Any:
    import jax

    *hidden, w, b = weights
    if hidden:
        x = jax.nn.relu(x @ hidden[0] + hidden[1])
    chosen = jax.numpy.take_along_axis(jax.nn.log_softmax(x @ w + b), y[:, None], 1)
    return -chosen.mean()


def _fedavg(spec: Spec, w: Any, x: Any, y: Any, picks: Any) -> Any:
    import jax

    def step(weights: Any, pick: Any) -> tuple[Any, None]:
        gradients = jax.grad(_loss)(weights, x[pick], y[pick])
        return jax.tree.map(lambda p, g: p - spec.lr * g, weights, gradients), None

    return jax.lax.scan(step, w, picks)[0]


def _pfedme(spec: Spec, w: Any, x: Any, y: Any, picks: Any) -> Any:
    import jax

    assert spec.lam is not None
    lam = spec.lam

    def local_round(state: Any, pick: Any) -> tuple[Any, None]:
        theta, local = state
        batch = x[pick], y[pick]

        def step(theta: Any, _: None) -> tuple[Any, None]:
            gradients = jax.grad(_loss)(theta, *batch)

            def moved(t: Any, g: Any, anchor: Any) -> Any:
                return t - spec.personal_lr * (g + lam * (t - anchor))

            return jax.tree.map(moved, theta, gradients, local), None

        theta, _ = jax.lax.scan(step, theta, None, length=spec.inner)
        local = jax.tree.map(lambda v, t: v - spec.lr * lam * (v - t), local, theta)
        return (theta, local), None

    (_, local), _ = jax.lax.scan(local_round, (w, w), picks)
    return local


if __name__ == "__main__":
    from benchmarks.rivals.jaxed import Jaxed as Engine  # so that processes can import it by name

    make = partial(Engine, how=sys.argv[4])
    crew.run(make, told(), threads=int(sys.argv[2]), processes=int(sys.argv[3]))
