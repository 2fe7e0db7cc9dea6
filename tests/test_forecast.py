"""Forecasts against torch's own counting, against real steps, and in what they refuse."""

import json
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.flop_counter import FlopCounterMode

from mptutor.experiments.recipes import AMP_BF16, AMP_FP16, FP32, RECIPES
from mptutor.forecast import (
    GPUS,
    TIME_ERROR,
    Forecast,
    ForecastError,
    Forecasts,
    Gpu,
    LayerCost,
    find_gpu,
    find_recipe,
    forecast,
    forecast_on,
)
from mptutor.forecast.cli import main
from mptutor.forecast.ledger import PARTS, MemoryLedger
from mptutor.forecast.operations import OperationLog
from mptutor.forecast.roofline import FITTED, cost
from mptutor.forecast.step import sgd, take_step
from mptutor.forecast.workloads import find_workload
from mptutor.memory import MemoryMeter
from mptutor.models import mlp, small_cnn

FLOAT = 4  # bytes


def plain_sgd(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9, foreach=False)


def step_of(model, batch, recipe=FP32, **options):
    return take_step(find_workload(model), batch, recipe, **options)


# --- memory


@pytest.mark.parametrize("model", ["small_cnn", "mlp", "char_transformer"])
def test_peak_is_that_of_a_real_step(model):
    """The same step with values, watched by the meter that the lessons use."""
    workload = find_workload(model)
    net, inputs = workload.build(), workload.batch(16)
    optimizer = plain_sgd(net.parameters())

    def step():
        optimizer.zero_grad()
        loss = workload.loss(net(inputs), 16)
        loss.backward()
        del loss
        optimizer.step()

    step()
    optimizer.zero_grad()
    with MemoryMeter(net, optimizer, inputs, device="cpu") as meter:
        step()
    assert sum(step_of(model, 16, optimizer=plain_sgd).memory.values()) == meter.peak_bytes


def test_peak_is_what_torchs_tracker_says():
    with FakeTensorMode():
        net, inputs, targets = small_cnn(), torch.zeros(32, 3, 32, 32), torch.zeros(32).long()
        optimizer = plain_sgd(net.parameters())
        tracker = MemTracker()
        tracker.track_external(net, optimizer, inputs)

        def step():
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()

        step()
        with tracker:
            step()
            tracker.reset_mod_stats()
            step()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    ours = sum(step_of("small_cnn", 32, optimizer=plain_sgd).memory.values())
    # The tracker rounds storages up to 512 bytes, as CUDA's allocator does.
    assert ours == pytest.approx(peak["Total"], rel=0.01)


def test_parts_are_what_they_are_called():
    parameters = sum(p.numel() for p in mlp().parameters())
    fp32, amp = step_of("mlp", 8), step_of("mlp", 8, AMP_FP16)
    assert fp32.memory["parameters"] == amp.memory["parameters"] == parameters * FLOAT
    assert fp32.memory["optimizer"] == parameters * FLOAT  # the momentum
    assert fp32.memory["casts"] == 0
    assert fp32.memory["gradients"] == parameters * FLOAT  # at the peak, with so small a batch
    adam = take_step(find_workload("mlp"), 8, FP32, optimizer=lambda w: torch.optim.Adam(w))
    counters = FLOAT * len(list(mlp().parameters()))
    assert adam.memory["optimizer"] == 2 * parameters * FLOAT + counters


def test_casts_are_the_16_bit_copies_of_the_weights():
    memory = step_of("mlp", 4096, AMP_FP16).memory  # so many that the peak is in the backward pass
    # linear3 has used its copy by then, and linear1 needs none: the images get no gradient
    assert memory["casts"] == 2 * 512 * 512


def test_master_copies_belong_to_the_optimizer():
    parameters = sum(p.numel() for p in mlp().parameters())
    memory = step_of("mlp", 8, RECIPES["FP16 + master + scaler"]).memory
    assert memory["parameters"] == 2 * parameters
    assert memory["optimizer"] == 2 * FLOAT * parameters  # the master copy and its momentum


def test_activations_double_with_the_batch_and_shrink_under_amp():
    one, two = step_of("small_cnn", 64), step_of("small_cnn", 128)
    assert two.memory["activations"] == pytest.approx(2 * one.memory["activations"], rel=0.01)
    amp = step_of("small_cnn", 128, AMP_FP16).memory["activations"]
    assert 0.5 < amp / two.memory["activations"] < 0.7  # pooling's indices stay 64-bit


