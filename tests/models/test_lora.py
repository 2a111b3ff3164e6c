"""Low-rank adapters: the same outputs at first, W + s B A in the end, a plain module after `merge`."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.engine.modules.layout import ParameterLayout
from covey.errors import ModelError
from covey.models import lora, merge, mlp


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean(1))
        return out


def trainable(module: nn.Module) -> list[str]:
    return [name for name, value in module.named_parameters() if value.requires_grad]


def changed(module: nn.Module) -> Any:
    """The module after some training of what trains."""
    with torch.no_grad():
        for value in module.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn(value.shape))
    return module


def test_an_adapter_adds_s_b_a_x() -> None:
    plain = nn.Linear(5, 4).double()
    adapted = changed(lora(plain, rank=2, alpha=3.0))
    x = torch.randn(7, 5, dtype=torch.float64)
    a = adapted.lora_a.weight
    b = adapted.lora_b.weight
    expected = x @ plain.weight.T + plain.bias + 3.0 / 2 * (x @ a.T) @ b.T
    torch.testing.assert_close(adapted(x), expected)
    assert not torch.allclose(adapted(x), plain(x))


def test_the_first_outputs_are_the_modules_own_bits() -> None:
    module = Net()
    x = torch.randn(6, 4, 8)
    adapted = lora(module, rank=2, layers=["body.linear*", "head"])
    assert torch.equal(adapted(x), module(x))
    assert trainable(module) == [name for name, _ in module.named_parameters()]  # a copy


def test_adapters_and_chosen_layers_train_and_nothing_else() -> None:
    adapted = lora(Net(), rank=1, layers="body.linear1", train="head")
    names = ["body.linear1.lora_a.weight", "body.linear1.lora_b.weight"]
    assert trainable(adapted) == [*names, "head.weight", "head.bias"]
    space = ParameterLayout(adapted, private=["*lora*"])
    assert space.width == 8 + 16 + 8 * 3 + 3
    assert space.shared == 8 * 3 + 3


@pytest.mark.parametrize("training", [True, False])
def test_merged_modules_are_plain_and_compute_the_same(training: bool) -> None:
    module = Net()
    adapted = changed(lora(module, rank=2, layers=["body.linear*", "head"])).train(training)
    plain: Any = merge(adapted).train(training)
    x = torch.randn(6, 4, 8)
    with torch.no_grad():  # torch's own encoder reads the weights of its layers in this mode
        torch.testing.assert_close(plain(x), adapted(x), rtol=1e-5, atol=1e-5)
    assert plain.state_dict().keys() == module.state_dict().keys()
    assert type(plain.body.linear1) is nn.Linear
    assert len(trainable(plain)) == len(trainable(module))


def test_a_seed_draws_a_and_leaves_b_zero() -> None:
    adapted = changed(lora(mlp(6, 5, 4), rank=2, train="3"))
    space = ParameterLayout(adapted)
    first: Any = space.fill(space.initial(0))
    other: Any = space.fill(space.initial(1))
    assert not torch.equal(first[1].lora_a.weight, other[1].lora_a.weight)
    assert not first[1].lora_b.weight.any()
    assert torch.equal(first[1].base.weight, adapted[1].base.weight)


class Conv1D(nn.Module):
    """As in `transformers`: a linear layer with its weight [in, out]."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


def test_a_transposed_layer_is_adapted_and_merged_too() -> None:
    module = nn.Sequential(Conv1D(4, 6), nn.Tanh())
    x = torch.randn(5, 6)
    adapted = lora(module, rank=2)
    assert torch.equal(adapted(x), module(x))
    changed(adapted)
    torch.testing.assert_close(merge(adapted)(x), adapted(x))


def test_a_gpt2_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=1, n_head=2)
    module = transformers.GPT2LMHeadModel(config).eval()
    x = torch.randint(11, (3, 8))
    adapted = lora(module, rank=2, layers=["*attn*", "*mlp*"])
    assert torch.equal(adapted(x).logits, module(x).logits)
    changed(adapted)
    plain = merge(adapted)
    torch.testing.assert_close(plain(x).logits, adapted(x).logits, rtol=1e-4, atol=1e-5)
    assert plain.state_dict().keys() == module.state_dict().keys()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rank": 0}, ["rank=0", "1 or more"]),
        ({"rank": 9}, ["rank=9", "layer '1' has rank 5 at most", "smaller rank"]),
        ({"alpha": 0.0}, ["alpha=0.0", "above 0"]),
        ({"rank": 1, "layers": "conv*"}, ["layers='conv*'", "no linear layer", "'1', '3'"]),
        ({"rank": 1, "train": "hed"}, ["train='hed'", "matches no layer", "'1', '3'"]),
        ({"rank": 1, "train": ["1", "3"]}, ["no nn.Linear layer to adapt", "requires_grad_"]),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        lora(mlp(6, 5, 4), **settings)
    for word in words:
        assert word in str(caught.value)
