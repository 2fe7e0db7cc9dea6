"""``mptutor forecast MODEL``: what a training step would take on GPUs that aren't here."""

from __future__ import annotations

import argparse
import json
import sys

from mptutor.experiments.recipes import RECIPES
from mptutor.experiments.result import text_table
from mptutor.forecast import (
    GPUS,
    OPTIMIZERS,
    Forecast,
    ForecastError,
    forecast_on,
    slug,
)

_EXAMPLES = """\
examples:
  mptutor forecast resnet50 --batch 256 --recipe amp-fp16 --channels-last
  mptutor forecast small_cnn --batch 128 --gpu T4 --layers
  mptutor forecast mine:build --input 3x64x64 --batch 32 --optimizer adamw

Nothing is measured here: memory is counted on tensors without values, time is a model's.
"""


def main(argv: list[str]) -> int:
    """Print the forecast; return 2 for what can't be forecast, with the reason."""
    arguments = _parser().parse_args(argv)
    try:
        forecasts = forecast_on(
            arguments.gpu,
            arguments.model,
            batch=arguments.batch,
            recipe=arguments.recipe,
            optimizer=arguments.optimizer,
            sample_shape=arguments.input,
            integers=arguments.tokens,
            channels_last=arguments.channels_last,
            train=not arguments.inference,
        )
    except (ForecastError, ValueError, TypeError) as error:
        print(f"mptutor forecast: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([f.to_plain() for f in forecasts.forecasts], indent=1, allow_nan=False))
    elif len(forecasts.forecasts) == 1:
        print(forecasts.forecasts[0])
    else:
        print(forecasts)
    if arguments.layers and not arguments.json:
        for forecast in forecasts.forecasts:
            print(f"\n{forecast.gpu}, by layer\n{layer_table(forecast)}")
    return 0


def layer_table(forecast: Forecast) -> str:
    """Lay out what each layer does, those that take longest first."""
    return text_table(
        [
            {
                "layer": cost.layer or "(none)",
                "phase": cost.phase,
                "GFLOP": cost.flop / 1e9,
                "MB": cost.moved_bytes / 1e6,
                "FLOP/B": cost.intensity,
                "ms": cost.ms,
                "waits for": cost.bound,
            }
            for cost in sorted(forecast.layers, key=lambda cost: -cost.ms)
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mptutor forecast",
        description="Forecast memory and time of a training step on GPUs that aren't here.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        help="small_cnn, mlp, char_transformer, a classifier of torchvision, or your own"
        " as module:function",
    )
    parser.add_argument("--batch", type=_positive, required=True, help="samples in a step")
    parser.add_argument("--recipe", default="amp-fp16", help=", ".join(map(slug, RECIPES)))
    parser.add_argument(
        "--gpu", action="append", help=f"{', '.join(GPUS)}; may be repeated; all if not given"
    )
    parser.add_argument("--optimizer", default="sgd", help=", ".join(OPTIMIZERS))
    parser.add_argument("--input", type=_shape, help="shape of one input, as 3x224x224")
    parser.add_argument("--tokens", action="store_true", help="inputs are integers")
    parser.add_argument("--channels-last", action="store_true", help="images lie in NHWC")
    parser.add_argument("--inference", action="store_true", help="only forward, no gradients")
    parser.add_argument("--layers", action="store_true", help="show every layer")
    parser.add_argument("--json", action="store_true", help="print the forecasts as JSON")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, allowed is 1 or more")
    return int(text)


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.replace(",", "x").split("x")
    if not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"got {text!r}, needed is a shape such as 3x224x224")
    return tuple(map(int, sizes))