def test_inference_holds_no_gradients_and_saves_nothing():
    memory = step_of("small_cnn", 32, train=False).memory
    assert memory["gradients"] == memory["optimizer"] == 0
    assert memory["activations"] == 32 * 3 * 32 * 32 * FLOAT  # the input


def test_dropouts_mask_takes_a_byte():
    def build(*dropouts):
        return nn.Sequential(nn.Linear(1000, 1000), *dropouts, nn.Linear(1000, 1))

    def build_with_masks():
        return build(nn.Dropout(0.5), nn.Dropout(0.5))

    options = {"batch": 5000, "recipe": "fp32", "sample_shape": (1000,)}
    with_masks, without = (
        forecast(model, **options).peak_bytes_by_part["activations"]
        for model in (build_with_masks, build)
    )
    assert with_masks - without == 2 * 5000 * 1000


def test_shared_weights_are_counted_once():
    def tied():
        first, second = nn.Linear(50, 50, bias=False), nn.Linear(50, 50, bias=False)
        second.weight = first.weight
        return nn.Sequential(first, second)

    f = forecast(tied, batch=2, recipe="fp32", sample_shape=(50,))
    assert f.parameters == 2500
    assert f.peak_bytes_by_part["parameters"] == 2500 * FLOAT


def test_the_ledger_adds_up_at_the_peak():
    ledger = MemoryLedger()
    kept = torch.zeros(100)
    ledger.label("parameters", [kept])
    with ledger:
        a = kept + 1
        b = a + 1
        del a
        c = torch.zeros(10)
    ledger.label("gradients", [b])
    del c
    ledger.close()
    # kept, a and b
    assert ledger.at_peak() == dict.fromkeys(PARTS, 0) | {
        "parameters": 400,
        "gradients": 400,
        "temporary": 400,
    }


# --- operations


@pytest.mark.parametrize("model", ["small_cnn", "mlp", "resnet18"])
def test_flop_is_what_torch_counts(model):
    workload = find_workload(model)
    with FakeTensorMode():
        net, inputs = workload.build(), workload.batch(4)
        with FlopCounterMode(display=False) as counter:
            workload.loss(net(inputs), 4).backward()
    assert sum(op.flop for op in step_of(model, 4).operations) == counter.get_total_flops()


def test_a_convolution_in_groups_does_the_work_of_its_groups():
    """Torch counts its backward pass as if there were none, so this is by hand."""

    def count(groups):
        net = nn.Conv2d(8, 16, 3, padding=1, groups=groups)
        images = torch.zeros(2, 8, 10, 10, requires_grad=True)
        with OperationLog(net) as log:
            net(images).sum().backward()
        return [op.flop for op in log.operations if op.kind == "convolution"]

    forward = 2 * (2 * 16 * 10 * 10) * (8 * 3 * 3)
    assert count(1) == [forward, 2 * forward]
    assert count(4) == [forward / 4, 2 * forward / 4]


def test_a_transposed_convolution():
    net = nn.ConvTranspose2d(8, 4, 2, stride=2)
    images = torch.zeros(2, 8, 10, 10)
    with FlopCounterMode(display=False) as counter, OperationLog(net) as log:
        net(images)
    assert log.operations[0].flop == counter.get_total_flops() > 0


def test_bytes_are_those_of_operands_and_results():
    x, y = torch.zeros(100), torch.zeros(100)
    with OperationLog(nn.Identity()) as log:
        x + y
        x.add_(y)
        x.view(10, 10).t()
        torch.empty(1000)
        torch.zeros(50)
        x[:1].expand(1000) + 1
    assert [(op.name, op.moved_bytes) for op in log.operations] == [
        ("add", 3 * 400),
        ("add_", 3 * 400),
        ("zeros", 50 * FLOAT),
        ("add", 400 + 1000 * FLOAT),  # an expanded tensor is as large as what it looks into
    ]


