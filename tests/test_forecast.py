"""Forecasts as they are asked for: names, what they say of themselves, what is refused."""

import json
import sys

import pytest
import torch
from torch import nn

from mptutor.experiments.recipes import AMP_BF16, AMP_FP16, RECIPES
from mptutor.forecast import (
    GPUS,
    TIME_ERROR,
    Forecast,
    ForecastError,
    Forecasts,
    Gpu,
    find_gpu,
    find_recipe,
    forecast,
    forecast_on,
)
from mptutor.forecast.cli import main
from mptutor.models import mlp

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
