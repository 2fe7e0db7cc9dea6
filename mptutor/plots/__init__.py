"""Pictures of results: ``plot_x(result) -> Picture``, and nothing is computed here.

A `Picture` is a matplotlib figure that shows itself in a notebook with its alternative text. All
pictures share one style (`mptutor.plots.picture`) and one palette (`mptutor.palette`).
"""

from mptutor.plots.accumulation import plot_running_sums, plot_stochastic_sums
from mptutor.plots.choosing import plot_choice, plot_framework_costs, plot_what_ran
from mptutor.plots.dtypes import plot_dtype_trace
from mptutor.plots.formats import plot_ranges, plot_spacing
from mptutor.plots.fp8 import plot_delayed_scaling, plot_fp8_errors, plot_fp8_training
from mptutor.plots.gradients import plot_exponents, plot_gradient_census, plot_scale_sweep
from mptutor.plots.loop_patterns import plot_loop_patterns
from mptutor.plots.picture import Picture
from mptutor.plots.scaler_traces import plot_scaler_trace
from mptutor.plots.sweeps import plot_memory_sweep, plot_speed_sweep
from mptutor.plots.training import plot_outcome, plot_training

__all__ = [
    "Picture",
    "plot_choice",
    "plot_delayed_scaling",
    "plot_dtype_trace",
    "plot_exponents",
    "plot_fp8_errors",
    "plot_fp8_training",
    "plot_framework_costs",
    "plot_gradient_census",
    "plot_loop_patterns",
    "plot_memory_sweep",
    "plot_outcome",
    "plot_ranges",
    "plot_running_sums",
    "plot_scale_sweep",
    "plot_scaler_trace",
    "plot_spacing",
    "plot_speed_sweep",
    "plot_stochastic_sums",
    "plot_training",
    "plot_what_ran",
]