def test_every_operation_of_a_layer_is_found_in_both_directions():
    by_layer = {(c.layer, c.phase): c for c in forecast("small_cnn", batch=8).layers}
    for layer in ("conv1", "norm1", "relu1", "pool1", "conv2", "norm2", "relu2", "pool2", "head"):
        assert by_layer[layer, "forward"].operations >= 1
        assert by_layer[layer, "backward"].operations >= 1
    # conv1 needs no gradient for the images
    assert by_layer["conv1", "backward"].flop == by_layer["conv1", "forward"].flop
    assert by_layer["conv2", "backward"].flop == 2 * by_layer["conv2", "forward"].flop
    assert by_layer["", "update"].operations >= 2  # the scaler's and the optimizer's


def test_the_optimizer_is_one_launch_for_all_parameters():
    def updates(optimizer):
        step = step_of("mlp", 8, optimizer=optimizer)
        return sum(op.phase == "update" for op in step.operations)

    assert updates(sgd) < updates(plain_sgd)


# --- time

BIG = Gpu("big", 1e12, None, 1e13, 1e13, 1e12, 2**40, "HBM", ("training",), "made up")


def operation(x, work):
    with OperationLog(nn.Identity()) as log:
        work(x)
    return log.operations[0]


def test_an_operation_takes_the_longest_of_three():
    small = operation(torch.zeros(1), torch.relu)
    assert cost(small, BIG).bound == "launch"
    assert cost(small, BIG).seconds == FITTED.launch_s
    wide = operation(torch.zeros(10_000_000), torch.relu)
    assert cost(wide, BIG).bound == "memory"
    assert cost(wide, BIG).seconds == pytest.approx(8e7 / (1e12 * FITTED.hbm))
    product = operation(torch.zeros(1000, 1000), lambda x: x @ x)
    assert cost(product, BIG).bound == "arithmetic"
    assert cost(product, BIG).seconds == pytest.approx(2e9 / (1e12 * FITTED.cores))


def test_tf32_is_used_where_torch_allows_it(monkeypatch):
    a100, v100 = find_gpu("A100"), find_gpu("V100")
    product = operation(torch.zeros(2000, 2000), lambda x: x @ x)
    weight = torch.zeros(64, 64, 3, 3)
    convolution = operation(torch.zeros(8, 64, 32, 32), lambda x: F.conv2d(x, weight))
    slow, fast = cost(product, a100, tf32_products=False), cost(product, a100, tf32_products=True)
    assert fast.arithmetic_s < slow.arithmetic_s / 5
    assert cost(product, v100, tf32_products=True) == cost(product, v100, tf32_products=False)
    allowed = cost(convolution, a100).arithmetic_s
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert cost(convolution, a100).arithmetic_s > allowed


def test_channels_last_saves_transposes_on_tensor_cores_only():
    nchw, nhwc = (
        forecast_on(["V100", "A100"], "small_cnn", batch=512, recipe="fp32", channels_last=last)
        for last in (False, True)
    )
    assert nchw.on("A100").step_ms > nhwc.on("A100").step_ms  # TF32
    assert nchw.on("V100").step_ms == nhwc.on("V100").step_ms


def test_bound_times_and_layers_add_up():
    f = forecast("char_transformer", batch=32, gpu="T4")
    assert sum(f.bound_ms.values()) == pytest.approx(f.step_ms)
    assert sum(c.ms for c in f.layers) == pytest.approx(f.step_ms)
    assert f.samples_per_s == pytest.approx(32e3 / f.step_ms)
    assert f.roof.ridge == f.roof.reached_flops / f.roof.reached_bytes_per_s
    assert f.roof.flops == find_gpu("T4").fp16_flops
    for c in f.layers:
        assert isinstance(c, LayerCost)
        assert c.flop <= c.ms * 1e-3 * f.roof.flops
        assert c.moved_bytes <= c.ms * 1e-3 * f.roof.bytes_per_s


# --- GPUs and recipes


def test_the_gpus_are_the_promised_ones():
    assert set(GPUS) == {
        "T4", "V100", "A100", "L4", "RTX 3090", "RTX 4090", "H100", "H200", "B200",
    }  # fmt: skip
    for gpu in GPUS.values():
        assert gpu.source
        assert gpu.fp32_flops <= gpu.fp16_flops
        assert gpu.bf16_flops in (None, gpu.fp16_flops)
        assert gpu.tf32_flops is None or gpu.fp32_flops <= gpu.tf32_flops <= gpu.fp16_flops


@pytest.mark.parametrize("name", ["rtx 4090", "RTX4090", "4090", "rtx-4090"])
def test_gpu_names_are_forgiving(name):
    assert find_gpu(name) is GPUS["RTX 4090"]


