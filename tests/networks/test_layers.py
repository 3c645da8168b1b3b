"""Comparison of layers with references, and of half precision with single precision.

The references are the cells of Equinox, a convolution, array indexing, and formulas in NumPy.
"""

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from carries import batch_carry
from rollax.environments import Transition
from rollax.networks import NetworkConfig, actor_critic, layers, recurrent
from rollax.spaces import Box, Dict, Discrete, Grid, MultiDiscrete, Space

LENGTH, BATCH, INPUTS, SIZE = 7, 3, 4, 5


def inputs() -> np.ndarray:
    return normal((LENGTH, BATCH, INPUTS))


def close(left: Any, right: Any, tolerance: float = 1e-5) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), left, right
    )


def made(make: Callable[[jax.Array], Any]) -> Any:
    """Return the result of `make(key)` with random numbers in every leaf.

    No bias is zero, so a missing bias changes the outputs.
    """
    leaves, structure = jax.tree.flatten(jax.eval_shape(make, jax.random.key(0)))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    scales = [max(leaf.shape[-1:], default=1) ** -0.5 for leaf in leaves]
    return structure.unflatten(
        [
            scale * normal(leaf.shape, i)
            for i, (leaf, scale) in enumerate(zip(leaves, scales, strict=True))
        ]
    )


