"""Radio: channels, the seconds and joules of a round, and plans that share each cell's band.


>>> from covey.wireless import Cells, Channel, Devices, Noise, Scenario, Work, equal, plan
>>> devices = Devices.of([0, 0], distance=[60.0, 240.0], cpu=3e9, cycles=20.0, power=0.63)
>>> work = Work(shared=120_000, personal=30_000, steps=5, personal_steps=3)
>>> channel = Channel(Noise(1e-14), fading="none")
>>> scenario = Scenario(devices, Cells.of(20e6), channel, work, deadline=0.015)
>>> best = plan(scenario)
>>> best.ratio.round(decimals=3).tolist(), plan(scenario, equal).ratio.round(decimals=3).tolist()
([[0.238, 0.95]], [[0.535, 0.732]])
"""

from covey.kernel.work import Work
from covey.radio.channel import Channel, LogDistance, Noise, Urban
from covey.radio.clock import RadioRecord
from covey.radio.device import Cells, Devices, Spread
from covey.radio.latency import Timing, encoded_bits, formula_bits
from covey.radio.plan import Plan, Scenario, plan
from covey.radio.policies import (
    POLICIES,
    Policy,
    equal,
    fair,
    fixed,
    optimal,
    personal_fastest,
    personal_only,
    pruning_only,
    weighted,
)
from covey.radio.problem import Problem, Reason
from covey.radio.radio import Radio
from covey.radio.solve import Allocation, Certificate

__all__ = [
    "POLICIES",
    "Allocation",
    "Cells",
    "Certificate",
    "Channel",
    "Devices",
    "LogDistance",
    "Noise",
    "Plan",
    "Policy",
    "Problem",
    "Radio",
    "RadioRecord",
    "Reason",
    "Scenario",
    "Spread",
    "Timing",
    "Urban",
    "Work",
    "encoded_bits",
    "equal",
    "fair",
    "fixed",
    "formula_bits",
    "optimal",
    "personal_fastest",
    "personal_only",
    "plan",
    "pruning_only",
    "weighted",
]