def test_every_recipe_has_a_forecast():
    for name in RECIPES:
        f = forecast("small_cnn", batch=4, recipe=name, gpu="T4")
        assert f.recipe == name
        assert f.step_ms > 0


def test_recipes_are_found_by_either_name():
    assert find_recipe("amp-fp16") is find_recipe("AMP FP16") is AMP_FP16
    assert find_recipe("fp16-master-scaler") is RECIPES["FP16 + master + scaler"]
    assert find_recipe(AMP_BF16) is AMP_BF16


# --- what a forecast says of itself


def test_it_says_that_it_is_a_forecast_with_its_error():
    f = forecast("resnet18", batch=128, gpu="A100")
    for shown in (str(f), f._repr_html_()):
        assert "Forecast, not measured" in shown
        assert "± 25%" in shown
        assert "± 10%" in shown
    assert TIME_ERROR == 0.25


def test_it_says_what_nothing_checks():
    assert "not checked" in str(forecast("resnet18", batch=128, gpu="B200"))
    launches = forecast("mlp", batch=1, gpu="H100")
    assert launches.bound_ms["launch"] > 0.5 * launches.step_ms
    assert "not checked" in str(launches)
    assert any("mostly launches" in note for note in launches.notes)
    on_t4 = (
        forecast("resnet18", batch=128, gpu="T4"),
        forecast("resnet18", batch=128, gpu="T4", train=False),
    )
    assert [f.time_error for f in on_t4] == ["not checked", "± 25%"]
    imitated = forecast("mlp", batch=1, recipe="amp-bf16", gpu="T4")
    assert any("no units for BF16" in note for note in imitated.notes)


def test_it_warns_of_depthwise_convolutions():
    def build():
        depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        return nn.Sequential(depthwise, nn.Flatten(), nn.Linear(64 * 32 * 32, 10))

    f = forecast(build, batch=64, sample_shape=(64, 32, 32))
    assert any("depthwise" in note for note in f.notes)
    assert not any("depthwise" in note for note in forecast("small_cnn", batch=64).notes)


def test_results_round_trip_and_show():
    many = forecast_on(None, "mlp", batch=4)
    assert [f.gpu for f in many.forecasts] == list(GPUS)
    assert Forecasts.from_json(many.to_json()) == many
    one = many.on("T4")
    assert Forecast.from_json(one.to_json()) == one
    assert one == forecast("mlp", batch=4, gpu="T4")
    assert many._repr_html_().count("<tr>") == 1 + len(GPUS)
    assert one.peak_bytes == sum(one.peak_bytes_by_part.values())
    with pytest.raises(ValueError, match="gpu: got 'X'"):
        many.on("X")


def test_whether_it_fits():
    small = Gpu("small", 1e12, None, 1e13, None, 1e12, 2**30, "GDDR", (), "made up")
    assert forecast("resnet18", batch=8, gpu=small).fits
    assert not forecast("resnet18", batch=128, gpu=small).fits


# --- what is refused


class ReadsValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else x


def reads_values():
    return ReadsValues()


def breaks():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))