def normal(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def sample(space: Space, leading: tuple[int, ...] = ()) -> Any:
    """Return a random value of a space for each index of the leading axes."""
    if isinstance(space, Dict):
        return {name: sample(part, leading) for name, part in space.items}
    if isinstance(space, Box) and space.dtype == "float32":
        return normal((*leading, *space.shape))
    sizes = {
        Grid: lambda: space.sizes,
        Discrete: lambda: space.n,
        Box: lambda: int(np.max(space.high)) + 1,
    }[type(space)]()
    shape = (*leading, *space.shape)
    return (
        np.random.default_rng(len(shape))
        .integers(0, np.broadcast_to(sizes, shape))
        .astype(space.dtype)
    )


@pytest.mark.quick
@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_core_equals_the_cell_of_equinox(name: str) -> None:
    """Compare steps and sequences, from a memory that differs from the initial one."""
    core = made(lambda key: recurrent.CORE_CLASSES[name](INPUTS, SIZE, key=key))

    @jax.jit
    def run(core: Any, x: jax.Array) -> Any:
        first = jax.tree.map(lambda c: c + 0.3, batch_carry(core, BATCH))
        step, cell = jax.vmap(core), jax.vmap(lambda c, x: (core.cell(x, c),) * 2)
        sequence = core.unroll(first, x, jnp.zeros((LENGTH, BATCH), bool))
        return sequence, jax.lax.scan(step, first, x), jax.lax.scan(cell, first, x)

    (last, outputs), (own_last, own_outputs), (carry, carries) = run(core, inputs())
    close([last, own_last], [carry, carry])
    hidden = carries if name == "gru" else carries[0]
    close([outputs, own_outputs], [hidden, hidden])


def test_mingru_equals_its_recurrence() -> None:
    """h' = (1 - z) h + z n, in NumPy, where z and n depend on the input. A reset sets h to zero."""
    core = made(lambda key: recurrent.MinGRU(INPUTS, SIZE, key=key))
    reset = np.zeros((LENGTH, BATCH), bool)
    reset[0, 1] = reset[3, 0] = reset[6, 2] = True
    hidden = np.full((BATCH, SIZE), 0.7)
    last, outputs = jax.jit(lambda core, *a: core.unroll(*a))(
        core, jnp.asarray(hidden, jnp.float32), inputs(), reset
    )
    gate, new = (
        jax.tree.map(np.asarray, (layer.weight, layer.bias)) for layer in (core.gate, core.new)
    )
    for t, x in enumerate(np.asarray(inputs(), float)):
        hidden = np.where(reset[t][:, None], 0.0, hidden)
        z = 1 / (1 + np.exp(-(x @ gate[0].T + gate[1])))
        hidden = (1 - z) * hidden + z * (x @ new[0].T + new[1])
        close(outputs[t], hidden)
    close(last, hidden)


def equations(jaxpr: Any, inside: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every equation of a program, with the names of the equations that contain it."""
    for equation in jaxpr.eqns:
        yield inside, equation
        for part in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")
        ):
            if hasattr(part, "jaxpr"):
                yield from equations(part.jaxpr, (*inside, equation.primitive.name))


def unrolled(name: str, length: int = LENGTH) -> list[tuple[tuple[str, ...], Any]]:
    """Return the equations of a core's `unroll`, without compiling it."""
    core = jax.eval_shape(
        lambda key: recurrent.CORE_CLASSES[name](INPUTS, SIZE, key=key), jax.random.key(0)
    )
    x, reset = (
        jax.ShapeDtypeStruct((length, BATCH, *more), kind)
        for more, kind in (((INPUTS,), jnp.float32), ((), bool))
    )
    return list(
        equations(
            jax.make_jaxpr(lambda core, *a: core.unroll(batch_carry(core, BATCH), *a))(
                core, x, reset
            ).jaxpr
        )
    )


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_inputs_are_projected_before_the_loop(name: str) -> None:
    """One product has the inputs of all steps, and one in the loop has the recurrent weights."""
    products = [
        (inside, eqn) for inside, eqn in unrolled(name) if eqn.primitive.name == "dot_general"
    ]
    assert sum(eqn.primitive.name == "scan" for _, eqn in unrolled(name)) == 1
    (projection,) = [eqn for inside, eqn in products if "scan" not in inside]
    (recurrence,) = [eqn for inside, eqn in products if "scan" in inside]
    gates = {"gru": 3, "lstm": 4}[name]

    def shapes(eqn):
        return sorted(tuple(var.aval.shape) for var in eqn.invars)

    assert shapes(projection) == sorted([(LENGTH * BATCH, INPUTS), (gates * SIZE, INPUTS)])
    assert shapes(recurrence) == sorted([(BATCH, SIZE), (gates * SIZE, SIZE)])


def test_mingru_has_no_loop() -> None:
    """Each doubling of the length adds equally many operations, so the depth is logarithmic."""
    counts = []
    for length in (16, 32, 64, 128):
        found = unrolled("mingru", length)
        assert not {eqn.primitive.name for _, eqn in found} & {"scan", "while"}
        counts.append(sum(eqn.primitive.name == "mul" for _, eqn in found))
    assert len(set(np.diff(counts))) == 1


@pytest.mark.parametrize("kind", recurrent.CORE_CLASSES)
@pytest.mark.parametrize("output", ["last", "sum"])
def test_a_stack_equals_its_layers_in_turn(kind: str, output: recurrent.CoreOutput) -> None:
    """Each layer receives the output of the layer below. The output is the last one or the sum."""
    stack = made(lambda key: recurrent.make_recurrent_core(kind, INPUTS, SIZE, 3, output, key))
    reset = jnp.zeros((LENGTH, BATCH), bool).at[2, 1].set(True)

    @jax.jit
    def by_hand(stack: Any, x: jax.Array) -> Any:
        last, outputs = [], []
        for core, carry in zip(stack.cores, batch_carry(stack, BATCH), strict=True):
            after, x = core.unroll(carry, x, reset)
            last.append(after)
            outputs.append(x)
        return tuple(last), outputs[0] + outputs[1] + outputs[2] if output == "sum" else outputs[-1]

    close(
        jax.jit(lambda stack, x: stack.unroll(batch_carry(stack, BATCH), x, reset))(
            stack, inputs()
        ),
        by_hand(stack, inputs()),
    )


def test_layers_start_with_different_weights() -> None:
    stack = recurrent.make_recurrent_core("mingru", SIZE, SIZE, 2, "last", jax.random.key(0))
    first, second = (core.gate.weight for core in stack.cores)
    assert not np.allclose(first, second)


@pytest.mark.parametrize("output", ["last", "sum"])
def test_one_layer_is_not_stacked(output: recurrent.CoreOutput) -> None:
    assert isinstance(
        made(lambda key: recurrent.make_recurrent_core("gru", INPUTS, SIZE, 1, output, key)),
        recurrent.GRU,
    )


@pytest.mark.quick
def test_residual_blocks_by_hand() -> None:
    """Each block is x + memory(norm(x)), then x + dense(norm(x)), after a projection."""
    memory = made(
        lambda key: recurrent.make_recurrent_core("mingru", INPUTS, SIZE, 2, "residual", key)
    )
    reset = jnp.zeros((LENGTH, BATCH), bool).at[2, 1].set(True)
    _, found = memory.unroll(batch_carry(memory, BATCH), inputs(), reset)

    def dense(layer: Any, x: np.ndarray) -> np.ndarray:
        return x @ np.asarray(layer.weight).T + np.asarray(layer.bias)

    def norm(layer: Any, x: np.ndarray) -> np.ndarray:
        centerd = x - x.mean(-1, keepdims=True)
        centerd /= np.sqrt((centerd**2).mean(-1, keepdims=True) + 1e-5)
        return centerd * np.asarray(layer.weight) + np.asarray(layer.bias)

    x = dense(memory.layer, inputs())
    for block in memory.core.cores:
        _, remembered = block.core.unroll(
            batch_carry(block.core, BATCH), jnp.asarray(norm(block.norms[0], x)), reset
        )
        x = x + np.asarray(remembered)
        x = x + dense(block.down, np.asarray(jax.nn.gelu(dense(block.up, norm(block.norms[1], x)))))
    close(found, x)


@pytest.mark.parametrize(
    ("height", "width", "channels", "kernel", "stride"),
    [
        (5, 5, 2, 2, 1),
        (7, 4, 3, 3, 1),
        (9, 8, 1, 3, 2),
        (11, 10, 4, 4, 3),
        (3, 3, 2, 3, 1),
        (6, 5, 2, 1, 2),
    ],
)
def test_convolution_equals_that_of_jax(
    height: int, width: int, channels: int, kernel: int, stride: int
) -> None:
    """Compare outputs and gradients with `jax.lax.conv_general_dilated` without padding."""
    layer = made(lambda key: layers.Convolution(channels, 6, kernel, stride, key=key))
    image = normal((height, width, channels))

    def reference(layer: Any, image: jax.Array) -> jax.Array:
        weight = layer.weight.reshape(6, kernel, kernel, channels)
        found = jax.lax.conv_general_dilated(
            image[None],
            weight,
            (stride, stride),
            "VALID",
            dimension_numbers=("NHWC", "OHWI", "NHWC"),
        )[0]
        return found + jnp.broadcast_to(layer.bias, found.shape)

    def with_gradient(function: Any) -> Any:
        def loss(layer, image):
            return (jnp.sum(function(layer, image) ** 2), function(layer, image))

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(layer, image)

    gradient, output = with_gradient(lambda layer, image: layer(image))
    expected_gradient, expected = with_gradient(reference)
    assert expected.shape == ((height - kernel) // stride + 1, (width - kernel) // stride + 1, 6)
    close(output, expected)
    close(gradient, expected_gradient, 1e-4)


def test_images_are_scaled() -> None:
    """Bytes are divided by 255. Floats are not changed."""
    network = made(lambda key: layers.CNN(3, ((4, 2, 1), (5, 2, 2)), "relu", key=key))
    picture = sample(Box(0, 255, (7, 6, 3), "uint8"))
    see = jax.jit(lambda network, picture: network(picture))
    close(see(network, picture), see(network, picture.astype(np.float32) / 255))
    assert see(network, picture).shape == (3 * 2 * 5,)


GRID = Grid((4, 5), (6, 5, 2))


def test_an_embedding_equals_an_index() -> None:
    """Each number selects a row of the table of its channel. Rows are concatenated, bit for bit."""
    embedding = made(lambda key: layers.Embedding(GRID, 7, key=key))
    cells = sample(GRID)
    expected = np.concatenate(
        [np.asarray(table)[cells[..., i]] for i, table in enumerate(embedding.tables)], axis=-1
    )
    np.testing.assert_array_equal(embedding(cells), expected)
    assert [table.shape for table in embedding.tables] == [(6, 7), (5, 7), (2, 7)]


@pytest.mark.parametrize(("filters", "is_convolved"), [(None, True), ((), False), ([], False)])
def test_symbols_have_no_magnitude(filters: Any, is_convolved: bool) -> None:
    """A permutation of symbols and of the rows of the tables changes nothing.

    A permutation of symbols alone does.
    """
    encoder = made(lambda key: layers.Encoder(GRID, (8,), "tanh", filters, 3, key=key))
    assert bool(encoder.convolutions) == is_convolved
    orders = [np.random.default_rng(n).permutation(size) for n, size in enumerate(GRID.sizes)]
    cells = sample(GRID)
    renamed = np.stack(
        [np.argsort(order)[cells[..., i]] for i, order in enumerate(orders)], -1
    ).astype(np.uint8)
    tables = tuple(
        table[order] for table, order in zip(encoder.embeddings[""].tables, orders, strict=True)
    )
    moved = eqx.tree_at(lambda m: m.embeddings[""].tables, encoder, tables)
    see = jax.jit(lambda encoder, cells: encoder(cells))
    np.testing.assert_array_equal(see(moved, renamed), see(encoder, cells))
    assert not np.allclose(see(encoder, renamed), see(encoder, cells))


@pytest.mark.parametrize("cells", [(1, 1), (2, 5), (3, 3), (4, 4), (3, 7), (7, 7)])
@pytest.mark.parametrize("filters", [None, ()])
def test_every_cell_affects_the_features(cells: tuple[int, int], filters: tuple[()] | None) -> None:
    """A different symbol in any cell of a grid of any size gives other features."""
    grid = Grid(cells, (5,))
    encoder = made(lambda key: layers.Encoder(grid, (8,), "tanh", filters, 3, key=key))
    changed = [np.zeros(grid.shape, np.uint8)]
    for place in np.ndindex(cells):
        changed.append(changed[0].copy())
        changed[-1][place] = 3
    features = np.asarray(
        jax.jit(lambda encoder, x: jax.vmap(encoder)(x))(encoder, np.stack(changed))
    )
    assert (np.abs(features[1:] - features[:1]).max(axis=1) > 1e-6).all()


def test_which_parts_are_embedded_and_convolved() -> None:
    """Grids are embedded.

    Large grids, boards and images are convolved. The action mask is ignored.

    Without filters only images of pixels are convolved, and images that no filter fits are
    flattened.
    """
    grids: dict[str, Space] = {"view": Grid((5, 5), (13, 12)), "goal": Grid((1, 1), (4, 4))}
    images = {
        "image": Box(0, 255, (9, 9, 3), "uint8"),
        "small": Box(0, 255, (2, 2, 3), "uint8"),
        "board": Box(0, 1, (6, 6, 4)),
    }
    space = Dict({**grids, **images, "action_mask": Box(0, 1, (3,), "bool")})
    encoder, flat = (
        made(lambda key, f=f: layers.Encoder(space, (8,), "tanh", f, 3, key=key))
        for f in (None, ())
    )
    assert (set(encoder.embeddings), set(encoder.convolutions)) == (
        {"view", "goal"},
        {"view", "image", "board"},
    )
    assert (set(flat.embeddings), set(flat.convolutions)) == ({"view", "goal"}, {"image"})
    assert (
        flat.dense.layers[0].weight.shape[0]
        == 5 * 5 * 2 * 3 + 2 * 3 + 7 * 7 * 16 + 2 * 2 * 3 + 6 * 6 * 4
    )
    seen = sample(space)
    see = jax.jit(lambda encoder, mask: encoder({**seen, "action_mask": mask}))
    np.testing.assert_array_equal(see(encoder, jnp.zeros(3, bool)), see(encoder, jnp.ones(3, bool)))


def attentive(heads: int, space: Space = GRID) -> Any:
    """Return attention before a head that returns its inputs."""

    def shown(size, key):
        return lambda features, obs: features

    return layers.AttentionHead(space, INPUTS, heads, 3, shown, key=jax.random.key(0))


def test_attention_selects_the_cell_of_the_query() -> None:
    """With a sharp query, the output has the features, and the embedding and place of one cell."""
    attention, cells, features, asked = (
        attentive(1),
        sample(GRID),
        normal((INPUTS,)),
        1e3 * normal((9,)),
    )
    embedded = np.asarray(attention.embeddings[""](cells)).reshape(4 * 5, -1)
    sharp = eqx.tree_at(
        lambda m: (m.queries[""].weight, m.queries[""].bias),
        attention,
        (np.zeros((9, INPUTS)), asked),
    )
    chosen = np.argmax(embedded @ asked)
    expected = np.concatenate([features, embedded[chosen], attention.places[""][chosen]])
    np.testing.assert_allclose(sharp(features, cells), expected, rtol=1e-5)


def test_attention_heads_by_hand() -> None:
    """Each head computes a softmax of scaled products, for every grid."""
    space = Dict({"board": Grid((2, 3), (4,)), "speed": Box(-1.0, 1.0, (2,)), "view": GRID})
    attention, obs, features = attentive(2, space), sample(space), normal((INPUTS,))
    expected = [features]
    for name in ("board", "view"):
        cells = np.asarray(attention.embeddings[name](obs[name]))
        cells = cells.reshape(-1, cells.shape[-1])
        query = np.asarray(attention.queries[name](features)).reshape(2, -1)
        for head in query:
            score = np.exp(cells @ head / np.sqrt(cells.shape[-1]))
            expected.append(
                score / score.sum() @ np.concatenate([cells, attention.places[name]], axis=1)
            )
    np.testing.assert_allclose(
        attention(features, obs), np.concatenate(expected), rtol=1e-4, atol=1e-5
    )


def test_without_cells_attention_changes_nothing() -> None:
    np.testing.assert_array_equal(
        attentive(2, Box(-1.0, 1.0, (2,)))(inputs(), normal((2,))), inputs()
    )


class Nowhere:
    """Environment with spaces only, to build networks."""

    name, num_agents, time_limit = "test/nowhere", None, None

    def __init__(self, action_space: Any) -> None:
        self.action_space = action_space
        parts: dict[str, Space] = {
            "view": Grid((4, 4), (6, 5)),
            "place": Box(-9.0, 9.0, (3,)),
            "turn": Discrete(4),
        }
        self.observation_space = Dict(parts)

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        raise NotImplementedError

    def step(self, key: jax.Array, state: Any, action: Any) -> Transition:
        raise NotImplementedError


ACTIONS = {"choices": MultiDiscrete((2, 3)), "box": Box(-1.0, 1.0, (2,))}
# Half precision has eight significant bits. The measured differences are below 0.01.
LOOSE = 0.02
CASES = [
    ("lstm", "choices", {"shared": True, "attention": 2}),
    ("mingru", "box", {"core_output": "sum"}),
]


def half_and_whole(core: str, action: str, changes: dict[str, Any]) -> tuple[Any, Any]:
    """Return networks in single and half precision with the same parameters."""
    shape: Any = {
        "hidden": (16,),
        "core": core,
        "core_size": 8,
        "core_layers": 2,
        "head_hidden": (8,),
        **changes,
    }
    configs = [NetworkConfig(**shape, precision=precision) for precision in ("float32", "bfloat16")]
    whole, half = (
        made(lambda key, c=config: actor_critic(Nowhere(ACTIONS[action]), c, key))
        for config in configs
    )
    return whole, half


def seen() -> tuple[Any, np.ndarray]:
    """Return observations `[L, B]` and resets."""
    reset = np.zeros((LENGTH, BATCH), bool)
    reset[3, 1] = True
    return sample(Nowhere(ACTIONS["box"]).observation_space, (LENGTH, BATCH)), reset


@jax.jit
def shown(net: Any, obs: Any, reset: jax.Array) -> Any:
    """Return the outputs of a sequence and a step, and the gradient of a loss of all outputs."""

    def loss(net: Any) -> Any:
        sequence = net.unroll(batch_carry(net, BATCH), obs, reset)
        output = sequence[1]
        entropy = jax.vmap(jax.vmap(lambda policy: policy.entropy()))(output.policy)
        parameter = jax.tree.leaves(output.policy)[0]
        return jnp.mean(output.value**2) + jnp.mean(jnp.sin(parameter)) - jnp.mean(
            entropy
        ), sequence

    gradient, sequence = jax.grad(loss, has_aux=True)(net)
    step = jax.vmap(net)(batch_carry(net, BATCH), jax.tree.map(lambda x: x[0], obs))
    return (sequence, step), gradient


@pytest.mark.parametrize(("core", "action", "changes"), CASES)
def test_half_precision_is_approximate(core: str, action: str, changes: dict[str, Any]) -> None:
    """Outputs and gradients are float32 and close, but not equal. Parameters are the same."""
    networks = half_and_whole(core, action, changes)
    outputs, gradients = zip(*(shown(net, *seen()) for net in networks), strict=True)
    assert {leaf.dtype for leaf in jax.tree.leaves((networks, outputs, gradients))} == {
        jnp.dtype("float32")
    }
    whole, half = map(jax.tree.leaves, outputs)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=LOOSE, atol=LOOSE), whole, half)
    assert any(np.any(a != b) for a, b in zip(whole, half, strict=True)), "it is the same precision"
    whole, half = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])
        for gradient in gradients
    )
    assert np.isfinite(half).all()
    assert whole @ half > 0.99 * np.linalg.norm(whole) * np.linalg.norm(half), (
        "they point elsewhere"
    )


