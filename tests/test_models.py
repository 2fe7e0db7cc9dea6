import pytest
import torch

from mptutor import models


def parameter_count(model):
    return sum(p.numel() for p in model.parameters())


def shapes(model, x):
    """Run the model and note the output shape of each of its children."""
    seen = {}
    for name, child in model.named_children():
        child.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out.shape}))
    model(x)
    return {name: tuple(shape) for name, shape in seen.items()}


def test_small_cnn_has_the_documented_shapes():
    model = models.small_cnn()
    seen = shapes(model, torch.randn(2, 3, 32, 32))
    assert seen["conv1"] == seen["norm1"] == (2, 16, 32, 32)
    assert seen["pool1"] == (2, 16, 16, 16)
    assert seen["conv2"] == (2, 32, 16, 16)
    assert seen["pool2"] == (2, 32, 8, 8)
    assert seen["flatten"] == (2, 2048)
    assert seen["head"] == (2, 10)
    assert parameter_count(model) == 25_674


def test_small_cnn_takes_other_images():
    assert models.small_cnn((1, 28, 28), classes=7)(torch.randn(3, 1, 28, 28)).shape == (3, 7)
    with pytest.raises(ValueError, match="multiples of 4, got 30 x 32"):
        models.small_cnn((3, 30, 32))


def test_mlp_takes_images_and_vectors():
    model = models.mlp()
    assert parameter_count(model) == 669_706
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(model(x), model(x.flatten(1)))
    assert isinstance(model[-1], torch.nn.Linear), "logits must not pass through ReLU"
    with pytest.raises(ValueError, match="widths"):
        models.mlp([784])


def test_transformer_has_the_documented_shapes_and_sees_no_future():
    model = models.char_transformer()
    assert parameter_count(model) == 429_664
    codes = torch.randint(0, 96, (2, 64))
    seen = shapes(model, codes)
    assert seen["embed"] == seen["block1"] == seen["block2"] == seen["norm"] == (2, 64, 128)
    assert seen["head"] == (2, 64, 96)

    changed = codes.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 96
    before, after = model(codes), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])
    assert model(codes[:, :10]).shape == (2, 10, 96)
    with pytest.raises(ValueError, match="multiple of heads"):
        models.char_transformer(width=130)


def test_every_parameter_is_fp32_and_gets_a_gradient():
    torch.manual_seed(0)
    cases = [
        (models.small_cnn(), torch.randn(4, 3, 32, 32)),
        (models.mlp(), torch.randn(4, 784)),
        (models.char_transformer(), torch.randint(0, 96, (4, 64))),
    ]
    for model, x in cases:
        model(x).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.dtype is torch.float32, name
            assert parameter.grad is not None and parameter.grad.any(), name


def test_resnet_is_torchvisions():
    pytest.importorskip("torchvision")
    with torch.device("meta"):
        model = models.resnet(50)
        assert model(torch.empty(2, 3, 224, 224)).shape == (2, 1000)
    assert parameter_count(model) == 25_557_032
    with pytest.raises(ValueError, match="depth"):
        models.resnet(20)