def test_a_step_that_reads_values_is_refused_and_nothing_is_left_behind():
    with pytest.raises(ForecastError, match="reads values of tensors"):
        forecast(reads_values, batch=2, sample_shape=(4,))
    x = torch.ones(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert x.bfloat16().exp().dtype is torch.bfloat16  # the CPU's own policy is back
    assert not isinstance(torch.zeros(1), torch._subclasses.FakeTensor)


def test_a_model_that_fails_by_itself_says_how():
    with pytest.raises(ForecastError, match=r"breaks can't be forecast: RuntimeError"):
        forecast(breaks, batch=2, sample_shape=(4,))


def test_a_model_that_plans_with_values_is_built_for_real():
    assert forecast("regnet_y_400mf", batch=2).step_ms > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnet5"}, "model: got 'resnet5'"),
        ({"model": "no_module:build"}, "can't be loaded"),
        ({"model": mlp}, "sample_shape"),
        ({"batch": 0}, "batch: got 0"),
        ({"gpu": "A1000"}, "gpu: got 'A1000', allowed are V100, T4"),
        ({"recipe": "amp-fp8"}, "recipe: got 'amp-fp8', allowed are fp32, amp-fp16"),
        ({"optimizer": "lion"}, "optimizer: got 'lion', allowed are sgd"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        forecast(**{"model": "mlp", "batch": 2, **options})


def test_nothing_is_downloaded(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a download")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", refuse)
    with pytest.raises(ForecastError, match="give the loss that it is trained with"):
        forecast("lraspp_mobilenet_v3_large", batch=2, sample_shape=(3, 64, 64))


def test_a_built_model_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match="the function that builds it"):
        forecast(mlp(), batch=2)


# --- the command


def test_the_command_shows_all_gpus(capsys):
    assert main(["mlp", "--batch", "4"]) == 0
    shown = capsys.readouterr().out
    assert "Forecast, not measured" in shown
    assert all(gpu in shown for gpu in GPUS)


def test_the_command_shows_layers_and_json(capsys):
    assert main(["small_cnn", "--batch", "4", "--gpu", "T4", "--layers"]) == 0
    assert "conv1" in capsys.readouterr().out
    assert main(["small_cnn", "--batch", "4", "--gpu", "T4", "--json"]) == 0
    (plain,) = json.loads(capsys.readouterr().out)
    assert Forecast.from_plain(plain) == forecast("small_cnn", batch=4, gpu="T4")


def test_the_command_takes_models_of_ones_own(tmp_path, monkeypatch, capsys):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build():\n    return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["mine:build", "--batch", "2", "--gpu", "T4", "--optimizer", "adamw"]
    assert main([*arguments, "--input", "16", "--tokens"]) == 0
    assert "AdamW, mine:build" in capsys.readouterr().out
    assert main(arguments) == 2
    assert "say the shape of one input" in capsys.readouterr().err


def test_the_command_refuses_in_one_line(capsys):
    assert main(["resnet5", "--batch", "4"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mptutor forecast: model: got 'resnet5'")
    assert error.count("\n") == 1
    for bad in (["--batch", "0"], ["--batch", "4", "--input", "3xx"]):
        with pytest.raises(SystemExit):
            main(["mlp", *bad])
    assert "allowed is 1 or more" in capsys.readouterr().err


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", [FP32, AMP_FP16, AMP_BF16], ids=lambda r: r.name)
def test_memory_is_that_of_a_step_on_this_gpu(recipe):
    from torchvision.models import resnet18

    device = torch.device("cuda")
    net, x = resnet18().to(device), torch.randn(64, 3, 224, 224, device=device)
    stepper = recipe.stepper(net, sgd)
    y = torch.zeros(64, dtype=torch.long, device=device)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        stepper.zero_grad()
        with recipe.autocast_on(device):
            loss = F.cross_entropy(net(x), y)
        stepper.backward(loss)
        del loss
        stepper.step()
    measured = torch.cuda.max_memory_allocated()
    assert forecast("resnet18", batch=64, recipe=recipe).peak_bytes == pytest.approx(
        measured, rel=0.1
    )


# --- the pictures


def test_the_memory_picture_has_every_part_of_every_bar():
    from mptutor.plots.forecast import plot_memory

    forecasts = [forecast("small_cnn", batch=64, recipe=recipe) for recipe in ("fp32", "amp-fp16")]
    picture = plot_memory(forecasts)
    assert "Forecast" in picture.get_suptitle()
    (axes,) = picture.axes
    drawn = sum(bar.get_width() for bar in axes.patches)
    assert drawn == pytest.approx(sum(f.peak_bytes for f in forecasts) / 1e9)
    assert [t.get_text() for t in axes.get_yticklabels()] == ["AMP FP16", "FP32"]
    assert f"FP32 {forecasts[0].peak_bytes / 1e9:.3g} GB" in picture.alt


def test_no_layer_breaks_through_the_roof():
    from mptutor.plots.forecast import plot_roofline

    f = forecast("resnet18", batch=64, gpu="T4", channels_last=True)
    picture = plot_roofline(f)
    (axes,) = picture.axes
    layers = [line for line in axes.lines if line.get_marker() in "^os"]
    assert sum(len(line.get_xdata()) for line in layers) == sum(c.flop > 0 for c in f.layers)
    for line in layers:
        for intensity, tflops in zip(*line.get_data(), strict=True):
            roof = min(f.roof.reached_flops, intensity * f.roof.reached_bytes_per_s) / 1e12
            assert tflops <= roof * 1.0001
    assert "Forecast" in picture.get_suptitle()
    assert "T4" in picture.alt