@pytest.mark.parametrize(
    ("space", "filters"),
    [
        (Grid((3, 3), (2,)), layers.SYMBOL_FILTERS),
        (Box(0, 1, (10, 10, 4)), ((8, 8, 4), (8, 4, 2))),
        (Grid((5, 5), (2,)), ((4, 8, 1),)),
    ],
)
def test_filters_that_do_not_fit_raise_value_error(space: Any, filters: Any) -> None:
    """Otherwise the network would ignore the observation."""
    with pytest.raises(
        ValueError, match="must fit the input, but a kernel .* the size of the observation"
    ):
        layers.Encoder(space, (4,), "relu", filters, key=jax.random.key(0))


def test_default_filters_skip_small_observations() -> None:
    assert layers.Encoder(Box(0, 1, (2, 2, 3)), (), "relu", None, key=jax.random.key(0))(
        jnp.zeros((2, 2, 3))
    ).shape == (12,)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_flattening_keeps_the_order(dtype: str) -> None:
    """Saved weights depend on the order of rows.

    Bytes are divided by 255, and booleans are 0 or 1.
    """
    value = np.asarray([[1, 0, 0], [1, 1, 0]], dtype)
    flat = layers._flatten_value(Box(0.0, 1.0, (2, 3), dtype), jnp.asarray(value))  # pyright: ignore[reportPrivateUsage]
    np.testing.assert_allclose(
        flat, value.reshape(-1).astype(float) / (255 if dtype == "uint8" else 1), rtol=1e-6
    )
